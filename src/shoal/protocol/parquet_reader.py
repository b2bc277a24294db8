"""Isolated Parquet reader: strangers' files are decoded in a child process with little memory and little time.

A file of a few kilobytes can say that it holds gigabytes, and some files end the process that reads them. Nothing in
pyarrow bounds either, so the operating system does: what reads a file may die.

A file whose bytes break a rule is a RolloutError. A reader that died or ran out of memory or time is an UnreadError:
another machine may have read the same bytes, so nobody is blamed for them. Bombs whose footer tells what they unfold to
break a rule before anything is unfolded.

The table comes back as an Arrow IPC stream over the pipe, into one buffer that its arrays are then views of.
"""

import atexit
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from shoal.errors import RolloutError, UnreadError
from shoal.subproc import Child, ChildError, say

# Address space beyond that of an idle reader, besides what the samples themselves may take.
ROOM = 96 << 20
# A read may take so long, and a second more for each of so many bytes that the samples may take.
READ_S = 60.0
BYTES_PER_S = 8 << 20
# Of the processor, however busy the machine is: pages of a few bytes can unfold to gigabytes that hold one value each,
# one after the other, and an honest file is read at many times this rate. Who judges reads nothing else meanwhile.
MAX_CPU_S = 5
BYTES_PER_CPU_S = 32 << 20
# A file that its reader failed on is read once more, in a new process that has so many times the memory.
MORE_MEMORY = 4
# Bytes that one value takes when it is unfolded, for text and bytes the least.
WIDTHS = {"BOOLEAN": 0, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
# An honest footer has a few kilobytes; what is in it is parsed by everyone who counts files.
MAX_FOOTER = 1 << 18
# What the stream adds to the bytes of its table: the schema with the file's footer, and padding.
ROOM_FOR_STREAM = 1 << 20
TOO_LONG = "it keeps its reader busier than any file of its size does"
FRUGAL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "ARROW_IO_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class Reader:
    """A reading process; it is started when it is first needed and again when a file has ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None

    def read(self, path: Path, max_bytes: int | None) -> Any:
        """The file as an Arrow table of at most `max_bytes` bytes, without rows if None.

        A RolloutError if its bytes show that it is not one, an UnreadError if they could not be read here. The footer
        is the metadata of its schema.
        """
        with self._lock:
            header, data = self._ask(path, max_bytes, 1)
            if "unread" in header and header["unread"] != TOO_LONG:
                self.close()
                header, data = self._ask(path, max_bytes, MORE_MEMORY)
        if "unread" in header:
            often = "" if header["unread"] == TOO_LONG else ", twice"
            raise UnreadError(f"{path.name}: could not be read here{often}: {header['unread']}", again=False)
        if "error" in header:
            raise RolloutError(f"{path.name}: {header['error']}")
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all()

    def close(self) -> None:
        if (child := self._child) is not None:
            self._child = None
            child.close()

    def _ask(self, path: Path, max_bytes: int | None, memory: int) -> tuple[Mapping[str, Any], bytearray]:
        most = max_bytes or 0
        read_s = READ_S + most / BYTES_PER_S
        deadline = time.monotonic() + read_s
        if self._child is None:
            command = [sys.executable, "-m", "shoal.protocol.parquet_reader"]
            self._child = Child(command, {**os.environ, **FRUGAL}, show_stderr=False)
        child = self._child
        try:
            seconds = MAX_CPU_S + most // BYTES_PER_CPU_S
            asked = {"path": str(path.absolute()), "max_bytes": max_bytes, "memory": memory, "seconds": seconds}
            child.send([asked], READ_S)
            header = child.receive(deadline - time.monotonic())
            if (size := header.get("size", 0)) > most + ROOM_FOR_STREAM:
                raise ChildError(f"said that {size} bytes follow")
            return header, child.read(size, deadline - time.monotonic())
        except ChildError:
            code = child.code()
            self.close()
            if code == -signal.SIGXCPU:
                return {"unread": TOO_LONG}, bytearray()
            return {"unread": f"its reader ended, or took longer than {read_s:.0f} s"}, bytearray()


READER = Reader()
atexit.register(READER.close)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """In the reading process: answers one request per line until there are no more."""
    idle = _address_space()
    for line in requests:
        request = json.loads(line)
        _limit(idle, request["memory"] * (ROOM + 4 * (request["max_bytes"] or 0)))
        _limit_time(request["seconds"])
        try:
            table = _unfold(request["path"], request["max_bytes"])
            size = _stream_size(table)
        except Exception as error:  # the file decides what is raised
            say(answers, _said(error, request["max_bytes"] is None))
            continue
        say(answers, {"size": size})
        _send(table, pa.PythonFile(answers, mode="w"))
        answers.flush()
        del table


def _send(table: Any, sink: Any) -> None:
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)


def _stream_size(table: Any) -> int:
    sink = pa.MockOutputStream()
    _send(table, sink)
    return int(sink.size())


def _said(error: Exception, footer: bool) -> dict[str, object]:
    """Whether the bytes are to blame, or what this machine could give their reader."""
    if isinstance(error, MemoryError) or "bad_alloc" in str(error):
        return {"unread": "it takes more memory than its reader has"}
    if isinstance(error, OSError) and error.errno is not None:  # without one it is pyarrow's word for damaged bytes
        return {"unread": f"the disk refused ({error.strerror})"}
    what = "not a readable Parquet file" if footer else "damaged"
    return {"error": f"{what} ({str(error)[:500]})"}


def _unfold(path: str, max_bytes: int | None) -> Any:
    """The file as a table, whose metadata is the file's; without rows if `max_bytes` is None."""
    import pyarrow.parquet as pq

    with Path(path).open("rb") as tail:
        if tail.seek(0, os.SEEK_END) < 8:
            raise ValueError("too short to have a footer")
        tail.seek(-8, os.SEEK_END)
        if (size := int.from_bytes(tail.read(4), "little")) > MAX_FOOTER:
            raise ValueError(f"footer of {size} bytes, at most {MAX_FOOTER} are read")
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        footer = {**(file.metadata.metadata or {}), b"shoal.rows": str(file.metadata.num_rows).encode()}
        if max_bytes is not None and (least := _min_bytes(file.metadata)) > max_bytes:
            raise ValueError(f"unfolds to {least} bytes, allowed {max_bytes}")
        table = file.schema_arrow.empty_table() if max_bytes is None else file.read(use_threads=False)
    if max_bytes is not None and table.nbytes > max_bytes:
        raise ValueError(f"unfolds to {table.nbytes} bytes, allowed {max_bytes}")
    table.validate(full=True)
    return table.replace_schema_metadata(footer)


def _min_bytes(metadata: Any) -> int:
    """What the values take at least that the footer counts: repeated ones take no room in a file."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    return sum(chunk.num_values * WIDTHS.get(chunk.physical_type, 1) for chunk in chunks)


def _address_space() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 1 << 30  # no Linux: an estimate


def _limit(idle: int, room: int) -> None:
    import resource

    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (idle + room, resource.RLIM_INFINITY))


def _limit_time(seconds: int) -> None:
    """From now on; the system ends the process after it."""
    import resource

    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + seconds, resource.RLIM_INFINITY))


if __name__ == "__main__":
    import pyarrow.parquet

    serve(sys.stdin.buffer, sys.stdout.buffer)
