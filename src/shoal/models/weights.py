"""Weight files of a version: which there are, which tensor is in which, how they are written and read.

The names are those of Hugging Face: `model.safetensors`, or `model-00001-of-00008.safetensors` and so on with
`model.safetensors.index.json`. Which file a tensor is in follows from all names, shapes and dtypes alone, so any number
of processes can write the files of one version without a word between them, and two versions of a model have the same
layout. The index is written last.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shoal.devices import DTYPES
from shoal.errors import ModelError
from shoal.files import disk_errors, parse_json, read_regular
from shoal.shardcast.format.hashing import PieceHasher, in_parallel, note_hashes, piece_size_for
from shoal.shardcast.format.records import LARGEST_PIECE

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# A model is cut into as many files of about this size as it takes; one that is smaller stays one file.
FILE_BYTES = 2 << 30
CHUNK = 1 << 18  # bytes that are still in a core's cache when they are hashed
MAX_INDEX = 1 << 25
_PART = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a tensor is, without its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file of a version: its name, and its tensors in the order of their bytes."""

    name: str
    tensors: Mapping[str, TensorSpec]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return len(self.header()) + sum(spec.size for spec in self.tensors.values())

    def header(self) -> bytes:
        """What stands before the tensors, its own length first."""
        tree: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for name, spec in self.tensors.items():
            offsets = [at, at := at + spec.size]
            tree[name] = {"dtype": _DTYPES[spec.dtype], "shape": list(spec.shape), "data_offsets": offsets}
        text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


def specs_of(tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> dict[str, TensorSpec]:
    """What tensors are, on any device; with `dtype`, what they are once those of floating point are cast to it."""
    return {
        name: TensorSpec(dtype if dtype and t.is_floating_point() else t.dtype, tuple(t.shape))
        for name, t in tensors.items()
    }


def plan_files(tensors: Mapping[str, TensorSpec], file_bytes: int = FILE_BYTES) -> list[WeightFile]:
    """The files of a version with these tensors: about equal parts of the tensors in the order of their names."""
    for name, spec in tensors.items():
        if spec.dtype not in _DTYPES:
            raise ModelError(f"tensor {name}: its dtype is {spec.dtype}, which no safetensors file holds; cast it")
    total = sum(spec.size for spec in tensors.values())
    count = max(1, -(-total // file_bytes))
    parts: dict[int, dict[str, TensorSpec]] = {}
    at = 0
    for name, spec in sorted(tensors.items()):
        middle = 2 * at + spec.size  # doubled, to stay among whole numbers
        parts.setdefault(min(count - 1, count * middle // (2 * total or 1)), {})[name] = spec
        at += spec.size
    found = [parts[part] for part in sorted(parts)] or [{}]
    names = (
        [WEIGHTS]
        if len(found) == 1
        else [f"model-{i + 1:05d}-of-{len(found):05d}.safetensors" for i in range(len(found))]
    )
    return [WeightFile(name, _aligned(part)) for name, part in zip(names, found, strict=True)]


def _aligned(tensors: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """Wide dtypes first: then every value is at a multiple of its size, as readers that map the file need it."""
    return dict(sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))


def write_file(
    folder: Path, file: WeightFile, tensors: Iterable[tuple[str, Tensor]], piece_size: int = LARGEST_PIECE
) -> None:
    """Writes one file of a version; tensors come in the order of `file.tensors`, each asked for when it is due.

    Its pieces are hashed on the way. `piece_size` should be the version's (`piece_size_of`), or they are hashed again.
    """
    path, due = folder / file.name, iter(file.tensors.items())
    with disk_errors(path), _Out(path, piece_size) as out:
        out.write(file.header())
        for name, tensor in tensors:
            expected, spec = next(due, ("no more tensors", None))
            if spec is None or name != expected or specs_of({name: tensor})[name] != spec:
                found = f"{name} of {tensor.dtype} and shape {tuple(tensor.shape)}"
                raise ModelError(
                    f"{path}: {found} is given where {expected} is due{_described(spec)}; give what is due"
                )
            out.write(_bytes(tensor))
        if left := next(due, None):
            raise ModelError(f"{path}: {left[0]} is missing; give every tensor of the file")


def piece_size_of(files: Sequence[WeightFile]) -> int:
    """The piece size of a version with these files."""
    return piece_size_for(sum(file.size for file in files))


def write_index(folder: Path, files: Sequence[WeightFile]) -> None:
    """Says which file each tensor is in; the last file of a version to be written. One file needs no index."""
    if len(files) == 1:
        return
    total = sum(spec.size for file in files for spec in file.tensors.values())
    names = sorted((name, file.name) for file in files for name in file.tensors)
    tree = {"metadata": {"total_size": total}, "weight_map": dict(names)}
    with disk_errors(folder / INDEX):
        (folder / INDEX).write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n")


def write_weights(folder: Path, tensors: Mapping[str, Tensor], file_bytes: int = FILE_BYTES) -> None:
    """Writes all files of a version from one process, several at a time."""
    files = plan_files(specs_of(tensors), file_bytes)
    piece_size = piece_size_of(files)
    in_parallel(lambda file: write_file(folder, file, ((n, tensors[n]) for n in file.tensors), piece_size), files)
    write_index(folder, files)


def is_weights(name: str) -> bool:
    """Whether a file of a model directory holds weights, or says which files do."""
    return name.endswith((".safetensors", ".safetensors.index.json"))


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a version, all of which are there; a ModelError names one that is missing or foreign."""
    return [folder / name for name in sorted(_contents(folder))]


class MappedWeights(Mapping[str, Tensor]):
    """Weights in their files, mapped into memory: pages are read when a tensor is used, and the system may drop them.

    A tensor of another format is converted when it is asked for, so that no more than one is held besides.
    """

    def __init__(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self._tensors, self._dtype = tensors, dtype

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shapes(self) -> dict[str, torch.Size]:
        """Those of all tensors; nothing is read to know them."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}


def read_weights(folder: Path, dtype: str) -> MappedWeights:
    """The weights of a version in the dtype, mapped into memory, or a ModelError that names the file."""
    weights: dict[str, Tensor] = {}
    for name, expected in sorted(_contents(folder).items()):
        found = dict(_tensors(folder / name))
        if expected is not None and found.keys() != expected:
            odd = sorted(found.keys() ^ expected)[0]
            how = (
                f"lacks {odd}, which {INDEX} puts there"
                if odd in expected
                else f"has {odd}, which {INDEX} does not put there"
            )
            raise ModelError(f"{folder / name}: {how}; it is of another version")
        weights |= found
    return MappedWeights(weights, DTYPES[dtype])


def _contents(folder: Path) -> dict[str, set[str] | None]:
    """Weight files -> names of their tensors; None where no index says them."""
    there = {path.name for path in folder.glob("*.safetensors")}
    if not (folder / INDEX).exists():
        if there - {WEIGHTS}:
            raise ModelError(f"{folder / INDEX}: missing, and {sorted(there - {WEIGHTS})[0]} is one of several files")
        return {WEIGHTS: None}
    listed = _index(folder / INDEX)
    if missing := sorted(listed.keys() - there):
        raise ModelError(f"{folder / missing[0]}: missing, and {INDEX} names it; the version is not whole")
    if foreign := sorted(there - listed.keys()):
        raise ModelError(f"{folder / foreign[0]}: {INDEX} does not name it; it is of another version")
    return dict(listed)


def _index(path: Path) -> dict[str, set[str]]:
    """File -> names of its tensors. Files are `model-K-of-N.safetensors` with every K of 1..N, and nowhere else."""
    try:
        mapped = parse_json(read_regular(path, MAX_INDEX))["weight_map"]
        pairs = [(str(tensor), str(file)) for tensor, file in mapped.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path}: not a readable index of weight files ({error})") from error
    found: dict[str, set[str]] = {}
    for tensor, file in pairs:
        if not _PART.fullmatch(file):
            raise ModelError(
                f"{path}: {tensor:.80} is said to be in {file!r:.80}; files are model-K-of-N.safetensors beside it"
            )
        found.setdefault(file, set()).add(tensor)
    if sorted(found) != (due := [f"model-{k + 1:05d}-of-{len(found):05d}.safetensors" for k in range(len(found))]):
        odd = sorted(found.keys() ^ set(due))[0]
        raise ModelError(f"{path}: it names {len(found)} files, and {odd} does not fit them; save the version again")
    return found


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: not a readable safetensors file ({error})") from error


def _bytes(tensor: Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


class _Out:
    """A file whose pieces are hashed while they are written: nobody need read it again to make it part of a version."""

    def __init__(self, path: Path, piece_size: int) -> None:
        self._path = path
        self._piece_size = piece_size
        self._hasher = PieceHasher(piece_size)

    def __enter__(self) -> "_Out":
        self._file = self._path.open("xb", buffering=0)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if kind is None:
            note_hashes(self._path, self._piece_size, self._hasher.finish())

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        for at in range(0, len(view), CHUNK):
            left = view[at : at + CHUNK]
            self._hasher.update(left)
            while left:
                left = left[self._file.write(left) :]


def _described(spec: TensorSpec | None) -> str:
    return f", of {spec.dtype} and shape {spec.shape}" if spec else ""
