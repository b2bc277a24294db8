"""A rollout file with a column stored in pages of a few bytes that each unfold to megabytes and hold one value."""

import struct
from typing import Any

STOP, TRUE, FALSE, I32, I64, BINARY, LIST, STRUCT = 0, 1, 2, 5, 6, 8, 9, 12
BLOCK = 1 << 17


class Footer:
    """Thrift's compact protocol, as far as Parquet's footers go: structs as lists of (field, kind, value)."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def read(self, kind: int = STRUCT) -> Any:
        if kind == STRUCT:
            fields, last = [], 0
            while (head := self._data[self._at]) != STOP:
                self._at += 1
                last = last + (head >> 4) if head >> 4 else self._number() >> 1
                fields.append((last, head & 15, self.read(head & 15)))
            self._at += 1
            return fields
        if kind == LIST:
            head = self._data[self._at]
            self._at += 1
            size = head >> 4 if head >> 4 < 15 else self._number()
            return head & 15, [self.read(head & 15) for _ in range(size)]
        if kind == BINARY:
            size = self._number()
            self._at += size
            return self._data[self._at - size : self._at]
        if kind in (TRUE, FALSE):
            return None
        if kind == 3:
            self._at += 1
            return self._data[self._at - 1]
        return self._number()  # zigzag, as it is


def number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def written(kind: int, value: Any) -> bytes:
    if kind == STRUCT:
        out, last = b"", 0
        for field, of, content in value:
            gap = field - last
            out += bytes([gap << 4 | of]) if 0 < gap < 16 else bytes([of]) + number(field << 1)
            out, last = out + written(of, content), field
        return out + b"\0"
    if kind == LIST:
        of, items = value
        head = bytes([len(items) << 4 | of]) if len(items) < 15 else bytes([240 | of]) + number(len(items))
        return head + b"".join(written(of, item) for item in items)
    if kind == BINARY:
        return number(len(value)) + bytes(value)
    if kind in (TRUE, FALSE):
        return b""
    return bytes([value]) if kind == 3 else number(value)


def folded(size: int) -> bytes:
    """Zeros as a zstd frame: 4 bytes for each 128 KiB."""
    blocks = [((BLOCK << 3) | 2).to_bytes(3, "little") + b"\0"] * (size // BLOCK)
    blocks[-1] = ((BLOCK << 3) | 3).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", size) + b"".join(blocks)


def with_hollow_pages(file: bytes, columns: list[int], size: int) -> bytes:
    """The file with these columns, plain and of fixed width, in pages that unfold to `size` bytes for each value."""
    length = int.from_bytes(file[-8:-4], "little")
    data, footer = file[: -8 - length], dict_of(Footer(file[-8 - length : -8]).read())
    rows = footer[3][1] >> 1
    body = folded(size)
    head = [(1, I32, 0), (2, I32, size << 1), (3, I32, len(body) << 1)]
    page = written(STRUCT, [*head, (5, STRUCT, [(1, I32, 2), (2, I32, 0), (3, I32, 6), (4, I32, 6)])]) + body
    for group in footer[4][1][1]:
        for column in columns:
            chunk = dict_of(dict_of(group)[1][1][1][column])
            inner = {field: (kind, value) for field, kind, value in chunk[3][1] if field in (1, 2, 3, 4, 5)}
            pages = page * rows
            inner |= {6: (I64, size * rows << 1), 7: (I64, len(pages) << 1), 9: (I64, len(data) << 1)}
            chunk[3] = (STRUCT, [(field, *inner[field]) for field in sorted(inner)])
            kept = {field: chunk[field] for field in chunk if field in (2, 3)}
            dict_of(group)[1][1][1][column] = [(field, *kept[field]) for field in sorted(kept)]
            data += pages
    tail = written(STRUCT, [(field, *footer[field]) for field in sorted(footer)])
    return data + tail + struct.pack("<I", len(tail)) + b"PAR1"


def dict_of(fields: Any) -> dict[int, Any]:
    return {field: (kind, value) for field, kind, value in fields}
