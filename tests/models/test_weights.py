"""Weight files of a version: names, shapes and dtypes decide who writes which; nothing missing or foreign is read."""

import json
import multiprocessing
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from shoal.errors import ModelError
from shoal.models.load import Policy
from shoal.models.weights import (
    INDEX,
    WEIGHTS,
    TensorSpec,
    plan_files,
    read_weights,
    specs_of,
    weight_files,
    write_file,
    write_index,
    write_weights,
)

SPECS = st.builds(
    TensorSpec,
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
    st.lists(st.integers(0, 40), max_size=3).map(tuple),
)


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = {f"layers.{i}.weight": torch.randn(16, 64, generator=generator).bfloat16() for i in range(12)}
    return found | {"scale": torch.tensor(2.5), "embed": torch.randn(32, 64, generator=generator).bfloat16()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A version of eight files."""
    write_weights(tmp_path, tensors(), file_bytes=3600)
    assert len(weight_files(tmp_path)) == 8
    return tmp_path


def same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[n], t) for n, t in expected.items())


@settings(max_examples=60)
@given(st.dictionaries(st.text(min_size=1, max_size=5), SPECS, max_size=12), st.integers(1, 9000), st.randoms())
def test_every_tensor_is_in_one_file_whoever_plans(
    specs: dict[str, TensorSpec], file_bytes: int, rng: random.Random
) -> None:
    files = plan_files(specs, file_bytes)
    shuffled = list(specs.items())
    rng.shuffle(shuffled)
    assert plan_files(dict(shuffled), file_bytes) == files
    placed = [name for file in files for name in file.tensors]
    assert sorted(placed) == sorted(specs)
    total, largest = sum(s.size for s in specs.values()), max((s.size for s in specs.values()), default=0)
    assert all(sum(s.size for s in file.tensors.values()) <= file_bytes + largest for file in files)
    assert len(files) <= max(1, -(-total // file_bytes))


@pytest.mark.parametrize("file_bytes", [1, 3600, 1 << 30])
def test_what_is_written_is_what_is_read(tmp_path: Path, file_bytes: int) -> None:
    write_weights(tmp_path, tensors(), file_bytes)
    assert same(dict(read_weights(tmp_path, "bfloat16")), tensors())


def test_one_file_is_byte_for_byte_what_safetensors_writes(tmp_path: Path) -> None:
    write_weights(tmp_path, tensors())
    save_file(tensors(), tmp_path / "theirs", {"format": "pt"})
    assert [path.name for path in weight_files(tmp_path)] == [WEIGHTS]
    assert (tmp_path / WEIGHTS).read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_file_has_the_size_that_the_plan_says(folder: Path) -> None:
    files = plan_files(specs_of(tensors()), 3600)
    assert [(folder / file.name).stat().st_size for file in files] == [file.size for file in files]


def test_transformers_loads_a_model_of_several_files(tiny_policy: Policy, tiny_dir: Path, tmp_path: Path) -> None:
    write_weights(tmp_path, tiny_policy.weights(), file_bytes=50_000)
    assert len(weight_files(tmp_path)) > 2
    shutil.copy2(tiny_dir / "config.json", tmp_path)
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    model, found = loaded
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert all(torch.equal(t, tiny_policy.model.state_dict()[n]) for n, t in model.state_dict().items())


def write_as_rank(folder: Path, rank: int) -> None:
    held = tensors()
    for file in plan_files(specs_of(held), 3600)[rank::2]:
        write_file(folder, file, ((name, held[name]) for name in file.tensors))


def test_processes_write_a_version_together(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each its own files, with nothing said between them; the version is that of one process, byte for byte."""
    theirs = tmp_path_factory.mktemp("ranks")
    start = multiprocessing.get_context("fork").Process
    ranks = [start(target=write_as_rank, args=(theirs, rank)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    with pytest.raises(ModelError, match=r"index\.json: missing"):
        read_weights(theirs, "bfloat16")
    write_index(theirs, plan_files(specs_of(tensors()), 3600))
    names = sorted(path.name for path in folder.iterdir())
    assert sorted(path.name for path in theirs.iterdir()) == names
    assert all((theirs / name).read_bytes() == (folder / name).read_bytes() for name in names)


def test_tensors_are_asked_for_one_at_a_time(tmp_path: Path) -> None:
    """Of a model that no process holds whole, only the tensor that is being written is there."""
    (file,) = plan_files({name: TensorSpec(torch.float32, (1 << 18,)) for name in "abcdef"})
    sizes = []

    def stream() -> object:
        for name in file.tensors:
            sizes.append((tmp_path / WEIGHTS).stat().st_size)
            yield name, torch.zeros(1 << 18)

    write_file(tmp_path, file, stream())  # type: ignore[arg-type]
    header = len(file.header())
    assert sizes == [header + (i << 20) for i in range(6)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([("b", torch.zeros(2))], r"model\.safetensors: b of .* is given where a is due, of torch\.float32 and shape"),
        ([("a", torch.zeros(3))], r"a of torch\.float32 and shape \(3,\) is given where a is due"),
        ([("a", torch.zeros(2).bfloat16())], r"a of torch\.bfloat16 .* where a is due, of torch\.float32"),
        ([("a", torch.zeros(2))], r"model\.safetensors: b is missing"),
        ([("a", torch.zeros(2)), ("b", torch.zeros(2)), ("c", torch.zeros(2))], r"where no more tensors is due"),
    ],
)
def test_a_writer_that_gives_something_else_is_told(tmp_path: Path, given: list[tuple[str, Tensor]], said: str) -> None:
    (file,) = plan_files(specs_of({"a": torch.zeros(2), "b": torch.zeros(2)}))
    with pytest.raises(ModelError, match=said):
        write_file(tmp_path, file, given)


def test_a_dtype_that_no_file_holds_is_refused_by_the_tensor_s_name() -> None:
    with pytest.raises(ModelError, match=r"tensor odd: its dtype is torch\.complex64"):
        plan_files({"odd": TensorSpec(torch.complex64, (2,))})


THIRD = "model-00003-of-00008.safetensors"


def remap(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    tree = json.loads((folder / INDEX).read_text())
    change(tree["weight_map"])
    (folder / INDEX).write_text(json.dumps(tree))


def name_all(file: str) -> Callable[[Path], object]:
    return lambda folder: remap(folder, lambda names: names.update({n: file for n, f in names.items() if f == THIRD}))


def name_twice(folder: Path) -> None:
    """A tensor under two files: readers differ in which of them they believe."""
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace('"embed": "', '"embed": "model-00008-of-00008.safetensors", "embed": "'))
    shard = folder / "model-00008-of-00008.safetensors"
    save_file(load_file(shard) | {"embed": torch.zeros(2)}, shard)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: (d / THIRD).unlink(), rf"{THIRD}: missing, and model\.safetensors\.index\.json names it"),
        (lambda d: shutil.copy2(d / THIRD, d / WEIGHTS), r"model\.safetensors: .*does not name it; it is of another"),
        (
            lambda d: shutil.copy2(d / THIRD, d / "model-00009-of-00009.safetensors"),
            r"model-00009-of-00009\.safetensors: .*does not name it; it is of another version",
        ),
        (lambda d: shutil.copy2(d / "model-00002-of-00008.safetensors", d / THIRD), rf"{THIRD}: .*of another version"),
        (lambda d: (d / THIRD).write_bytes((d / THIRD).read_bytes()[:-1]), rf"{THIRD}: not a readable safetensors"),
        (name_all("../model-00003-of-00008.safetensors"), r"index\.json: .* is said to be in '\.\./model-00003"),
        (name_all("/etc/passwd"), r"index\.json: .* is said to be in '/etc/passwd'"),
        (name_all("model-00001-of-00008.safetensors"), r"index\.json: it names 7 files"),
        (name_twice, r"model-00008-of-00008\.safetensors: has embed, which .* does not put there"),
        (lambda d: (d / INDEX).unlink(), r"index\.json: missing, and model-00001-of-00008\.safetensors is one of"),
        (lambda d: (d / INDEX).write_text("[" * 100_000), r"index\.json: not a readable index"),
        (lambda d: (d / INDEX).write_text('{"weight_map": ["a"]}'), r"index\.json: not a readable index"),
        (lambda d: remap(d, lambda names: names.pop("scale")), r"safetensors: has scale, which"),
        (lambda d: remap(d, lambda names: names.update(more=THIRD)), rf"{THIRD}: lacks more, which"),
    ],
)
def test_a_version_that_is_not_whole_is_an_error_that_names_the_file(
    folder: Path, damage: Callable[[Path], object], said: str
) -> None:
    damage(folder)
    with pytest.raises(ModelError, match=said):
        read_weights(folder, "bfloat16")
