"""What is fetched is what was published, or an error; what is half written is not there."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from shoal.errors import WeightsError
from shoal.models.weights import piece_size_of, plan_files, specs_of, write_file, write_index
from shoal.protocol.stores import Version
from shoal.protocol.version_directory import MANIFEST, DirectoryChannel
from tests.support.sharded_versions import counted_hashing

PUBLISH_FOREVER = """
import itertools, sys
from pathlib import Path
from shoal.protocol.version_directory import DirectoryChannel
channel = DirectoryChannel(Path(sys.argv[1]), keep=1000)
for number in itertools.count((channel.numbers() or [-1])[-1] + 1):
    with channel.publish(number) as staging:
        for part in range(3):
            (staging / f"part-{part}").write_bytes(bytes([number % 251]) * 50_000)
"""


@pytest.fixture
def channel(tmp_path: Path) -> DirectoryChannel:
    return DirectoryChannel(tmp_path / "weights", keep=3)


def publish(channel: DirectoryChannel, number: int, data: bytes = b"weights") -> Version:
    with channel.publish(number) as staging:
        (staging / "model.safetensors").write_bytes(data)
        (staging / "sub").mkdir()
        (staging / "sub" / "extra").write_bytes(b"extra")
    version = channel.version(number)
    assert version is not None
    return version


def test_a_version_is_fetched_as_it_was_published(channel: DirectoryChannel) -> None:
    version = publish(channel, 0)
    folder = channel.fetch(version)
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert (folder / "sub" / "extra").read_bytes() == b"extra"


def test_before_anything_is_published_there_is_no_version(channel: DirectoryChannel) -> None:
    assert channel.latest() is None
    assert channel.version(0) is None
    assert channel.numbers() == []


def test_the_root_names_content_and_number(tmp_path: Path) -> None:
    def root(folder: str, number: int, data: bytes) -> str:
        return publish(DirectoryChannel(tmp_path / folder, keep=5), number, data).root

    assert root("a", 1, b"same") == root("b", 1, b"same")
    assert root("c", 1, b"other") != root("d", 1, b"same") != root("e", 2, b"same")


def test_the_newest_version_is_the_one_with_the_highest_number(channel: DirectoryChannel) -> None:
    versions = [publish(channel, number, bytes([number])) for number in (0, 9, 10)]
    assert channel.latest() == versions[-1]


@pytest.mark.parametrize("position", [0, 3, 6])
def test_a_byte_that_was_altered_is_never_believed(channel: DirectoryChannel, position: int) -> None:
    version = publish(channel, 1)
    path = channel.fetch(version) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=r"version 1: model\.safetensors is not the file that was published"):
        channel.fetch(version)


def test_a_truncated_file_is_never_believed(channel: DirectoryChannel) -> None:
    version = publish(channel, 1)
    (channel.fetch(version) / "sub" / "extra").write_bytes(b"")
    with pytest.raises(WeightsError, match="sub/extra is not the file that was published"):
        channel.fetch(version)


def test_a_missing_file_is_noticed(channel: DirectoryChannel) -> None:
    version = publish(channel, 1)
    (channel.fetch(version) / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"version 1: no longer here or damaged .*model\.safetensors"):
        channel.fetch(version)


def test_a_version_that_is_gone_is_an_error(channel: DirectoryChannel) -> None:
    version = publish(channel, 1)
    shutil.rmtree(channel.fetch(version))
    assert channel.version(1) is None
    with pytest.raises(WeightsError, match="version 1: no longer here"):
        channel.fetch(version)


def test_a_manifest_of_another_version_is_refused(channel: DirectoryChannel) -> None:
    one, two = publish(channel, 1, b"one"), publish(channel, 2, b"two")
    shutil.copy(channel.fetch(two) / MANIFEST, channel.fetch(one) / MANIFEST)
    with pytest.raises(WeightsError, match=f"version 1: root [0-9a-f]{{12}}, expected {one.root[:12]}"):
        channel.fetch(one)


def test_a_manifest_that_was_rewritten_to_fit_altered_weights_is_refused(channel: DirectoryChannel) -> None:
    version = publish(channel, 1)
    folder = channel.fetch(version)
    other = DirectoryChannel(folder.parent.parent / "other", keep=3)
    forged = publish(other, 1, b"altered")
    shutil.rmtree(folder)
    shutil.copytree(other.fetch(forged), folder)
    with pytest.raises(WeightsError, match="version 1: root"):
        channel.fetch(version)


def test_a_root_that_its_own_manifest_does_not_have_is_refused(channel: DirectoryChannel) -> None:
    path = channel.fetch(publish(channel, 1)) / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"root": "00" * 32}))
    version = channel.version(1)
    assert version is not None
    with pytest.raises(WeightsError, match="expected 000000000000"):
        channel.fetch(version)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "3", '"x"', "null"])
def test_a_version_with_a_manifest_that_is_none_is_no_version(channel: DirectoryChannel, text: str) -> None:
    version = publish(channel, 1)
    (channel.fetch(version) / MANIFEST).write_text(text)
    with pytest.raises(WeightsError, match="version 1"):
        channel.fetch(version)
    assert channel.version(1) is None


def test_a_half_written_version_is_invisible(channel: DirectoryChannel) -> None:
    publish(channel, 0)
    with channel.publish(1) as staging:
        (staging / "model.safetensors").write_bytes(b"half")
        assert channel.numbers() == [0]
        latest = channel.latest()
    assert latest is not None
    assert latest.number == 0
    assert channel.numbers() == [0, 1]


def test_a_version_whose_writing_fails_was_never_there(channel: DirectoryChannel, tmp_path: Path) -> None:
    def fail() -> None:
        with channel.publish(0) as staging:
            (staging / "model.safetensors").write_bytes(b"half")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_version_is_written_once(channel: DirectoryChannel) -> None:
    version = publish(channel, 1, b"first")
    with pytest.raises(WeightsError, match=r"version 1: already published at .*a version is written once"):
        publish(channel, 1, b"second")
    assert (channel.fetch(version) / "model.safetensors").read_bytes() == b"first"


def test_a_publisher_killed_at_any_moment_leaves_only_whole_versions(tmp_path: Path) -> None:
    channel = DirectoryChannel(tmp_path / "weights", keep=3)
    fetched = 0
    for _ in range(3):
        before = (channel.numbers() or [-1])[-1]
        publisher = subprocess.Popen([sys.executable, "-c", PUBLISH_FOREVER, str(tmp_path / "weights")])
        try:
            deadline = time.monotonic() + 30
            while (channel.numbers() or [-1])[-1] < before + 5 and time.monotonic() < deadline:
                assert publisher.poll() is None
                if version := channel.latest():
                    channel.fetch(version)
                    fetched += 1
        finally:
            publisher.send_signal(signal.SIGKILL)
            publisher.wait()
        version = channel.latest()
        assert version is not None
        channel.fetch(version)
    assert fetched > 3
    publish(channel, channel.numbers()[-1] + 1)
    assert not [entry for entry in (tmp_path / "weights").iterdir() if not entry.name.startswith("v")]


def test_the_base_model_and_the_newest_versions_are_kept(channel: DirectoryChannel) -> None:
    for number in range(8):
        publish(channel, number)
    assert channel.numbers() == [0, 5, 6, 7]


def test_versions_that_no_checkpoint_backs_are_retracted(channel: DirectoryChannel) -> None:
    for number in range(4):
        publish(channel, number, bytes([number]))
    assert channel.retract(after=1) == [2, 3]
    assert channel.numbers() == [0, 1]
    assert channel.retract(after=1) == []


def test_a_version_published_anew_after_a_retraction_is_another_version(channel: DirectoryChannel) -> None:
    publish(channel, 0)
    lost = publish(channel, 1, b"before")
    channel.retract(after=0)
    again = publish(channel, 1, b"after")
    assert lost != again
    with pytest.raises(WeightsError, match="version 1: root"):
        channel.fetch(lost)


def test_while_a_version_is_being_removed_the_one_before_it_is_the_newest(channel: DirectoryChannel) -> None:
    base = publish(channel, 0)
    (channel.fetch(publish(channel, 1, b"one")) / MANIFEST).unlink()
    assert channel.latest() == base


def test_a_reader_always_finds_a_version_while_others_are_published_and_retracted(channel: DirectoryChannel) -> None:
    publish(channel, 0)
    missing: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                if channel.latest() is None:
                    missing.append("nothing")
            except WeightsError as error:
                missing.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 60):
        publish(channel, number)
        if number % 2:
            channel.retract(after=number - 1)
    done.set()
    reader.join()
    assert missing == []


def test_other_things_in_the_directory_are_not_versions(channel: DirectoryChannel, tmp_path: Path) -> None:
    publish(channel, 2)
    for name in ("v", "vx", "version3", "v3.bak", ".v000009", "v²", "v3", "v0000003", "v999999", "v99999999999"):
        (tmp_path / "weights" / name).mkdir()
    shutil.copytree(tmp_path / "weights" / "v000002", tmp_path / "weights" / "v000900")
    os.mkfifo(tmp_path / "weights" / "v999999" / MANIFEST)
    assert channel.numbers() == [2]
    for number in range(3, 9):
        publish(channel, number)
    assert channel.numbers() == [6, 7, 8]


def test_what_was_just_published_is_never_cleared_away(channel: DirectoryChannel) -> None:
    for number in (50, 51, 52, 53):
        publish(channel, number)
    assert channel.fetch(publish(channel, 3))


@pytest.mark.parametrize("kind", ["file", "link", "damaged", "without manifest"])
def test_what_is_no_whole_version_is_replaced_by_one(channel: DirectoryChannel, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "weights" / "v000001"
    publish(channel, 0)
    match kind:
        case "file":
            target.write_bytes(b"foreign")
        case "link":
            target.symlink_to("nowhere")
        case "damaged":
            publish(channel, 1)
            (target / "model.safetensors").write_bytes(b"other")
        case _:
            publish(channel, 1)
            (target / MANIFEST).unlink()
    assert not channel.is_whole(1)
    assert channel.fetch(publish(channel, 1)) == target


def write_part(staging: Path, rank: int) -> None:
    weights = {f"layers.{i}": torch.full((1 << 19,), float(i)).bfloat16() for i in range(8)}
    files = plan_files(specs_of(weights), file_bytes=2 << 20)
    for file in files[rank::2]:
        write_file(staging, file, ((name, weights[name]) for name in file.tensors), piece_size_of(files))
    if rank == 0:
        write_index(staging, files)


def test_processes_that_write_one_version_hash_what_they_write(
    channel: DirectoryChannel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = multiprocessing.get_context("fork").Process
    with counted_hashing(monkeypatch) as counted:
        with channel.publish(1) as staging:
            ranks = [start(target=write_part, args=(staging, rank)) for rank in range(2)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join(60)
            assert [rank.exitcode for rank in ranks] == [0, 0]
        assert counted.total < 1 << 16, "what the ranks hashed is not hashed again"
    alone = DirectoryChannel(tmp_path / "alone", keep=3)
    with alone.publish(1) as staging:
        write_part(staging, 0)
        write_part(staging, 1)
        for note in staging.glob(".*.pieces"):
            note.unlink()
    version = channel.version(1)
    assert version == alone.version(1)
    assert version is not None
    assert channel.fetch(version).is_dir()


def test_a_file_that_changed_after_it_was_hashed_is_hashed_again(channel: DirectoryChannel) -> None:
    with channel.publish(1) as staging:
        write_part(staging, 0)
        write_part(staging, 1)
        path = next(staging.glob("*.safetensors"))
        with path.open("r+b") as file:
            file.seek(5000)
            file.write(b"?")
    version = channel.version(1)
    assert version is not None
    assert (channel.fetch(version) / path.name).read_bytes()[5000:5001] == b"?"


def test_a_later_version_is_a_whole_model_with_what_it_lacks_linked_from_the_base(channel: DirectoryChannel) -> None:
    with channel.publish(0) as staging:
        for name in ("config.json", "tokenizer.json", "model.safetensors", "table.json"):
            (staging / name).write_text(f"{name} of version 0")
    with channel.publish(1) as staging:
        (staging / "model-00001-of-00002.safetensors").write_text("weights")
        (staging / "tokenizer.json").write_text("its own")
    version = channel.version(1)
    assert version is not None
    folder = channel.fetch(version)
    names = {"config.json", "tokenizer.json", "model-00001-of-00002.safetensors"}
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == names
    assert (folder / "tokenizer.json").read_text() == "its own"
    assert (folder / "config.json").samefile(folder.parent / "v000000" / "config.json")
