"""How much of a disk a directory took at the most, seen from outside."""

import threading
from pathlib import Path
from typing import Self

from shoal.files import tree_bytes


class DiskWatch:
    """The most bytes that were ever in a directory."""

    def __init__(self, path: Path) -> None:
        self.path, self.peak = path, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.002):
            self.peak = max(self.peak, tree_bytes(self.path))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
