"""Strangers' Parquet files are unfolded in a process of their own, with little memory and little time.

A file of a few kilobytes can say that it holds gigabytes, and some files end the process that reads them. Nothing in
pyarrow bounds either, so the operating system does: what reads a file may die, and the file is refused.
"""

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from shoal.errors import RolloutError
from shoal.files import parse_json

# Address space beyond that of an idle reader, besides what the samples themselves may take.
ROOM = 96 << 20
READ_S = 60.0
# An honest footer has a few kilobytes; what is in it is parsed by everyone who counts files.
MAX_FOOTER = 1 << 18
FRUGAL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "ARROW_IO_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class Reader:
    """A reading process; it is started when it is first needed and again when a file has ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, path: Path, most: int | None) -> Any:
        """The file as an Arrow table of at most `most` bytes, without rows if None; a RolloutError if it is not one.

        The footer is the metadata of its schema.
        """
        import pyarrow as pa

        with self._lock:
            deadline = time.monotonic() + READ_S
            # Twice: who kills a reader from outside must not spoil an honest file. One that is slow gets no more time.
            answer = self._ask(path, most, deadline) or self._ask(path, most, deadline)
        if answer is None:
            raise RolloutError(f"{path.name}: unfolds to more than samples can be, or ends its reader; refused")
        header, data = answer
        if "error" in header:
            raise RolloutError(f"{path.name}: {header['error']}")
        return pa.ipc.open_stream(data).read_all()

    def close(self) -> None:
        if (process := self._process) is not None:
            self._process = None
            process.kill()
            with suppress(OSError):
                process.communicate()

    def _ask(self, path: Path, most: int | None, deadline: float) -> tuple[Mapping[str, Any], bytes] | None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "shoal.rollout.decode"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **FRUGAL},
                start_new_session=True,
                bufsize=0,
            )
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        try:
            requests.write(json.dumps({"path": str(path.absolute()), "most": most}).encode() + b"\n")
            header = parse_json(_receive(answers, int.from_bytes(_receive(answers, 8, deadline)), deadline))
            return header, _receive(answers, header.get("size", 0), deadline)
        except (OSError, ValueError):
            self.close()
            return None


def _receive(pipe: IO[bytes], size: int, deadline: float) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        left = deadline - time.monotonic()
        ready = left > 0 and select.select([pipe], [], [], left)[0]
        part = pipe.read(min(size, 1 << 20)) if ready else b""
        if not part:
            raise OSError("the reader is gone or too slow")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


READER = Reader()
atexit.register(READER.close)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """In the reading process: answers one request a line until there are no more."""
    idle = _address_space()
    for line in requests:
        request = json.loads(line)
        _limit(idle, request["most"] or 0)
        data = b""
        try:
            data = _unfold(request["path"], request["most"])
            header: dict[str, object] = {"size": len(data)}
        except MemoryError:
            header = {"error": "unfolds to far more bytes than samples can take"}
        except Exception as error:  # the file decides what is raised
            what = "not a readable Parquet file" if request["most"] is None else "damaged"
            header = {"error": f"{what} ({str(error)[:500]})"}
        text = json.dumps(header).encode()
        answers.write(len(text).to_bytes(8) + text + data)
        answers.flush()


def _unfold(path: str, most: int | None) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with Path(path).open("rb") as tail:
        tail.seek(-8, os.SEEK_END)
        if (size := int.from_bytes(tail.read(4), "little")) > MAX_FOOTER:
            raise ValueError(f"footer of {size} bytes, at most {MAX_FOOTER} are read")
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        footer = {**(file.metadata.metadata or {}), b"shoal.rows": str(file.metadata.num_rows).encode()}
        table = file.schema_arrow.empty_table() if most is None else file.read(use_threads=False)
    if most is not None and table.nbytes > most:
        raise ValueError(f"unfolds to {table.nbytes} bytes, allowed {most}")
    table.validate(full=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.with_metadata(footer)) as writer:
        writer.write_table(table.replace_schema_metadata(footer))
    return bytes(sink.getvalue())


def _address_space() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 1 << 30  # no Linux: an estimate


def _limit(idle: int, most: int) -> None:
    import resource

    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (idle + ROOM + 4 * most, resource.RLIM_INFINITY))


if __name__ == "__main__":
    import pyarrow.parquet  # noqa: F401  before the idle size is measured

    serve(sys.stdin.buffer, sys.stdout.buffer)
