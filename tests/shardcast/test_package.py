"""One package on its way in, with threads that come at the wrong moment."""

import os
import threading
from pathlib import Path

import pytest
from blake3 import blake3

from shoal.errors import StorageError
from shoal.shardcast.fetch.package import Job
from shoal.shardcast.format.records import MIB, Entry, Opening, Piece, signed_line
from tests.support.origin_and_relays import KEY, RUN

URL = "http://127.0.0.1:1"
DATA = b"a" * MIB


def job_with_pieces(folder: Path, count: int) -> Job:
    opening = Opening(run=RUN, number=1, kind="full", base=None, piece_size=MIB, time_ms=0, nonce="0" * 16)
    entry = Entry(number=1, kind="full", id=opening.id, base=None, piece_size=MIB, size=None, root=None)
    job = Job(folder / entry.name, entry, KEY.address, [URL])
    job.resume()
    job.listed(URL, signed_line(opening, opening.id, KEY))
    for index in range(count):
        piece = Piece(index=index, file="f", offset=index * MIB, size=MIB, hash=blake3(DATA).hexdigest())
        job.listed(URL, signed_line(piece, opening.id, KEY))
    return job


def test_a_package_dropped_while_a_piece_is_written_does_not_write_into_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_with_pieces(tmp_path, 1)
    write = os.pwrite
    other = tmp_path / "other"
    opened: list[int] = []

    def drop_first(descriptor: int, data: memoryview, at: int) -> int:
        if not opened:
            job.close()
            opened.append(os.open(other, os.O_RDWR | os.O_CREAT))  # takes the number of a descriptor that was closed
        return write(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", drop_first)
    with pytest.raises(StorageError, match="no longer being fetched"):
        job.store(job.pieces[0], memoryview(DATA))
    assert other.read_bytes() == b""
    assert not job.done
    os.close(opened[0])
    assert not job._descriptors, "and none of its own stays open"


def test_what_was_dropped_does_not_come_back_on_the_disk(tmp_path: Path) -> None:
    job = job_with_pieces(tmp_path, 1)
    job.close()
    with pytest.raises(StorageError, match="no longer being fetched"):
        job.store(job.pieces[0], memoryview(DATA))
    assert not (job.folder / "files").exists()


def test_no_piece_is_lost_when_two_threads_look_at_one_queue(tmp_path: Path) -> None:
    job = job_with_pieces(tmp_path, 3)
    taken: list[int] = []

    def take() -> None:
        if job.queued(URL):
            with job.lock:
                taken.extend(piece.index for piece in job.take_run(URL, 1))

    class Interrupted(set[int]):
        """Lets another thread in between the look at a queue and what follows from it."""

        thread: threading.Thread | None = None

        def __contains__(self, index: object) -> bool:
            found = super().__contains__(index)
            if self.thread is None:
                self.thread = threading.Thread(target=take)
                self.thread.start()
                self.thread.join(0.2)
            return found

    job.done = done = Interrupted([0])
    assert job.queued(URL)
    assert done.thread is not None
    done.thread.join()
    while job.queued(URL):
        taken.extend(piece.index for piece in job.take_run(URL, 1))
    assert sorted(taken) == [1, 2]
