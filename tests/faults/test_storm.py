"""Invariants 1 to 8 hold after every event of a storm, and the run completes; `make soak` does it for ten minutes."""

import os
from pathlib import Path

import pytest

from tests.faults.checks import read_records
from tests.faults.storm import HONEST, Storm, one_of_each

SEED = int(os.environ.get("SHOAL_STORM_SEED", "5192"))
STEPS = 14


@pytest.mark.timeout(900)
def test_a_run_in_a_storm_completes_and_every_accepted_rollout_counts_exactly_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    notes: list[str] = [f"seed {SEED}; SHOAL_STORM_SEED={SEED} repeats it"]
    with Storm(tmp_path, SEED, STEPS, notes.append, hurry=True) as storm:
        events = one_of_each(SEED, list(storm.kinds()))
        try:
            storm.blow(events)
        except AssertionError as error:
            raise AssertionError("\n".join([*notes, str(error)])) from None
        assert len(events) >= 13
        assert set(events) <= storm.events.keys()
        rejected = {row.node for row in read_records(storm.run).submissions if row.accept is False}
        assert rejected & storm.dishonest, "nothing of the cheater or the strangers was ever judged"
        names = {row.name for row in read_records(storm.run).nodes if row.accepted}
        assert names == set(HONEST)
