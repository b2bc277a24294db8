"""Which packages to fetch, and which to keep."""

from shoal.shardcast.format.package_plan import retained, route
from shoal.shardcast.format.records import Base, Entry, Kind


def root(number: int) -> str:
    return f"{number:064x}"


def entry(number: int, kind: Kind, size: int | None = 100, *, closed: bool = True, base: int | None = None) -> Entry:
    base = number - 1 if base is None else base
    return Entry(
        number=number,
        kind=kind,
        id=f"{number * 2 + (kind == 'full'):064x}",
        base=Base(number=base, root=root(base)) if kind == "delta" else None,
        piece_size=1 << 20,
        size=size,
        root=root(number) if closed else None,
    )


def names(way: list[Entry] | None) -> list[str] | None:
    return None if way is None else [f"{e.kind}{e.number}" for e in way]


HEAD = [entry(0, "full"), entry(1, "delta", 3), entry(2, "delta", 3), entry(3, "delta", 3), entry(3, "full")]


def test_who_has_the_version_before_takes_the_delta() -> None:
    assert names(route(HEAD, {(2, root(2))}, 3)) == ["delta3"]


def test_who_is_two_behind_takes_two_deltas() -> None:
    assert names(route(HEAD, {(1, root(1))}, 3)) == ["delta2", "delta3"]


def test_a_late_joiner_takes_the_full_one_where_that_is_fewer_bytes() -> None:
    assert names(route(HEAD, (), 3)) == ["full3"]
    assert names(route(HEAD, (), 2)) == ["full0", "delta1", "delta2"]
    dear = [entry(0, "full", 10), *HEAD[1:4], entry(3, "full", 100)]
    assert names(route(dear, (), 3)) == ["full0", "delta1", "delta2", "delta3"]


def test_a_version_that_is_here_needs_nothing() -> None:
    assert route(HEAD, {(3, root(3))}, 3) == []


def test_a_version_with_another_root_is_no_base_and_no_answer() -> None:
    assert names(route(HEAD, {(3, root(9)), (2, root(9))}, 3)) == ["full3"]


def test_no_way_is_none() -> None:
    assert route([entry(5, "delta")], (), 5) is None
    assert route(HEAD, (), 4) is None


def test_a_delta_that_is_being_written_is_taken_at_once() -> None:
    head = [*HEAD, entry(4, "delta", None, closed=False)]
    assert names(route(head, {(3, root(3))}, 4)) == ["delta4"]


def test_the_last_versions_stay_with_the_full_one_that_they_stand_on() -> None:
    kept = retained([entry(0, "full"), *(entry(n, "delta", 3) for n in range(1, 8))], 3)
    assert names(kept) == ["full0", *(f"delta{n}" for n in range(1, 8))]
    fresh = [entry(0, "full"), *(entry(n, "delta", 3) for n in range(1, 8)), entry(4, "full")]
    assert set(names(retained(fresh, 3)) or []) == {"full0", "full4", "delta5", "delta6", "delta7"}


def test_full_versions_alone_keep_the_base_and_the_last_five() -> None:
    assert names(retained([entry(n, "full") for n in range(9)], 5)) == ["full0", *(f"full{n}" for n in range(4, 9))]
