"""Deltas of whole files: rebuilt to the last bit, or refused with nothing at the target's name."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from shoal.errors import DeltaError, StorageError
from shoal.files import STAGING
from shoal.shardcast.delta import delta

GENERATOR = torch.Generator().manual_seed(0)


def weights(*shape: int) -> Tensor:
    return (0.05 * torch.randn(*shape, generator=GENERATOR)).bfloat16()


def trained(tensor: Tensor, share: float = 0.03) -> Tensor:
    """Some values one step further from zero."""
    some = torch.rand(tensor.shape, generator=GENERATOR) < share
    return (tensor.view(torch.int16) + some.to(torch.int16)).view(torch.bfloat16)


MODEL = {
    "embed": weights(300, 64),
    "layer.0.norm": torch.ones(64).bfloat16(),
    "layer.0.up": weights(64, 256),
    "layer.1.up": weights(64, 256),
    "steps": torch.arange(17),
    "scale": torch.randn(9, generator=GENERATOR),
    "empty": torch.zeros(0, 4).bfloat16(),
    "one": torch.tensor(1.5).bfloat16(),
}
NEXT = MODEL | {"embed": trained(MODEL["embed"]), "layer.0.up": trained(MODEL["layer.0.up"])}


def write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> Path:
    save_file(tensors, path, metadata)
    return path


def raw(path: Path, header: dict[str, Any] | bytes, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path / "base.safetensors", MODEL)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write(tmp_path / "new.safetensors", NEXT)


@pytest.fixture
def made(base: Path, new: Path) -> Path:
    delta.encode(base, new, base.with_name("v1.delta"))
    return base.with_name("v1.delta")


def there_and_back(base: Path, new: Path) -> delta.DeltaStats:
    made, out = base.with_name("made.delta"), base.with_name("out.safetensors")
    stats = delta.encode(base, new, made)
    delta.apply(base, made, out)
    assert out.read_bytes() == new.read_bytes()
    assert stats.delta_bytes == made.stat().st_size
    assert stats.full_bytes == new.stat().st_size
    return stats


def test_a_model_comes_back_to_the_last_bit(base: Path, new: Path) -> None:
    stats = there_and_back(base, new)
    assert stats.pays()
    assert stats.ratio > 20
    out = load_file(base.with_name("out.safetensors"))
    assert all(torch.equal(out[name], tensor) for name, tensor in NEXT.items())


def test_what_did_not_change_costs_nothing(base: Path) -> None:
    stats = there_and_back(base, base)
    assert stats.blocks_steps == stats.blocks_full == 0
    assert stats.delta_bytes < 200


@pytest.mark.parametrize(
    "change",
    [
        {"added": weights(8, 8)},
        {"embed": weights(150, 128)},
        {"embed": MODEL["embed"].float()},
        {"layer.0.up": MODEL["layer.0.up"].view(torch.float16)},
        {"steps": torch.arange(17) + 1},
        {"scale": torch.zeros(5)},
        {"empty": torch.zeros(4, 0).bfloat16()},
        {"empty": torch.ones(3, 4).bfloat16()},
        {"embed": torch.full((300, 64), float("nan")).bfloat16()},
        {"layer.1.up": -MODEL["layer.1.up"]},
    ],
)
def test_added_reshaped_and_foreign_tensors_come_back(base: Path, change: dict[str, Tensor]) -> None:
    there_and_back(base, write(base.with_name("other.safetensors"), NEXT | change))


@pytest.mark.parametrize("name", list(MODEL))
def test_a_tensor_can_go_and_come_again(base: Path, name: str) -> None:
    without = write(base.with_name("without.safetensors"), {n: t for n, t in NEXT.items() if n != name})
    there_and_back(base, without)
    there_and_back(without, base)


def test_the_header_comes_back_as_it_is(base: Path) -> None:
    there_and_back(base, write(base.with_name("other.safetensors"), NEXT, {"format": "pt", "step": "12 ü"}))
    facts = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
    odd = raw(base.with_name("odd.safetensors"), b'  {"b":  ' + json.dumps(facts).encode() + b" }   ", b"\x80\x3f\0\0")
    assert (8 + int.from_bytes(odd.read_bytes()[:8], "little")) % 2 == 1
    there_and_back(odd, odd)
    there_and_back(base, odd)
    there_and_back(odd, base)
    nothing = raw(base.with_name("nothing.safetensors"), b"{}", b"")
    there_and_back(nothing, nothing)
    there_and_back(nothing, base)
    there_and_back(base, nothing)


def test_tensors_in_another_order_still_follow_from_the_base(tmp_path: Path) -> None:
    def file(name: str, order: str, shift: int) -> Path:
        at, header, data = 0, {}, b""
        for number, letter in enumerate(order):
            values = np.random.default_rng(ord(letter)).integers(0, 65536, 40_000).astype(np.uint16)
            values[number * 7 :: 911] += np.uint16(shift)
            header[letter] = {"dtype": "BF16", "shape": [40_000], "data_offsets": [at, at + 80_000]}
            at, data = at + 80_000, data + values.tobytes()
        return raw(tmp_path / name, header, data)

    stats = there_and_back(file("a", "abcd", 0), file("b", "cdab", 1))
    assert stats.ratio > 100


DTYPES = st.sampled_from([torch.bfloat16, torch.bfloat16, torch.float32, torch.int64, torch.uint8, torch.float16])
SHAPES = st.lists(st.integers(0, 7), max_size=3)
FILES = st.dictionaries(st.sampled_from("abcde"), st.tuples(DTYPES, SHAPES, st.integers(0, 2)), max_size=5)


@given(FILES, FILES)
def test_any_two_files_go_together(first: Any, second: Any) -> None:
    def tensor(dtype: torch.dtype, shape: list[int], seed: int) -> Tensor:
        count = int(np.prod(shape)) * dtype.itemsize
        content = np.random.default_rng(seed).integers(0, 256, count).astype(np.uint8)
        return torch.from_numpy(content).view(dtype).view(shape) if count else torch.zeros(shape, dtype=dtype)

    with tempfile.TemporaryDirectory() as folder:
        one, two = (
            write(Path(folder) / name, {n: tensor(*facts) for n, facts in tensors.items()})
            for name, tensors in (("one", first), ("two", second))
        )
        there_and_back(one, two)


def test_a_delta_can_be_written_to_a_stream_and_the_base_hash_be_given(base: Path, new: Path, made: Path) -> None:
    stream = io.BytesIO()
    stats = delta.encode(base, new, stream, base_hash=delta.hash_of(base))
    assert stream.getvalue() == made.read_bytes()
    assert (stats.base_hash, stats.new_hash) == (delta.hash_of(base), delta.hash_of(new))


def test_progress_reaches_the_size_of_the_file(base: Path, new: Path, made: Path, tmp_path: Path) -> None:
    heard: list[int] = []
    delta.encode(base, new, tmp_path / "d", progress=heard.append)
    delta.apply(base, made, tmp_path / "out", progress=heard.append)
    assert heard[-1] == heard[len(heard) // 2 - 1] == new.stat().st_size


def refused(base: Path, made: Path, why: str, **options: Any) -> None:
    """It is refused for that reason, what stands at the target stays, and nothing is left beside it."""
    out = made.with_name("target.safetensors")
    out.write_text("as it was")
    before = {path.name for path in made.parent.iterdir()}
    with pytest.raises(DeltaError, match=why):
        delta.apply(base, made, out, **options)
    assert out.read_text() == "as it was"
    assert {path.name for path in made.parent.iterdir()} == before


def test_another_base_is_refused(base: Path, new: Path, made: Path) -> None:
    refused(new, made, r"v1\.delta: it is for a base whose hash begins with \w{12}, that of .*new\.safetensors with")
    refused(
        new, made, "it is damaged, or the base is another one|lead out|too early or too late", base_is_verified=True
    )
    other = write(base.with_name("short.safetensors"), {"embed": MODEL["embed"]})
    refused(other, made, "for a base of")
    refused(base.with_name("absent"), made, "absent: cannot be read")


def test_one_flipped_bit_of_the_base_is_noticed(base: Path, made: Path) -> None:
    content = bytearray(base.read_bytes())
    content[-1000] ^= 4
    base.write_bytes(content)
    refused(base, made, "for a base whose hash")


def test_every_damage_to_a_delta_is_refused(base: Path, new: Path, made: Path, tmp_path: Path) -> None:
    """Flips, cuts and additions anywhere, several thousand: never the wrong file, never another error."""
    whole, right = made.read_bytes(), hashlib.sha256(new.read_bytes()).digest()
    random = np.random.default_rng(3)
    bad, out = tmp_path / "bad.delta", tmp_path / "out"
    # The hash of the base is not looked at below: the other bytes must be enough.
    places = [place for place in range(len(whole)) if not 24 <= place < 56]
    for number in range(2500):
        content = bytearray(whole)
        if number % 5 == 0:
            content = content[: random.integers(len(whole))]
        elif number % 5 == 1:
            content += bytes(random.integers(0, 256, random.integers(1, 9)).astype(np.uint8))
        else:
            content[random.choice(places)] ^= 1 << random.integers(8)
        bad.write_bytes(content)
        try:
            delta.apply(base, bad, out, base_is_verified=True)
        except DeltaError:
            assert not out.exists()
        else:  # a bit that nobody reads, in the padding of a bit stream
            assert hashlib.sha256(out.read_bytes()).digest() == right
            out.unlink()
    assert not list(tmp_path.glob(f"{STAGING}*"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a delta of format 2"),
        (b"shoaldl1" + bytes(60), "not a delta of format 2"),
        (delta.PRELUDE.pack(delta.MAGIC, 1, 1, bytes(32), 1 << 20, 8, 8), "for a base of 1 bytes"),
    ],
)
def test_what_is_no_delta_is_refused(base: Path, tmp_path: Path, content: bytes, why: str) -> None:
    bad = tmp_path / "bad.delta"
    bad.write_bytes(content)
    refused(base, bad, why)


def test_a_header_that_claims_too_much_is_refused(base: Path, tmp_path: Path) -> None:
    size = base.stat().st_size
    bad = tmp_path / "bad.delta"
    for sizes in ((2**32 - 1, 9), (9, 2**32 - 1)):
        bad.write_bytes(delta.PRELUDE.pack(delta.MAGIC, size, size, bytes(32), 1 << 20, *sizes) + bytes(9))
        refused(base, bad, "header would take")


@pytest.mark.parametrize("piece", [0, 1, (1 << 20) - 1, (4 << 20) + 1, 2**32 - 1])
def test_pieces_of_another_size_than_those_of_versions_are_refused(base: Path, tmp_path: Path, piece: int) -> None:
    size, bad = base.stat().st_size, tmp_path / "bad.delta"
    bad.write_bytes(delta.PRELUDE.pack(delta.MAGIC, size, size, bytes(32), piece, 9, 9) + bytes(9))
    refused(base, bad, f"its pieces have {piece:,} bytes")


FACTS = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "data", "why"),
    [
        (b"[]", b"", "not a table"),
        (b"{", b"", "not a safetensors file"),
        (b"\xff\xfe", b"", "not a safetensors file"),
        (b"[" * 100_000, b"", "not a safetensors file"),
        ({"a": 3}, b"", "not a safetensors file"),
        ({"a": FACTS}, b"\0" * 5, "describes"),
        ({"a": FACTS}, b"\0" * 3, "describes"),
        ({"a": FACTS, "b": FACTS}, b"\0" * 4, "b is at byte|a is at byte"),
        ({"a": FACTS | {"data_offsets": [4, 8]}}, b"\0" * 8, "expected at"),
        ({"a": FACTS | {"data_offsets": [4, 0]}}, b"\0" * 4, "offsets do not fit"),
        ({"a": FACTS | {"shape": [3]}}, b"\0" * 4, "offsets do not fit"),
        ({"a": FACTS | {"shape": [2**61] * 10**6}}, b"\0" * 4, "1000000 dimensions"),
        ({"a": FACTS | {"shape": [-1]}}, b"\0" * 4, "not what they should be"),
        ({"a": FACTS | {"shape": [1.5]}}, b"\0" * 4, "not what they should be"),
    ],
)
def test_files_that_are_not_safetensors_are_named(base: Path, header: Any, data: bytes, why: str) -> None:
    bad = raw(base.with_name("bad.safetensors"), header, data)
    for one, two in ((base, bad), (bad, base)):
        with pytest.raises(DeltaError, match=r"bad\.safetensors: .*" + f"(?:{why})"):
            delta.encode(one, two, base.with_name("d"))
        assert not base.with_name("d").exists()


def test_a_pipe_or_a_directory_is_no_base(base: Path, made: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", made, "pipe: cannot be read")
    with pytest.raises(DeltaError, match="cannot be read"):
        delta.encode(tmp_path, base, tmp_path / "d")


def test_a_write_that_fails_leaves_nothing(base: Path, made: Path) -> None:
    code = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom shoal.shardcast.delta import delta\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"
        "delta.apply(*map(Path, sys.argv[1:]))"
    )
    out = base.with_name("out")
    done = subprocess.run(
        [sys.executable, "-c", code, str(base), str(made), str(out)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert not out.exists()
    assert not list(base.parent.glob(f"{STAGING}*"))


def test_a_directory_that_cannot_be_made_is_said(base: Path, made: Path) -> None:
    with pytest.raises(StorageError, match="is not a directory"):
        delta.apply(base, made, base / "below" / "out")


def test_a_killed_writer_leaves_nothing_at_the_name(base: Path, new: Path, made: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom shoal.shardcast.delta import delta\n"
        "def stall(done):\n    print(done, flush=True)\n    time.sleep(60)\n"
        "delta.apply(*map(Path, sys.argv[1:]), progress=stall)"
    )
    out = tmp_path / "out"
    writer = subprocess.Popen([sys.executable, "-c", code, str(base), str(made), str(out)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline()
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=30)
    assert not out.exists()
    assert len(list(tmp_path.glob(f"{STAGING}out-*"))) == 1
    delta.apply(base, made, out)
    assert out.read_bytes() == new.read_bytes()


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """128 MB of weights within 50 MB beyond what the program itself takes."""
    count = 1 << 26
    for name in ("a", "b"):
        with (tmp_path / name).open("wb") as file:
            text = json.dumps({"w": {"dtype": "BF16", "shape": [count], "data_offsets": [0, 2 * count]}}).encode()
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + 2 * count)
            file.seek(-1, io.SEEK_END)
            file.write(name.encode())
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom shoal.shardcast.delta import delta\nimport numpy as np\n"
        "delta.encode_tensor(np.zeros(1, np.uint16), np.ones(1, np.uint16))\n"
        "most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before, folder = most(), Path(sys.argv[1])\n"
        "delta.encode(folder / 'a', folder / 'b', folder / 'd')\n"
        "delta.apply(folder / 'a', folder / 'd', folder / 'c')\n"
        "print(most() - before)"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert int(done.stdout) < 50_000, done.stderr
    assert delta.hash_of(tmp_path / "c") == delta.hash_of(tmp_path / "b")
    assert time.monotonic() - began < 60
