"""Versions of eight weight files as a trainer writes them, and hashing that is counted."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import blake3
import pytest
import torch
from torch import Tensor

from shoal.models.weights import write_weights
from shoal.protocol.version_directory import DirectoryChannel, folder_name
from shoal.shardcast.format.hashing import files_of
from shoal.shardcast.origin.versions import Versions

TENSORS, VALUES = 16, 1 << 19  # 16 MiB
HASHING = ("format.hashing", "format.records", "fetch.downloader")


class Trainer:
    """Trains sixteen tensors a little for each version, and publishes them in eight files."""

    def __init__(self, path: Path, versions: Versions, keep: int = 100) -> None:
        self.weights_dir = path
        self.channel = DirectoryChannel(path, keep)
        self.versions = versions
        generator = torch.Generator().manual_seed(0)
        self.weights = {
            f"layers.{i:02d}.weight": (0.02 * torch.randn(VALUES, generator=generator)).bfloat16()
            for i in range(TENSORS)
        }

    @property
    def size(self) -> int:
        return sum(tensor.nbytes for tensor in self.weights.values())

    def step(self, number: int, share: float = 0.002) -> Path:
        """Makes and publishes a version; the directory that it was published from."""
        self.write(number, share)
        self.versions.publish(number, self.folder(number))
        return self.folder(number)

    def write(self, number: int, share: float = 0.002) -> None:
        generator = torch.Generator().manual_seed(number)
        for tensor in self.weights.values():
            moved = torch.randint(0, VALUES, (int(share * VALUES),), generator=generator)
            tensor.view(torch.int16)[moved] += 1
        with self.channel.publish(number) as staging:
            if not number:
                (staging / "config.json").write_text('{"model_type": "some"}')
                (staging / "tokenizer.json").write_text("{}" * 1000)
            write_weights(staging, self.weights, file_bytes=self.size // 8)

    def folder(self, number: int) -> Path:
        return self.weights_dir / folder_name(number)


def visible(folder: Path) -> dict[str, bytes]:
    """The files that are part of a version."""
    return {name: path.read_bytes() for name, path in files_of(folder).items()}


def equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[n], t) for n, t in expected.items())


class Counted:
    """A BLAKE3 hasher that counts what it is given, in all modules that hash content."""

    total = 0

    def __init__(self, data: Any = b"") -> None:
        self._hasher = blake3.blake3()
        self.update(data)

    def update(self, data: Any) -> None:
        Counted.total += len(memoryview(data).cast("B")) if len(data) else 0
        self._hasher.update(data)

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


@contextmanager
def counted_hashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Counted]]:
    for module in HASHING:
        monkeypatch.setattr(f"shoal.shardcast.{module}.blake3", Counted)
    Counted.total = 0
    yield Counted
