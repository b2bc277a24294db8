"""Room on a client's disk: old versions go before new ones come, as far as nobody holds or needs them.

What is here, and what comes, is at most `keep` times the largest version. That counts bytes, not versions: a base model
beside adapters of it stays.
"""

from collections.abc import Callable, Collection, Sequence

from shoal.errors import ShardcastError
from shoal.shardcast.format.records import Entry
from shoal.shardcast.format.store import Store


class NoRoomError(ShardcastError):
    """The versions that are held here leave no room for another."""


class Room:
    """`is_wanted` says whether somebody waits for a package; `lose` hears of what went."""

    def __init__(self, store: Store, keep: int, is_wanted: Callable[[str], bool], lose: Callable[[str], None]) -> None:
        self._store = store
        self._keep = keep
        self._is_wanted = is_wanted
        self._lose = lose

    def for_packages(self, way: Sequence[Entry]) -> None:
        """Makes room for the full versions that are about to come."""
        here = set(self._store.packages())
        for entry in way:
            if entry.kind == "full" and entry.name not in here:
                self._remove_old(entry.size or 0, set())

    def to_assemble(self, way: Sequence[Entry]) -> bool:
        """Makes room for the version at the end of the way, beside the one that it is made from; False if it cannot."""
        first = way[0]
        base = (first.base.number, first.base.root) if first.base else (first.number, first.root or "")
        standing = self._store.whole().get(base)
        return standing is None or self._remove_old(self._store.size(standing.name), {standing.name})

    def forget_deltas(self, way: Sequence[Entry]) -> None:
        """Deltas that were applied go: what they led to is here."""
        for entry in way:
            if entry.kind == "delta":
                self._remove(entry.name)

    def _remove_old(self, coming: int, needed: Collection[str]) -> bool:
        """Oldest first, until there is room; False if there is none."""
        sizes = {folder.name: self._store.size(folder.name) for _, folder in sorted(self._store.whole().items())}
        most = self._keep * max([coming, *sizes.values()])
        left = coming + sum(sizes.values())
        for name, size in sizes.items():
            if left <= most:
                break
            if name not in needed and self._remove(name):
                left -= size
        return left <= most

    def _remove(self, name: str) -> bool:
        gone = not self._is_wanted(name) and self._store.remove(name)
        if gone:
            self._lose(name)
        return gone
