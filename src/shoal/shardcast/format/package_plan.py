"""Fetch and retention plans, as pure functions of the head: which packages to fetch, and which to keep."""

from collections.abc import Collection, Iterable, Sequence

from shoal.shardcast.format.records import Entry


def route(entries: Sequence[Entry], held: Iterable[tuple[int, str]], number: int) -> list[Entry] | None:
    """The packages to fetch, in the order to apply them, for the fewest bytes; None if no way leads to the version.

    `held` are the versions already here, number and root. A full package stands on nothing; a delta on the version,
    with the root, that it names. A package of unknown size counts as a full one of the largest size known, a delta as
    none: it is being written this moment, and waiting for its size would cost more than it could save.
    """
    largest = max((entry.size or 0 for entry in entries), default=0)
    best: dict[tuple[int, str], tuple[int, list[Entry]]] = {item: (0, []) for item in held}
    for entry in sorted(entries, key=lambda entry: (entry.number, entry.kind)):
        if entry.number > number:
            break
        cost = entry.size if entry.size is not None else largest if entry.kind == "full" else 0
        before: tuple[int, list[Entry]] | None = (0, [])
        if entry.kind == "delta":
            before = best.get((entry.base.number, entry.base.root)) if entry.base else None
        if before is None:
            continue
        here = (entry.number, entry.root or f"?{entry.id}")
        way = (before[0] + cost, [*before[1], entry])
        if here not in best or way[0] < best[here][0]:
            best[here] = way
    ways = [way for (reached, root), way in best.items() if reached == number and _listed(entries, number, root)]
    return min(ways, key=lambda way: way[0])[1] if ways else None


def _listed(entries: Sequence[Entry], number: int, root: str) -> bool:
    """A held version counts only while the head lists that content: another root is another version."""
    return any(e.number == number and root in (e.root, f"?{e.id}") for e in entries)


def retained(entries: Sequence[Entry], keep: int) -> list[Entry]:
    """The packages of the last `keep` versions, and of those that their deltas stand on, down to a full one.

    Version 0 stays: it is the base model, with what no other version carries (config, tokenizer).
    """
    numbers = {*sorted({entry.number for entry in entries})[-keep:], 0}
    wanted = set(numbers)
    for entry in sorted(entries, key=lambda entry: -entry.number):
        if entry.number in wanted and entry.base and not _has_full(entries, entry.number):
            wanted.add(entry.base.number)
    return [entry for entry in entries if entry.number in wanted and _useful(entry, numbers, entries)]


def _useful(entry: Entry, numbers: Collection[int], entries: Sequence[Entry]) -> bool:
    """An older version is kept for what stands on it: its full package is enough where there is one."""
    return entry.number in numbers or entry.kind == "full" or not _has_full(entries, entry.number)


def _has_full(entries: Sequence[Entry], number: int) -> bool:
    return any(entry.number == number and entry.kind == "full" for entry in entries)
