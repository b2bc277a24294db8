"""Garbage collection of uploads that belong to no submission.

A file is stored before its row is committed, and its row is marked before it is removed. A process that is killed in
between leaves an object that no row names, as does a node that sends a file to the object store and never says so.

The invariant: an object that an upload under way still needs is never removed. Uploads say which names they have in
hand, from before they write until after they are committed. An object is removed under a lock that they take first, so
an upload that arrives meanwhile writes it again afterwards.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from sqlalchemy import Connection, select

from shoal.coordinator.db.schema import submissions
from shoal.coordinator.uploads import Objects, object_name, place_in

Unnamed = Callable[[Sequence[str]], Awaitable[list[str]]]


class Orphans:
    """Keeps the object store to what the database names."""

    def __init__(self, objects: Objects, unnamed: Unnamed) -> None:
        """`unnamed` says which of these objects no submission has, as the database is now."""
        self._objects = objects
        self._unnamed = unnamed
        self._in_hand: Counter[str] = Counter()
        self._removing = asyncio.Lock()

    @asynccontextmanager
    async def holding(self, *names: str) -> AsyncIterator[None]:
        """These objects are needed: they are not removed meanwhile."""
        async with self._removing:
            self._in_hand.update(names)
        try:
            yield
        finally:
            self._in_hand -= Counter(names)

    async def sweep(self, before: float) -> int:
        """Removes orphans that were written last before a time; how many there were."""
        await asyncio.to_thread(self._objects.clear_torn, before)
        removed = 0
        async for names in self._objects.older_than(before):
            removed += await self.remove(names)
        return removed

    async def remove(self, names: Sequence[str]) -> int:
        """Removes those of these objects that belong to nothing and are in nobody's hand; how many there were."""
        removed = 0
        for name in await self._unnamed(names):
            async with self._removing:
                if name not in self._in_hand and await self._unnamed([name]):
                    await self._objects.remove([name])
                    removed += 1
        return removed


def unnamed(db: Connection, names: Sequence[str]) -> list[str]:
    """Those of these objects that no submission has; what is not named like ours is left alone."""
    places = {name: place for name in names if (place := place_in(name)) is not None}
    steps = {step for step, _, _ in places.values()}
    columns = submissions.c.step, submissions.c.submission, submissions.c.sha256
    rows = db.execute(select(*columns).where(submissions.c.step.in_(steps), submissions.c.kept)).all() if steps else []
    named = {object_name(*row) for row in rows}
    return [name for name in places if name not in named]
