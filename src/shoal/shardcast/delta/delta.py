"""Delta encoding of safetensors files: version k + 1 as its changes to version k, bit for bit.

    from shoal.shardcast.delta import delta

    stats = delta.encode(Path("v7.safetensors"), Path("v8.safetensors"), Path("v8.delta"))
    delta.apply(Path("v7.safetensors"), Path("v8.delta"), Path("rebuilt.safetensors"))

A delta names the base by its hash and the result by its own: applied to anything else, or damaged, it is a
`DeltaError`, and nothing appears under the name of the result. Both sides stream, with memory for a few blocks. Deltas
that follow each other are applied in one pass, from the first base to the last result.

    delta    8 bytes: magic; sizes of base and new file, 8 bytes each; hash of the base, 32; piece size, sizes of the
             new file's header and of what it is packed to, 4 each; the header, in zstd with the base's as dictionary;
             blocks (delta_blocks) of the spans that follow from both headers (delta_layout); hash of the new file, 32

A file's hash is BLAKE3 over the BLAKE3 hashes of its pieces.

Usable on its own: numpy, numba, blake3 and zstandard do the work.
"""

import io
import os
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from shoal.errors import DeltaError
from shoal.files import STAGING, disk_errors, make_directory, open_regular, remove
from shoal.shardcast.delta.blocks import BLOCK, RAW, SAME, STEPS, ZSTD, BlockReader, BlockWriter, Bytes, unpacked
from shoal.shardcast.delta.blocks import apply_tensor as apply_tensor
from shoal.shardcast.delta.blocks import encode_tensor as encode_tensor
from shoal.shardcast.delta.layout import LENGTH, MAX_HEADER, Layout, header_size, parse, spans
from shoal.shardcast.format.hashing import PieceHasher, hash_pieces
from shoal.shardcast.format.records import LARGEST_PIECE, SMALLEST_PIECE, digest

MAGIC = b"shoaldl2"
PRELUDE = struct.Struct("<8sQQ32sIII")
HASH = 32
HEADER_LEVEL = 19
# A delta that saves less than half is not worth its chain: every base must be there, and be right.
PAYS = 0.5

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class DeltaStats:
    """What a delta costs beside the file that it stands for."""

    full_bytes: int
    delta_bytes: int
    base_hash: bytes
    new_hash: bytes
    blocks_same: int
    blocks_steps: int
    blocks_full: int

    @property
    def ratio(self) -> float:
        """How many times smaller the delta is."""
        return self.full_bytes / self.delta_bytes

    def pays(self, share: float = PAYS) -> bool:
        """Whether it takes at most this share of the full file's bytes."""
        return self.delta_bytes <= share * self.full_bytes


def encode(
    base: Path,
    new: Path,
    out: Path | BinaryIO,
    *,
    base_hash: bytes | None = None,
    new_hash: bytes | None = None,
    piece_size: int = LARGEST_PIECE,
    progress: Progress = lambda _: None,
) -> DeltaStats:
    """Writes the delta from one safetensors file to another; a path gets it whole or not at all.

    Hashes that are known already are not computed again; a base's is the `new_hash` of the delta that made it.
    `progress` hears how many bytes of the new file are done.
    """
    if isinstance(out, Path):
        with whole_file(out) as file:
            return encode(
                base, new, file, base_hash=base_hash, new_hash=new_hash, piece_size=piece_size, progress=progress
            )
    with _opened(base) as old_file, _opened(new) as new_file:
        known = base_hash or hash_of(base, piece_size)
        old, fresh = _layout(old_file, base), _layout(new_file, new)
        written = _Counted(out)
        packed = zstandard.ZstdCompressor(level=HEADER_LEVEL, dict_data=_dictionary(old)).compress(fresh.header)
        written.write(PRELUDE.pack(MAGIC, old.size, fresh.size, known, piece_size, len(fresh.header), len(packed)))
        written.write(packed)
        hasher = None if new_hash else PieceHasher(piece_size)
        if hasher:
            hasher.update(fresh.header)
        blocks = BlockWriter(written.write)
        for at, base_at, size, steps in _blocks(old, fresh):
            if base_at is not None:
                _fill(old_file, base, base_at, blocks.base[:size])
            _fill(new_file, new, at, blocks.new[:size])
            if hasher:
                hasher.update(blocks.new[:size].data)
            blocks.add(size, paired=base_at is not None, steps=steps)
            progress(at + size)
        blocks.finish()
        result = new_hash or bytes.fromhex(digest(hasher.finish() if hasher else []))
        written.write(result)
    counts = blocks.counts
    return DeltaStats(
        full_bytes=fresh.size,
        delta_bytes=written.size,
        base_hash=known,
        new_hash=result,
        blocks_same=counts[SAME],
        blocks_steps=counts[STEPS],
        blocks_full=counts[ZSTD] + counts[RAW],
    )


def apply(
    base: Path,
    deltas: Path | Sequence[Path],
    out: Path,
    *,
    base_is_verified: bool = False,
    progress: Progress = lambda _: None,
) -> list[str]:
    """Rebuilds the new file; `out` appears only if it is that file to the last bit. The hashes of its pieces.

    Several deltas follow each other, and each result but the last exists for a block at a time. With `base_is_verified`
    the caller vouches for the base, whose hash is then not computed; the new file's always is.
    """
    paths = [deltas] if isinstance(deltas, Path) else list(deltas)
    with ExitStack() as opened, _opened(base) as old_file:
        old = _layout(old_file, base)
        chain: list[_Link] = []
        for path in paths:
            changes = opened.enter_context(_opened(path))
            before = chain[-1].new if chain else old
            with _named(path):
                chain.append(_link(path, changes, before, base))
        if not base_is_verified and (own := hash_of(base, chain[0].piece_size)) != chain[0].base_hash:
            raise DeltaError(
                f"{paths[0]}: it is for a base whose hash begins with {chain[0].base_hash.hex()[:12]}, that of {base} "
                f"with {own.hex()[:12]}; give the version it was made from, or fetch the full one"
            )
        if len(chain) > 1 and any(link.new.tensors != old.tensors for link in chain):
            raise ChainError(f"{paths[-1]}: tensors were moved since {base}; apply the deltas one by one")
        with whole_file(out) as file:
            hashes = _rebuild(old, old_file, base, chain, file, progress)
    return hashes


class ChainError(DeltaError):
    """Deltas that cannot be applied in one pass: tensors were moved between them."""


@dataclass(frozen=True, slots=True)
class _Link:
    """One delta of a chain: the layout of what it gives, and where its blocks are read from."""

    path: Path
    new: Layout
    base_hash: bytes
    piece_size: int
    changes: io.BufferedReader
    blocks: BlockReader


def _rebuild(
    old: Layout, old_file: io.BufferedReader, base: Path, chain: Sequence[_Link], out: BinaryIO, progress: Progress
) -> list[str]:
    last = chain[-1]
    hasher = PieceHasher(last.piece_size)
    out.write(last.new.header)
    hasher.update(last.new.header)
    first, followers = chain[0].blocks, [*(link.blocks for link in chain[1:]), None]
    for at, base_at, size, steps in _blocks(old, last.new):
        if base_at is not None:
            _fill(old_file, base, base_at, first.base[:size])
        for link, follower in zip(chain, followers, strict=True):
            try:
                content = link.blocks.next(size, paired=base_at is not None, steps=steps)
            except DeltaError as error:
                raise DeltaError(f"{link.path}: {error}") from error
            if follower is not None:
                follower.base[:size] = content
        hasher.update(content.data)
        out.write(content.data)
        progress(at + size)
    hashes = hasher.finish()
    due = chain[0].base_hash
    for link in chain:
        with _named(link.path):
            if link.base_hash != due:
                raise DeltaError("it does not follow from the delta before it")
            due = _end(link)
    if (found := digest(hashes)) != due.hex():
        raise DeltaError(
            f"{last.path}: it gives a file whose hash begins with {found[:12]} instead of {due.hex()[:12]}: "
            "it is damaged, or the base is another one; fetch the full version"
        )
    return hashes


def _end(link: _Link) -> bytes:
    """The hash of the file that a delta gives, which is the last of it."""
    link.blocks.finish()
    due, more = link.changes.read(HASH), link.changes.read(1)
    if len(due) != HASH or more:
        raise DeltaError(f"it ends too {'late' if more else 'early'}")
    return due


def hash_of(path: Path, piece_size: int = LARGEST_PIECE) -> bytes:
    """A file's hash: BLAKE3 over the hashes of its pieces."""
    with _opened(path):  # says what is wrong with a file that cannot be read
        return bytes.fromhex(digest(hash_pieces(path.resolve(), piece_size)))


def _link(path: Path, changes: io.BufferedReader, old: Layout, base: Path) -> _Link:
    """A delta opened: all that stands before its blocks is read and checked."""
    start = changes.read(PRELUDE.size)
    if len(start) < PRELUDE.size or not start.startswith(MAGIC):
        raise DeltaError("it is not a delta of format 2")
    _, old_size, new_size, known, piece_size, size, packed_size = PRELUDE.unpack(start)
    if old_size != old.size:
        raise DeltaError(f"it is for a base of {old_size:,} bytes, {base} has {old.size:,}")
    if not SMALLEST_PIECE <= piece_size <= LARGEST_PIECE:
        raise DeltaError(f"its pieces have {piece_size:,} bytes, {SMALLEST_PIECE:,} to {LARGEST_PIECE:,} may be")
    if size > MAX_HEADER or packed_size > MAX_HEADER:
        raise DeltaError(f"its header would take {max(size, packed_size):,} bytes, up to {MAX_HEADER:,} may")
    header = unpacked(zstandard.ZstdDecompressor(dict_data=_dictionary(old)), changes.read(packed_size), size)
    if header_size(header, "the new file") != size:
        raise DeltaError("the new file's header is not as long as it says")
    new = parse(header, "the new file")
    if new.size != new_size:
        raise DeltaError(f"the new file is to have {new_size:,} bytes, its header describes {new.size:,}")
    return _Link(path, new, known, piece_size, changes, BlockReader(changes.read))


def _blocks(old: Layout, new: Layout) -> Iterator[tuple[int, int | None, int, bool]]:
    """Place in the new file, place in the base or None, size, and whether steps can tell: block by block."""
    at = len(new.header)
    for span in spans(old, new):
        for start in range(0, span.size, BLOCK):
            size = min(BLOCK, span.size - start)
            yield at, None if span.base is None else span.base + start, size, span.steps
            at += size


def _dictionary(layout: Layout) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(layout.header, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _layout(file: io.BufferedReader, path: Path) -> Layout:
    start = file.read(LENGTH)
    size = header_size(start, str(path))
    header = start + file.read(size - LENGTH)
    layout = parse(header, str(path))
    if len(header) != size or layout.size != (found := os.fstat(file.fileno()).st_size):
        raise DeltaError(f"{path}: not a whole safetensors file: {found:,} bytes, its header describes {layout.size:,}")
    return layout


def _fill(file: io.BufferedReader, path: Path, at: int, block: Bytes) -> None:
    done = 0
    while done < block.size:
        read = os.preadv(file.fileno(), [block[done:].data], at + done)
        if read == 0:
            raise DeltaError(f"{path}: became shorter while it was read; it must not change")
        done += read


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    try:
        opened = open_regular(path.resolve())
        file = opened.__enter__()
    except OSError as error:
        raise DeltaError(f"{path}: cannot be read ({error.strerror})") from error
    with file:
        yield file


@contextmanager
def _named(delta: Path) -> Iterator[None]:
    """Puts the delta's name before what is wrong with it."""
    try:
        yield
    except DeltaError as error:
        raise DeltaError(f"{delta}: {error}") from error


@contextmanager
def whole_file(target: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name in one rename when the block ends well, and not at all otherwise."""
    make_directory(target.parent)
    with disk_errors(target):
        staging = target.with_name(f"{STAGING}{target.name}-{secrets.token_hex(8)}")
        try:
            with staging.open("xb") as file:
                yield file
            staging.replace(target)
        finally:
            remove(staging)


class _Counted:
    def __init__(self, out: BinaryIO) -> None:
        self._out, self.size = out, 0

    def write(self, data: bytes) -> None:
        self._out.write(data)
        self.size += len(data)
