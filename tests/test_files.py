"""Files appear whole or not at all: against kill -9, races, a full disk and a read-only one."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.errors import StorageError
from shoal.files import (
    STAGING,
    cache_dir,
    disk_errors,
    locked,
    make_directory,
    parse_json,
    read_regular,
    remove_staging,
    whole_directory,
    write_whole,
)
from tests.support.small_disk import run_on_small_disk

# Writes files of ever new content and length; each ends with the hash of what stands before it.
WRITE_FOREVER = """
import hashlib, itertools, sys
from pathlib import Path
from shoal.files import write_whole
path = Path(sys.argv[1])
for number in itertools.count():
    body = bytes([number % 251]) * (1 + number * 7919 % 300_000)
    write_whole(path, body + hashlib.sha256(body).digest())
"""

WRITE_ONCE = """
import os, sys, time
from pathlib import Path
from shoal.files import write_whole
folder, me, files = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
(folder / f"ready-{me}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
begin = (folder / "go").stat().st_mtime + 0.05
for number in range(files):
    while time.time() < begin + number * 0.003:  # all of them at the same moment
        pass
    try:
        write_whole(folder / f"{number}.txt", me.encode(), once=True)
        print(number)
    except FileExistsError:
        pass
"""


def staged(folder: Path) -> list[Path]:
    return list(folder.glob(f"{STAGING}*"))


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    write_whole(tmp_path / "a" / "b" / "file", b"data")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"data"


def test_a_writer_killed_at_any_moment_never_leaves_a_torn_file(tmp_path: Path) -> None:
    path, rng, seen = tmp_path / "file", random.Random(0), set[bytes]()
    for kill in range(4):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen([sys.executable, "-c", WRITE_FOREVER, str(path)])
        try:
            while not path.exists():
                assert writer.poll() is None
                time.sleep(0.001)
            end = time.monotonic() + rng.uniform(0.1, 0.4)
            while time.monotonic() < end or len(seen) < 3 * (kill + 1):  # a disk may take long for each
                assert writer.poll() is None
                data = path.read_bytes()
                seen.add(data[-32:])
                assert hashlib.sha256(data[:-32]).digest() == data[-32:]
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        data = path.read_bytes()
        assert hashlib.sha256(data[:-32]).digest() == data[-32:]
    assert len(seen) > 10, "the reader must have seen the file change"


def test_what_a_killed_writer_left_behind_can_be_cleared_away(tmp_path: Path) -> None:
    (tmp_path / f"{STAGING}abc").write_bytes(b"half")
    (tmp_path / f"{STAGING}dir").mkdir()
    (tmp_path / f"{STAGING}dir" / "file").write_bytes(b"half")
    write_whole(tmp_path / "whole", b"data")
    remove_staging(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["whole"]


def test_writing_once_leaves_the_first_file_as_it_is(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", b"first", once=True)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "file", b"second", once=True)
    assert (tmp_path / "file").read_bytes() == b"first"
    assert staged(tmp_path) == []


def test_of_racing_processes_exactly_one_writes_each_file(tmp_path: Path) -> None:
    files, names = 100, ["a", "b", "c", "d"]
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE_ONCE, str(tmp_path), name, str(files)], stdout=subprocess.PIPE, text=True
        )
        for name in names
    ]
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("ready-*"))) < len(names) and time.monotonic() < deadline:
        time.sleep(0.01)
    (tmp_path / "go").touch()
    winners: dict[int, str] = {}
    for name, racer in zip(names, racers, strict=True):
        out, _ = racer.communicate(timeout=60)
        assert racer.returncode == 0
        for line in out.split():
            assert int(line) not in winners, f"{name} and {winners[int(line)]} both won {line}"
            winners[int(line)] = name
    assert {n: (tmp_path / f"{n}.txt").read_text() for n in range(files)} == winners


def test_a_directory_appears_only_when_its_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with whole_directory(target) as staging:
        (staging / "sub").mkdir()
        (staging / "sub" / "file").write_text("data")
        assert not target.exists()
    assert (target / "sub" / "file").read_text() == "data"
    assert staged(target.parent) == []


def test_a_directory_whose_block_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> None:
        with whole_directory(tmp_path / "target") as staging:
            (staging / "file").write_text("data")
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    with whole_directory(tmp_path / "target") as staging:
        (staging / "file").write_text("first")
    with pytest.raises(OSError, match="not empty"), whole_directory(tmp_path / "target") as staging:
        (staging / "file").write_text("second")
    assert (tmp_path / "target" / "file").read_text() == "first"
    assert staged(tmp_path) == []


def test_a_published_directory_can_be_read_by_others(tmp_path: Path) -> None:
    with whole_directory(tmp_path / "target") as staging:
        (staging / "file").write_text("data")
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(("umask", "file", "folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_what_is_written_follows_the_umask_whoever_wrote_it(tmp_path: Path, umask: int, file: int, folder: int) -> None:
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "file", b"data")
        write_whole(tmp_path / "once", b"data", once=True)
        with whole_directory(tmp_path / "target") as staging:
            (staging / "private").write_text("data")
            (staging / "private").chmod(0o600)  # as safetensors does
    finally:
        os.umask(before)
    names = ("file", "once", "target/private", "target")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in names] == [file, file, file & 0o666, folder]


@pytest.mark.parametrize("kind", ["file", "directory", "dangling link"])
def test_what_is_replaced_stays_until_the_new_one_is_whole(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    match kind:
        case "file":
            target.write_text("old")
        case "directory":
            target.mkdir()
            (target / "file").write_text("old")
        case _:
            target.symlink_to("nowhere")

    def fail() -> None:
        with whole_directory(target, replace=True):
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        fail()
    assert os.path.lexists(target)
    assert kind != "directory" or (target / "file").read_text() == "old"
    with whole_directory(target, replace=True) as staging:
        (staging / "file").write_text("new")
    assert (target / "file").read_text() == "new"
    assert staged(tmp_path) == []


def test_a_file_where_a_directory_is_needed_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = rf"{tmp_path / 'file'} is not a directory; remove it or give another place"
    with pytest.raises(StorageError, match=said):
        make_directory(tmp_path / "file" / "deep" / "er")
    with pytest.raises(StorageError, match=said):
        write_whole(tmp_path / "file" / "lease", b"", once=True)
    with pytest.raises(StorageError, match=said), locked(tmp_path / "file" / "lock", "taken"):
        pass


def test_a_name_that_is_too_long_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="File name too long; give a shorter one"):
        write_whole(tmp_path / ("a" * 300) / "file", b"")


def test_only_a_regular_file_of_a_sane_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    assert read_regular(tmp_path / "file") == b"data"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("pipe", "link", "nowhere", "."):
        with pytest.raises(OSError, match=r"regular|symbolic|No such|directory"):
            read_regular(tmp_path / name)
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_regular(tmp_path / "file", max_bytes=3)


def test_what_is_refused_is_named_by_its_path_and_left_closed(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as refused:
        read_regular(tmp_path)
    assert refused.value.filename == str(tmp_path)
    held = list(Path("/proc/self/fd").iterdir())
    assert tmp_path not in [file.readlink() for file in held if file.is_symlink()]


FILL = """
import os, sys
from pathlib import Path
from shoal.errors import StorageError
from shoal.files import write_whole, whole_directory
disk = Path(sys.argv[1])
"""


def test_a_full_disk_costs_nothing_that_was_there_and_names_the_file(tmp_path: Path) -> None:
    code = FILL + (
        "write_whole(disk / 'state', b'old')\n"
        "try:\n"
        "    write_whole(disk / 'state', bytes(1_000_000))\n"
        "except StorageError as error:\n"
        "    print(error)\n"
        "print((disk / 'state').read_bytes(), os.listdir(disk))\n"
    )
    said, left = run_on_small_disk(tmp_path / "disk", 256, code).splitlines()
    assert said.startswith(f"{tmp_path / 'disk' / 'state'}: the disk is full")
    assert "nothing was lost: free some space and start again" in said
    assert left == "b'old' ['state']"


def test_a_full_disk_leaves_no_half_directory(tmp_path: Path) -> None:
    code = FILL + (
        "try:\n"
        "    with whole_directory(disk / 'v1') as staging:\n"
        "        (staging / 'small').write_bytes(b'fits')\n"
        "        (staging / 'large').write_bytes(bytes(1_000_000))\n"
        "except StorageError as error:\n"
        "    print(error)\n"
        "print(os.listdir(disk))\n"
    )
    said, left = run_on_small_disk(tmp_path / "disk", 256, code).splitlines()
    assert said.startswith(f"{tmp_path / 'disk' / 'v1'}: the disk is full")
    assert left == "[]"


def test_a_disk_that_fills_up_under_a_library_in_rust_is_told_the_same_way(tmp_path: Path) -> None:
    code = FILL + (
        "import numpy\n"
        "from safetensors.numpy import save_file\n"
        "try:\n"
        "    with whole_directory(disk / 'v1') as staging:\n"
        "        save_file({'a': numpy.zeros(1_000_000)}, staging / 'model.safetensors')\n"
        "except StorageError as error:\n"
        "    print(error)\n"
        "print(os.listdir(disk))\n"
    )
    said, left = run_on_small_disk(tmp_path / "disk", 256, code).splitlines()
    assert said.startswith(f"{tmp_path / 'disk' / 'v1'}: the disk is full")
    assert left == "[]"


def test_a_read_only_disk_is_told_by_the_file_that_could_not_be_written(tmp_path: Path) -> None:
    code = FILL + (
        "import subprocess\n"
        "subprocess.run(['mount', '-o', 'remount,ro', str(disk)], check=True)\n"
        "try:\n"
        "    write_whole(disk / 'state', b'new')\n"
        "except StorageError as error:\n"
        "    print(error)\n"
    )
    said = run_on_small_disk(tmp_path / "disk", 256, code)
    assert said == f"{tmp_path / 'disk' / 'state'}: cannot be written (Read-only file system)\n"


def test_an_error_that_is_not_the_disks_keeps_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), disk_errors(tmp_path):
        (tmp_path / "nowhere").read_bytes()
    with pytest.raises(KeyError), disk_errors(tmp_path):
        raise KeyError("x")


def test_the_cache_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("SHOAL_CACHE", raising=False)
    assert cache_dir() == tmp_path / "xdg" / "shoal"
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"


def test_deep_nesting_is_an_error_even_where_a_library_raised_the_recursion_limit() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        for text in ("[" * 100_000, '{"a":' * 100_000, b"[" * 1000 + b"]" * 1000):
            with pytest.raises(ValueError, match="recursion"):
                parse_json(text)
    finally:
        sys.setrecursionlimit(before)
    assert parse_json('{"a": [1, 2.5, null, "x"]}') == {"a": [1, 2.5, None, "x"]}
