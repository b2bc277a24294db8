"""Signed records of the origin: the head, and a package's opening, pieces and closing.

Each record stands on its own and is bound to its package's id, so a list of pieces is right in any order and with any
of them missing: a server's manifest lists the pieces that it has, and nothing else. Messages begin with a domain: no
other signature of the same key can pass for one of these.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from blake3 import blake3
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from shoal.crypto.keys import Key
from shoal.crypto.signed import canonical, check_signed, message
from shoal.errors import ShardcastError

MIB = 1 << 20
SMALLEST_PIECE, LARGEST_PIECE = MIB, 4 * MIB
MAX_LINE = 1 * MIB  # bytes of one manifest line; only a closing with thousands of files comes near
MAX_SHORT_LINE = 1024  # bytes of any other
MAX_MANIFEST = 64 * MIB  # 200,000 pieces: 800 GB in pieces of 4 MiB
MAX_HEAD = MIB // 4
MAX_RETRACTED = 64
PACKAGE_NAME = re.compile(r"(\d{6,9})-(full|delta)-([0-9a-f]{16})")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def _file_name(name: str) -> str:
    parts = name.split("/")
    if len(name) > 200 or len(parts) > 4 or not all(_PART.fullmatch(part) for part in parts):
        raise ValueError(f"{name[:60]!r} is not a valid file name of a package: up to 4 parts of letters, digits, _.+-")
    return name


FileName = Annotated[str, AfterValidator(_file_name)]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Run = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Kind = Literal["full", "delta"]
Number = Annotated[int, Field(ge=0, lt=10**9)]
Bytes = Annotated[int, Field(ge=0, lt=1 << 50)]


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def canonical(self) -> str:
        return canonical(self.model_dump(mode="json"))


class Base(Record):
    """The version that a delta stands on."""

    number: Number
    root: Hash


class Opening(Record):
    """The first line of a manifest; its hash is the package's id."""

    format: Literal[1] = 1
    run: Run
    number: Number
    kind: Kind
    base: Base | None
    piece_size: Annotated[int, Field(ge=SMALLEST_PIECE, le=LARGEST_PIECE)]
    time_ms: int
    nonce: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]

    @property
    def id(self) -> str:
        return blake3(message("shoal shardcast id 1", self.canonical())).hexdigest()


class Piece(Record):
    """A stretch of one file. All pieces of a file but its last have the package's piece size."""

    index: Annotated[int, Field(ge=0, lt=1 << 24)]
    file: FileName
    offset: Bytes
    size: Annotated[int, Field(ge=1, le=LARGEST_PIECE)]
    hash: Hash


class Closing(Record):
    """The last line. `files` are the package's own, `content` those of the version; for a full package the same."""

    pieces: Annotated[int, Field(ge=0, le=1 << 24)]
    files: tuple[tuple[FileName, Bytes], ...]
    content: tuple[tuple[FileName, Bytes], ...]
    root: Hash


class Entry(Record):
    """A package as the head lists it. `root` is null until it is closed; `size` may be known before."""

    number: Number
    kind: Kind
    id: Hash
    base: Base | None
    piece_size: int
    size: Bytes | None
    root: Hash | None

    @property
    def name(self) -> str:
        return package_name(self.number, self.kind, self.id)


class Head(Record):
    """Everything the origin offers now. The sequence number only ever grows."""

    format: Literal[1] = 1
    run: Run
    sequence: Annotated[int, Field(ge=0, lt=1 << 53)]
    time_ms: int
    packages: tuple[Entry, ...]
    retracted: Annotated[tuple[Hash, ...], Field(max_length=MAX_RETRACTED)] = ()
    """Roots of versions that were taken back, the last ones: what was made with them is nobody's fault."""

    def newest(self, *, closed: bool = False) -> int | None:
        """The highest version number; with `closed`, among those that are complete at the origin."""
        return max((entry.number for entry in self.packages if entry.root or not closed), default=None)


def package_name(number: int, kind: Kind, id: str) -> str:  # noqa: A002
    return f"{number:06d}-{kind}-{id[:16]}"


Tag = Literal["opening", "piece", "closing"]
_KINDS: dict[str, type[Opening] | type[Piece] | type[Closing]] = {
    "opening": Opening,
    "piece": Piece,
    "closing": Closing,
}
_LINE: TypeAdapter[tuple[Tag, dict[str, object], str]] = TypeAdapter(tuple[Tag, dict[str, object], str])
_HEAD: TypeAdapter[tuple[Head, str]] = TypeAdapter(tuple[Head, str])
Line = Opening | Piece | Closing


def signed_line(record: Line, id: str, key: Key) -> bytes:  # noqa: A002
    """One manifest line, with its end."""
    tag = next(tag for tag, kind in _KINDS.items() if type(record) is kind)
    signature = key.sign(_message(tag, id, record))
    return canonical([tag, record.model_dump(mode="json"), signature]).encode() + b"\n"


def read_line(line: bytes) -> tuple[Line, str]:
    """A line's record and signature, not yet checked; ShardcastError for anything else."""
    try:
        tag, body, signature = _LINE.validate_json(line)
        # Through JSON again: strict validation takes lists for tuples only there.
        return _KINDS[tag].model_validate_json(json.dumps(body)), signature
    except (ValidationError, ValueError, RecursionError) as error:
        raise ShardcastError(f"manifest line {line[:40]!r}...: {_first(error)}") from None


def check_line(record: Line, signature: str, id: str, origin: str) -> None:  # noqa: A002
    """Raises ShardcastError unless the origin signed this record for the package with this id."""
    tag = next(tag for tag, kind in _KINDS.items() if type(record) is kind)
    check_signed(_message(tag, id, record), signature, origin, f"{tag} of package {id[:16]}", ShardcastError)


def signed_head(head: Head, key: Key) -> bytes:
    signature = key.sign(_head_message(head))
    return canonical([head.model_dump(mode="json"), signature]).encode() + b"\n"


def read_head(data: bytes, origin: str, run: str | None) -> Head:
    """The head in the bytes, if the origin signed it and it is this run's."""
    try:
        head, signature = _HEAD.validate_json(data)
    except (ValidationError, RecursionError) as error:
        raise ShardcastError(f"head: {_first(error)}") from None
    check_signed(_head_message(head), signature, origin, "head", ShardcastError)
    if run is not None and head.run != run:
        raise ShardcastError(f"head: it is of run {head.run!r}, wanted {run!r}; ask that run's relays")
    return head


def content_root(number: int, piece_size: int, files: Mapping[str, tuple[int, Iterable[str]]]) -> str:
    """Names a version's whole content, its number included: name -> (size, hashes of its pieces in order).

    It follows from the content alone, so a version put together from deltas has the root of the full one.
    """
    return digest_root(number, piece_size, {name: (size, digest(hashes)) for name, (size, hashes) in files.items()})


def digest(hashes: Iterable[str]) -> str:
    """One hash for all pieces of a file."""
    return blake3(b"".join(map(bytes.fromhex, hashes))).hexdigest()


def digest_root(number: int, piece_size: int, files: Mapping[str, tuple[int, str]]) -> str:
    """`content_root` from what `digest` makes of each file."""
    listed = [[name, *facts] for name, facts in sorted(files.items())]
    return blake3(message("shoal shardcast root 1", canonical([number, piece_size, listed]))).hexdigest()


def check_whole(opening: Opening, pieces: Mapping[int, Piece], closing: Closing) -> None:
    """Raises ShardcastError unless the pieces make up exactly the closing's files, and a full package its root."""
    what = f"package {package_name(opening.number, opening.kind, opening.id)}"
    if sorted(pieces) != list(range(closing.pieces)):
        raise ShardcastError(f"{what}: {len(pieces)} pieces, the closing says {closing.pieces}")
    by_file: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces.values():
        by_file[piece.file].append(piece)
    if by_file.keys() - dict(closing.files).keys():
        raise ShardcastError(f"{what}: pieces of files that the closing does not name")
    hashes: dict[str, tuple[int, list[str]]] = {}
    for name, size in closing.files:
        ordered = sorted(by_file[name], key=lambda piece: piece.offset)
        at = 0
        for piece in ordered:
            if piece.offset != at or piece.size != min(opening.piece_size, size - at):
                raise ShardcastError(f"{what}: {name} is not covered at byte {at}")
            at += piece.size
        if at != size:
            raise ShardcastError(f"{what}: {name} ends at byte {at}, the closing says {size}")
        hashes[name] = (size, [piece.hash for piece in ordered])
    if opening.kind == "full":
        root = content_root(opening.number, opening.piece_size, hashes)
        if root != closing.root or closing.content != closing.files:
            raise ShardcastError(f"{what}: its pieces have root {root[:16]}, the closing says {closing.root[:16]}")


def _message(tag: str, id: str, record: Line) -> bytes:  # noqa: A002
    # An opening is where the id comes from; the others are bound to it.
    bound = "" if tag == "opening" else id
    return message(f"shoal shardcast {tag} 1", bound, record.canonical())


def _head_message(head: Head) -> bytes:
    return message("shoal shardcast head 1", "", head.canonical())


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)
