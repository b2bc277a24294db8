"""Room on a client's disk: old versions go before new ones come, as far as nobody holds or needs them.

What is here, and what comes, is at most `keep` times the largest version. That counts bytes, not versions: a base model
beside adapters of it stays.
"""

from collections.abc import Callable, Collection, Sequence

from shoal.errors import LimitError, ShardcastError
from shoal.files import tree_bytes
from shoal.limits import show_size
from shoal.shardcast.format.records import Entry
from shoal.shardcast.format.store import Store


class NoRoomError(ShardcastError):
    """The versions that are held here leave no room for another."""


class Room:
    """`is_wanted` says whether somebody waits for a package; `lose` hears of what went."""

    def __init__(
        self,
        store: Store,
        keep: int,
        is_wanted: Callable[[str], bool],
        lose: Callable[[str], None],
        max_bytes: Callable[[], int] | None = None,
    ) -> None:
        self._max_bytes = max_bytes
        self._store = store
        self._keep = keep
        self._is_wanted = is_wanted
        self._lose = lose

    def for_packages(self, way: Sequence[Entry], *, last_resort: bool = True) -> bool:
        """Makes room for what is about to come; False if another way, or the size of a package, has to be awaited.

        Where a limit is set and leaves no room: a LimitError as the last resort, a NoRoomError otherwise.
        """
        here = set(self._store.packages())
        for entry in way:
            if entry.kind == "full" and entry.name not in here:
                self._remove_old(entry.size or 0, set())
        return self._max_bytes is None or self._keep_within(way, self._max_bytes(), last_resort)

    def _keep_within(self, way: Sequence[Entry], most: int, last_resort: bool) -> bool:
        """Old versions go until what comes, and what is made of it, fits beside the one that it is made from."""
        if any(entry.size is None for entry in way):
            return False
        if not way:
            return True
        coming = {entry.name for entry in way}
        first = way[0]
        base = self._store.whole().get((first.base.number, first.base.root)) if first.base else None
        names = [*self._store.packages(), *(folder.name for folder in self._store.made().values())]
        here = {name: tree_bytes(self._store.folder(name)) for name in names}
        need = sum(entry.size or 0 for entry in way)
        if any(entry.kind == "delta" for entry in way):  # a version is put together beside what it is made from
            need += self._store.size(base.name) if base else first.size or 0
        left = need + sum(size for name, size in here.items() if name not in coming)
        for name in sorted(here):
            if left <= most:
                return True
            if name not in coming and (base is None or name != base.name) and self._remove(name):
                left -= here[name]
        if left <= most:
            return True
        if not last_resort:
            raise NoRoomError(f"version {way[-1].number}: {left} bytes would be here, and {most} may")
        if base is not None and self._remove(base.name):  # as a full version it may fit
            return False
        raise LimitError(
            f"--disk: version {way[-1].number} takes {show_size(need)} while it comes, {show_size(left - need)} are in "
            f"use, and versions may have {show_size(most)}; raise it by {show_size(max(1, left - most))} or more"
        )

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
