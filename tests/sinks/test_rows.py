"""Rows are what files say: one per step and per evaluated version, finite, and no more curves for a larger swarm."""

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shoal.sinks.rows import Row, Rows, numbers_of
from shoal.telemetry.metrics import Entry
from shoal.watch.history import History
from tests.support.sink_runs import write_run, write_step


def rows(*entries: tuple[str, Entry]) -> list[Row]:
    return Rows().take(entries)


def step(number: int, **values: object) -> tuple[str, Entry]:
    return "trainer", {"time": 7.0, "event": "step", "step": number, **values}


def test_a_step_is_one_row_with_what_workers_and_validators_did_for_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 3)
    found = Rows().take(History(run.path).refresh())
    assert [(row.group, row.number) for row in found if row.group == "train"] == [("train", n) for n in range(3)]
    values = found[0].values
    assert (values["workers/files"], values["workers/tokens"], values["workers/tokens_per_s"]) == (2, 600, 50.0)
    assert (values["validators/accepted"], values["validators/refused"], values["validators/cpu_s"]) == (1, 1, 1.0)
    assert values["train/waits/worker"] == 0.12
    assert [row.values["eval/pass_at_1"] for row in found if row.group == "eval"] == [0.5]


def test_of_a_step_that_was_made_again_the_last_entry_counts() -> None:
    (row,) = rows(step(4, reward=0.1), step(4, reward=0.9))
    assert row.values == {"train/reward": 0.9}


def test_what_is_not_a_finite_number_is_not_a_curve() -> None:
    (row,) = rows(step(0, reward=1, a=None, b="text", c=[1, 2], d=math.nan, e=math.inf, skipped=True, parts={"x y": 2}))
    assert row.values == {"train/reward": 1.0, "train/skipped": 1.0, "train/parts/x_y": 2.0}


def test_an_entry_without_a_number_or_of_another_event_makes_no_row() -> None:
    assert rows(("trainer", {"event": "step"}), ("trainer", {"event": "note", "text": "x"}), step(1)) == []


def test_what_the_planter_does_is_in_no_row() -> None:
    planted: Entry = {"event": "submission", "step": 1, "tokens": 10}
    (row,) = rows(("planter", planted), ("worker-0", planted), step(1, reward=1.0))
    assert row.values["workers/files"] == 1


def test_more_workers_make_no_more_curves() -> None:
    def names(count: int) -> set[str]:
        work: Entry = {"event": "submission", "step": 1, "tokens": 10}
        (row,) = rows(*[(f"worker-{n}", work) for n in range(count)], step(1, reward=1.0))
        return set(row.values)

    assert names(1) == names(500)


@given(st.dictionaries(st.text(), st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())))
def test_whatever_an_entry_holds_names_are_plain_and_values_finite(entry: Entry) -> None:
    for name, value in numbers_of(entry):
        assert math.isfinite(value)
        assert name
        assert not set(name) & set(" \n\t\"'{}")


def test_a_row_that_is_read_in_two_parts_is_the_row_that_is_read_at_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 2)
    history, live = History(run.path), Rows()
    parts = live.take(history.refresh())
    write_step(run, 2)
    parts += live.take(history.refresh())
    whole = Rows().take(History(run.path).refresh())
    assert {(r.group, r.number): r.values for r in parts} == {(r.group, r.number): r.values for r in whole}
