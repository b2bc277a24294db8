"""Tasks by difficulty: draws follow the weights exactly, weights follow the rates, and a table is only a table."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config import LengthConfig, SamplerConfig
from shoal.errors import RolloutError, TaskError
from shoal.protocol.lease import asked, checked_table
from shoal.tasks.difficulty import (
    MAX_BINS,
    MAX_BYTES,
    MAX_WEIGHT,
    Answered,
    Part,
    Rates,
    Sampler,
    Table,
    bins_of,
    check_fits,
    pick,
    rates_from_tree,
    rates_to_tree,
)
from shoal.tasks.source import Mixture, Split, Task, TaskSource, draw
from shoal.tasks.sources.table import Rows
from tests.support.submissions import make_lease

DIFFICULTY = SamplerConfig(kind="difficulty")
NO_BUDGET = LengthConfig()
PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"


class Endless:
    """Tasks without end."""

    def __init__(self, name: str) -> None:
        self.name = name

    def task(self, split: Split, index: int) -> Task:
        return Task(self.name, index, f"{self.name} {index}", None, {})

    def score(self, task: Task, answer: str) -> float:
        return 0.0


def rows(name: str, count: int) -> Rows:
    return Rows(name, [{"question": f"{name} {n}", "split": "train"} for n in range(count)])


def table_of(**parts: tuple[int, Sequence[int]]) -> Table:
    return Table(
        parts=tuple(Part(name=name, share=share, weights=tuple(weights)) for name, (share, weights) in parts.items())
    )


def drawn(tasks: TaskSource, table: Table, count: int) -> list[Task]:
    lease = make_lease(deadline=0.0)
    return [asked(tasks, lease, group, NO_BUDGET, table) for group in range(count)]


def test_without_a_table_draws_are_bit_for_bit_what_they_always_were() -> None:
    lease = make_lease(deadline=0.0)
    assert lease.seed == 17727091450016294923
    assert [lease.task_index(group) for group in range(4)] == [115078507, 1072687532, 2547784216, 1827243146]
    tasks = Mixture([Endless("a"), Endless("b"), rows("c", 5)], [1, 2, 3])
    found = [asked(tasks, lease, group, NO_BUDGET) for group in range(1000)]
    assert [task.index for task in found] == [lease.task_index(group) for group in range(1000)]
    digest = hashlib.sha256("\n".join(f"{task.source} {task.index}" for task in found).encode()).hexdigest()
    assert digest[:16] == "b216bf1ea5cc079f"


def test_how_often_a_source_and_a_bin_are_drawn_follows_their_weights() -> None:
    tasks = Mixture([Endless("a"), rows("b", 4)], [1, 1])
    table = table_of(a=(300_000, [7]), b=(700_000, [1, 1000, 500, 499]))
    count = 8000
    found = drawn(tasks, table, count)
    sources = Counter(task.source for task in found)
    assert sources["a"] == pytest.approx(0.3 * count, rel=0.05)
    bins = Counter(task.index for task in found if task.source == "b")
    assert set(bins) <= {0, 1, 2, 3}
    for number, share in enumerate([0.0005, 0.5, 0.25, 0.2495]):
        assert bins[number] / sources["b"] == pytest.approx(share, abs=0.02)
    endless = [task.index for task in found if task.source == "a"]
    assert len(set(endless)) == len(endless)


@given(st.lists(st.integers(1, MAX_WEIGHT), min_size=1, max_size=40), st.integers(0, 2**64 - 1), st.integers(0, 500))
def test_a_draw_is_what_a_list_with_each_bin_as_often_as_it_weighs_would_give(
    weights: list[int], seed: int, group: int
) -> None:
    tasks = rows("b", len(weights))
    spelled_out = [number for number, weight in enumerate(weights) for _ in range(weight)]
    expected = spelled_out[draw("bin", seed, group) * len(spelled_out) // 2**64]
    assert pick(tasks, table_of(b=(1, weights)), seed, group, 12345).index == expected


@pytest.mark.parametrize("size", [1, 3, MAX_BINS // 2, MAX_BINS // 2 + 1, 5000])
def test_every_task_of_a_table_lies_in_one_bin_and_can_be_drawn_from_it(size: int) -> None:
    tasks = Mixture([Endless("a"), rows("b", size)], [1, 1])
    bins = bins_of(tasks)["b"]
    assert bins.count == min(size, MAX_BINS // 2)
    reached = {bins.index(bins.of(row), row // bins.count) for row in range(size)}
    assert reached == set(range(size))
    for number in (0, bins.count // 2, bins.count - 1):
        for point in (0, 1, 2**32 - 1):
            index = bins.index(number, point)
            assert index < size
            assert bins.of(index) == number


def answers(source: str, task: int, right: int, wrong: int) -> list[Answered]:
    return [Answered(source, task, True)] * right + [Answered(source, task, False)] * wrong


def test_what_is_solved_sometimes_weighs_most_and_nothing_weighs_nothing() -> None:
    tasks = rows("b", 4)
    sampler = Sampler(tasks, DIFFICULTY)
    rates = sampler.start()
    for _ in range(200):
        step = [*answers("b", 0, 0, 8), *answers("b", 1, 4, 4), *answers("b", 2, 8, 0), *answers("b", 3, 1, 7)]
        rates = sampler.after(rates, step)
    impossible, medium, trivial, hard = sampler.table(rates).parts[0].weights
    assert medium == pytest.approx(MAX_WEIGHT, rel=0.01)
    floor = 0.1 * MAX_WEIGHT
    assert floor <= min(impossible, trivial) <= max(impossible, trivial) < 1.2 * floor < hard < medium
    assert sampler.report(rates)["b"]["rate"] == pytest.approx(13 / 32, abs=0.01)


def test_a_bin_that_was_never_asked_is_taken_to_be_like_its_source() -> None:
    sampler = Sampler(Mixture([rows("hopeless", 100), rows("other", 100)], [1, 1]), DIFFICULTY)
    rates = sampler.start()
    assert len({part.share for part in sampler.table(rates).parts}) == 1
    for number in range(10):
        rates = sampler.after(rates, answers("hopeless", number, 0, 16))
    hopeless, other = sampler.table(rates).parts
    assert set(other.weights) == {MAX_WEIGHT}
    assert max(hopeless.weights) < 0.2 * MAX_WEIGHT
    assert hopeless.share < 0.2 * other.share


def test_what_is_not_asked_any_more_is_forgotten() -> None:
    sampler = Sampler(rows("b", 2), DIFFICULTY)
    rates = sampler.after(sampler.start(), answers("b", 0, 0, 16))
    before = sampler.table(rates).parts[0].weights
    for _ in range(400):
        rates = sampler.after(rates, [])
    assert before[0] < 0.3 * MAX_WEIGHT
    assert set(sampler.table(rates).parts[0].weights) == {MAX_WEIGHT}


def test_sources_keep_their_own_weights_among_those_that_are_as_hard() -> None:
    sampler = Sampler(Mixture([Endless("a"), rows("b", 10)], [1, 3]), DIFFICULTY)
    shares = {name: found["share"] for name, found in sampler.report(sampler.start()).items()}
    assert shares == {"a": 0.25, "b": 0.75}


def test_rates_come_back_from_json_bit_for_bit() -> None:
    tasks = Mixture([Endless("a"), rows("b", 50)], [1, 1])
    sampler = Sampler(tasks, DIFFICULTY)
    rng = Random(1)
    rates = sampler.start()
    for _ in range(20):
        step = [Answered(rng.choice("ab"), rng.randrange(50), rng.random() < 0.3) for _ in range(30)]
        rates = sampler.after(rates, step)
        assert rates_from_tree(json.loads(json.dumps(rates_to_tree(rates)))) == rates
    assert Table.from_json(sampler.table(rates).to_json()) == sampler.table(rates)


GOOD: dict[str, Any] = {"parts": [{"name": "a", "share": 1, "weights": [1, 2]}]}


def changed(**change: Any) -> str:
    return json.dumps({"parts": [GOOD["parts"][0] | change]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"parts": []}',
        "[" * 100_000,
        json.dumps(GOOD | {"more": 1}),
        json.dumps({"parts": GOOD["parts"] * 2}),
        changed(weights=[]),
        changed(weights=[1, 0]),
        changed(weights=[1, -1]),
        changed(weights=[1, 1.5]),
        changed(weights=[1, True]),
        changed(weights=["1"]),
        changed(weights=[MAX_WEIGHT + 1]),
        changed(weights=[10**40]),
        changed(weights=[float("nan")]),
        changed(weights=[1] * (MAX_BINS + 1)),
        changed(share=0),
        changed(share=10**7),
        changed(share=1.0),
        changed(name=""),
        changed(name=None),
        changed(name="a" * 1001),
        json.dumps({"parts": [{"name": f"{n}", "share": 1, "weights": [1] * 3000} for n in range(2)]}),
        json.dumps({"parts": [{"name": f"{n}" * 300, "share": 1, "weights": [1]} for n in range(200)]}),
    ],
)
def test_what_is_no_table_is_refused_by_name(text: str) -> None:
    with pytest.raises(TaskError, match="not a table of weights"):
        Table.from_json(text)


def test_the_largest_table_is_one_and_small_enough_to_send() -> None:
    table = table_of(a=(10**6, [MAX_WEIGHT] * MAX_BINS))
    assert Table.from_json(table.to_json()) == table
    assert len(json.dumps(table.model_dump(mode="json"))) < MAX_BYTES < 1 << 16


@pytest.mark.parametrize(
    "table",
    [
        table_of(a=(1, [1])),
        table_of(a=(1, [1]), b=(1, [1, 1])),
        table_of(a=(1, [1, 1]), b=(1, [1, 1, 1])),
        table_of(a=(1, [1]), c=(1, [1, 1, 1])),
        table_of(a=(1, [1]), b=(1, [1, 1, 1]), c=(1, [1])),
    ],
)
def test_a_table_of_other_tasks_is_drawn_from_by_nobody(table: Table) -> None:
    tasks = Mixture([Endless("a"), rows("b", 3)], [1, 1])
    check_fits(tasks, table_of(a=(1, [1]), b=(1, [1, 1, 1])))
    with pytest.raises(TaskError, match=r"table of weights: has .* bins for the source"):
        pick(tasks, table, 1, 0, 0)


def test_where_a_run_draws_by_a_table_nobody_draws_without_one() -> None:
    lease, table = make_lease(), table_of(a=(1, [1]))
    assert checked_table(lease, None, SamplerConfig()) is None
    assert checked_table(lease, table, DIFFICULTY) is table
    with pytest.raises(RolloutError, match="there is no table of weights"):
        checked_table(lease, None, DIFFICULTY)
    with pytest.raises(RolloutError, match="there is a table of weights"):
        checked_table(lease, table, SamplerConfig())


def test_a_source_without_train_tasks_is_named() -> None:
    held_out = Rows("c", [{"question": "x", "split": "heldout"}])
    with pytest.raises(TaskError, match="task source c: has no train tasks"):
        bins_of(held_out)


def chance(task: Task) -> float:
    """Of a policy that solves a sixth of the tasks half of the time, and of the others all or none."""
    return {0: 0.5, 1: 1.0}.get(task.index % 6, 0.0) if task.source == "rows" else 0.0


def share_with_signal(tasks: TaskSource, sampler: Sampler | None, steps: int, groups: int, size: int) -> float:
    """Of the groups of the second half of a run."""
    rng = Random(0)
    rates: Rates = sampler.start() if sampler else {}
    signal = 0
    for step in range(steps):
        table = sampler.table(rates) if sampler else None
        lease = make_lease(step=step)
        found: list[Answered] = []
        for group in range(groups):
            task = asked(tasks, lease, group, NO_BUDGET, table)
            solved = [rng.random() < chance(task) for _ in range(size)]
            found += [Answered(task.source, task.index, right) for right in solved]
            signal += step >= steps // 2 and 0 < sum(solved) < size
        rates = sampler.after(rates, found) if sampler else rates
    return signal / groups / (steps - steps // 2)


def test_more_groups_have_signal_than_when_all_tasks_are_asked_alike_as_the_page_says() -> None:
    tasks = Mixture([rows("rows", 120), Endless("never")], [2, 1])
    uniform = share_with_signal(tasks, None, 60, 16, 8)
    weighted = share_with_signal(tasks, Sampler(tasks, DIFFICULTY), 60, 16, 8)
    assert uniform == pytest.approx(1 / 9, abs=0.04)
    assert weighted > 2.5 * uniform
    said = f"{weighted:.0%} of the groups have signal, against {uniform:.0%} when all are asked alike"
    assert said in PAGE.read_text().replace("\n", " ")
