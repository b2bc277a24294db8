"""Block codec of a delta: how bytes of the new file follow from those of the base at the same place.

    record   1 byte: kind; 4 bytes, lowest first: how many blocks are the same, or how many bytes follow
    kinds    0 same, 1 steps between bf16 values (delta_kernels), 2 the new bytes in zstd, 3 the new bytes

Memory is bounded by the size of a block on both sides. What a delta says about sizes is checked before anything of that
size is allocated or read.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray

from shoal.errors import DeltaError

SAME, STEPS, ZSTD, RAW = range(4)
RECORD = struct.Struct("<BI")
# Bytes of content in a block: 2^18 values of bf16.
BLOCK = 1 << 19
LEVEL = 3
# The kernels read whole groups of 64 values, and words past the end of what is coded.
PADDING = 128

Bits: TypeAlias = NDArray[np.uint16]
Bytes: TypeAlias = NDArray[np.uint8]


def encode_tensor(a: Bits, b: Bits) -> bytes:
    """What takes the bits of one bf16 tensor to those of another of its shape."""
    if a.dtype != np.uint16 or b.dtype != np.uint16 or a.shape != b.shape:
        raise DeltaError(
            f"a delta from {a.dtype} {a.shape} to {b.dtype} {b.shape}: give the bits of bf16 tensors of one shape "
            "as uint16"
        )
    out: list[bytes] = []
    writer = BlockWriter(out.append)
    base, new = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (a, b))
    for start in range(0, new.size, BLOCK):
        size = min(BLOCK, new.size - start)
        writer.base[:size] = base[start : start + size]
        writer.new[:size] = new[start : start + size]
        writer.add(size, paired=True, steps=True)
    writer.finish()
    return b"".join(out)


def apply_tensor(delta: bytes, a: Bits, out: Bits | None = None) -> Bits:
    """The bits of the tensor that `encode_tensor` was given as b; DeltaError for bytes that are not a delta for a.

    `out` is an array of a's shape to write them to.
    """
    out = np.empty(a.shape, np.uint16) if out is None else out
    if a.dtype != np.uint16 or out.dtype != np.uint16 or out.shape != a.shape or not out.flags.c_contiguous:
        raise DeltaError(
            f"a delta applied to {a.dtype} {a.shape} for {out.dtype} {out.shape}: give arrays of uint16 of one shape"
        )
    stream = _Stream(delta)
    reader = BlockReader(stream.read)
    base = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
    new = out.reshape(-1).view(np.uint8)
    for start in range(0, base.size, BLOCK):
        size = min(BLOCK, base.size - start)
        reader.base[:size] = base[start : start + size]
        new[start : start + size] = reader.next(size, paired=True, steps=True)
    reader.finish()
    if stream.left:
        raise DeltaError(f"delta of a tensor: {stream.left} bytes follow its last block")
    return out


class BlockWriter:
    """Fill `base` and `new`, then `add`; blocks that are the same are counted and written as one record."""

    def __init__(self, write: Callable[[bytes], Any]) -> None:
        self._write = write
        self._kernels = _compiled()
        self._same = 0
        self._zstd = zstandard.ZstdCompressor(level=LEVEL)
        self._coded = np.empty(BLOCK + PADDING, np.uint8)
        self.base, self.new = (np.zeros(BLOCK + PADDING, np.uint8) for _ in range(2))
        self.counts = [0, 0, 0, 0]

    def add(self, size: int, *, paired: bool, steps: bool) -> None:
        """One block of `size` bytes. `paired` says that `base` holds what was there before, `steps` that it is bf16."""
        kind, data = self._coded_as(size, paired, steps)
        self.counts[kind] += 1
        if kind == SAME:
            self._same += 1
            return
        self.finish()
        self._write(RECORD.pack(kind, len(data)))
        self._write(data)

    def finish(self) -> None:
        """Writes what is held back."""
        if self._same:
            self._write(RECORD.pack(SAME, self._same))
        self._same = 0

    def _coded_as(self, size: int, paired: bool, steps: bool) -> tuple[int, bytes]:
        length = size + 1
        if paired and steps:
            a, b = self.base.view(np.uint16), self.new.view(np.uint16)
            length = int(self._kernels.encode(a, b, size // 2, self._coded[: size + self._kernels.SLACK]))
            if length == self._kernels.TOO_LONG:
                length = size + 1
        elif paired and np.array_equal(self.base[:size], self.new[:size]):
            length = 0
        if length == 0:
            return SAME, b""
        if length > size // 2:  # whole bytes may be shorter
            packed = self._zstd.compress(self.new[:size].data)
            if len(packed) < min(length, size):
                return ZSTD, packed
        return (STEPS, self._coded[:length].tobytes()) if length < size else (RAW, self.new[:size].tobytes())


class BlockReader:
    """Fill `base` if the base has bytes for the block, then ask for the `next`."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._kernels = _compiled()
        self._same = 0
        self._zstd = zstandard.ZstdDecompressor()
        self._coded = np.zeros(BLOCK + PADDING, np.uint8)
        self.base, self._new = (np.zeros(BLOCK + PADDING, np.uint8) for _ in range(2))

    def next(self, size: int, *, paired: bool, steps: bool) -> Bytes:
        """The next block's bytes, valid until the one after it."""
        if self._same:
            kind, length = SAME, self._same
        else:
            kind, length = RECORD.unpack(self._exactly(RECORD.size))
        if kind == SAME:
            if not (length and paired):
                raise DeltaError("delta: a block is said to be the same as in the base, which has none there")
            self._same = length - 1
            return self.base[:size]
        if kind == STEPS:
            if not (paired and steps):
                raise DeltaError("delta: steps are given for values that are not bf16 in both files")
            return self._stepped(size, length)
        if kind not in (ZSTD, RAW):
            raise DeltaError(f"delta: a block is of kind {kind}, known are {SAME}..{RAW}")
        if length > size or (kind == RAW and length != size):
            raise DeltaError(f"delta: a block of {size} bytes is said to take {length}")
        data = self._exactly(length)
        return np.frombuffer(unpacked(self._zstd, data, size) if kind == ZSTD else data, np.uint8)

    def finish(self) -> None:
        if self._same:
            raise DeltaError(f"delta: {self._same} more blocks are said to be the same than there are")

    def _stepped(self, size: int, length: int) -> Bytes:
        if length > size:
            raise DeltaError(f"delta: the steps of a block of {size} bytes are said to take {length}")
        self._coded[:length] = np.frombuffer(self._exactly(length), np.uint8)
        self._new[:size] = self.base[:size]
        a, new = self.base.view(np.uint16), self._new.view(np.uint16)
        status = self._kernels.apply(a, size // 2, self._coded, length, new)
        if status != self._kernels.OK:
            why = "end too early or too late" if status == self._kernels.TRUNCATED else "lead out of the block"
            raise DeltaError(f"delta: the steps of a block of {size // 2} values {why}")
        return self._new[:size]

    def _exactly(self, length: int) -> bytes:
        data = self._read(length)
        if len(data) != length:
            raise DeltaError(f"delta: it ends {length - len(data)} bytes too early")
        return data


class _Stream:
    """Bytes to read from the front."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = memoryview(data), 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def read(self, length: int) -> bytes:
        self._at += len(part := bytes(self._data[self._at : self._at + length]))
        return part


def unpacked(zstd: zstandard.ZstdDecompressor, data: bytes, size: int) -> bytes:
    """What zstd makes of the data, which must be one frame that says it holds `size` bytes.

    The size is asked for first: zstandard allocates whatever a frame claims.
    """
    try:
        if zstandard.get_frame_parameters(data).content_size != size:
            raise DeltaError(f"delta: packed data does not hold the {size} bytes that are due")
        content = zstd.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DeltaError(f"delta: packed data cannot be unpacked ({error})") from error
    if len(content) != size:
        raise DeltaError(f"delta: packed data holds {len(content)} bytes, {size} are due")
    return content


@cache
def _compiled() -> Any:
    """The kernels. numba is imported here, at first use; compiling takes seconds, once."""
    from shoal.shardcast.delta import kernels as delta_kernels

    assert 2 * delta_kernels.BLOCK == BLOCK
    return delta_kernels
