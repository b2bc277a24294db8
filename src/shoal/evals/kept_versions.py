"""Versions pinned for evaluation: hard links made as they are published, so that the trainer may delete its own.

The trainer removes old versions as it goes, and evaluating one may take longer than training several. A version put
aside is made of links to the same files: it costs no time and no space until the trainer has removed its own.
"""

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.errors import StorageError
from shoal.files import remove, remove_staging, whole_directory
from shoal.protocol.stores import Version
from shoal.protocol.version_directory import DirectoryChannel, folder_name

LOOK_S = 0.1


class Chosen:
    """Looks out for the versions of these numbers in a thread of its own, and keeps each until it is dropped."""

    def __init__(self, weights: Path, aside: Path, numbers: Sequence[int]) -> None:
        self._weights, self._path = weights, aside
        self._channel, self._aside = (DirectoryChannel(path, len(numbers) + 1) for path in (weights, aside))
        self._lock = threading.Lock()
        self._left = set(numbers)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chosen versions", daemon=True)

    def first(self) -> Version | None:
        """The first version that is here and not dropped yet, as it was published last."""
        self.look()
        for number in sorted(self._left):
            version = self._aside.version(number)
            if version is not None and not self._channel.was_retracted(version):
                return version
        return None

    def missed(self) -> list[int]:
        """Versions that came and went while nobody looked out for them."""
        newest = self._channel.latest()
        return [n for n in sorted(self._left) if newest and n < newest.number and not self._is_here(n)]

    @property
    def is_over(self) -> bool:
        return not self._left

    def fetch(self, version: Version) -> Path:
        return self._aside.fetch(version)

    def drop(self, number: int) -> None:
        with self._lock:
            self._left.discard(number)
            remove(self._path / folder_name(number))

    def look(self) -> None:
        """Puts aside what is there and is wanted; one that was retracted and published again replaces the old one."""
        with self._lock:
            for number in sorted(self._left):
                version = self._channel.version(number)
                if version is not None and version != self._aside.version(number):
                    self._put_aside(number)

    def _is_here(self, number: int) -> bool:
        return self._aside.version(number) is not None or self._channel.version(number) is not None

    def _put_aside(self, number: int) -> None:
        source = self._weights / folder_name(number)
        try:
            with whole_directory(self._path / folder_name(number), replace=True) as staging:
                for file in [path for path in source.rglob("*") if path.is_file()]:
                    copy = staging / file.relative_to(source)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    _link(file, copy)
        except (OSError, StorageError):
            return  # it is being removed, or there is no room; the next look tries again

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()

    def __enter__(self) -> Self:
        """Begins to look out; what an evaluator that was killed left behind is cleared away."""
        remove_staging(self._path)
        for number in set(self._aside.numbers()) - self._left:
            remove(self._path / folder_name(number))
        self.look()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()


def _link(file: Path, copy: Path) -> None:
    try:
        os.link(file, copy)
    except PermissionError:  # a file system without hard links
        shutil.copyfile(file, copy)
