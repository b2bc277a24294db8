"""Ways to evade or overload the validator: each is closed, and honest nodes do not notice."""

import io
import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from shoal.config import TaskConfig
from shoal.errors import BannedError, ConfigError
from shoal.protocol.submission import Submission, groups_with_signal, write_rollouts
from shoal.protocol.verdict import Verdict
from shoal.rollout_size import MAX_BYTES
from shoal.rundir import check_worker_name
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import InProcess, Score, Split, Task
from shoal.tasks.sources.gym.safe_answers import in_form
from shoal.validate.checks.all_checks import noise_keys
from shoal.validate.recompute import replay
from tests.support.model_and_checks import World, gym
from tests.support.validator_in_process import Court, open_court


@pytest.fixture
def court(tmp_path: Path, world: World) -> Court:
    return open_court(tmp_path / "run", world)


def with_footer(submission: Submission, **entries: str) -> bytes:
    """The file of a submission with other words in its footer."""
    table = pq.read_table(io.BytesIO(write_rollouts(submission, groups_with_signal(submission))))
    changed = {f"shoal.{key}".encode(): text.encode() for key, text in entries.items()}
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(table.schema.metadata | changed), buffer)
    return buffer.getvalue()


def refused_for(court: Court, submission: Submission, data: bytes) -> Verdict:
    court.store.put(submission.lease, data)
    court.judge()
    verdict = court.verdict(submission.lease)
    assert not verdict.accept
    return verdict


@pytest.mark.parametrize(
    "change", [{"finish": "\x00" * 100_000}, {"error": "\x00" * 100_000}, {"source": "\x1b[31m" * 2000}]
)
def test_long_texts_in_a_file_make_no_long_verdict(court: Court, change: dict[str, Any]) -> None:
    """A verdict or a ban of more than 16 MB counts as none, so its file would be judged for ever."""
    submission = court.honest("cheat")
    changed = submission.rollouts[-1].group if "source" in change else -1  # one task has one source
    rollouts = [replace(r, **change) if r.group == changed else r for r in submission.rollouts]
    if changed < 0:
        rollouts[0] = replace(rollouts[0], **change)
    lie = replace(submission, rollouts=rollouts)
    verdict = refused_for(court, submission, write_rollouts(lie, groups_with_signal(lie)))
    assert len(verdict.to_json()) < 5000


def test_a_footer_is_small(court: Court) -> None:
    """Each pair of brackets takes thirty times its room in the memory of the process that parses it."""
    submission = court.honest("cheat")
    data = with_footer(submission, lease="[" + "[]," * 10_000_000 + "[]]")
    assert "footer of" in str(refused_for(court, submission, data).reason)


def test_a_file_that_is_too_large_is_not_even_hashed(court: Court) -> None:
    submission = court.honest("cheat")
    court.store.put(submission.lease, b"PAR1")
    os.truncate(court.store.records.file(submission.lease), 64 * MAX_BYTES)
    began = time.process_time()
    court.judge()
    assert time.process_time() - began < 5
    assert "bytes" in court.verdict(submission.lease).reason


def test_versions_that_never_were_are_their_makers_fault(court: Court) -> None:
    """A false root or a version of the future costs nothing to claim, and no computation shows it."""
    for change in ({"weights": "f" * 64}, {"version": 2}):
        court.hand_in_submission(replace(court.honest("cheat"), **change))
        court.judge()
    assert court.validator.strikes == {"cheat": 2}
    with pytest.raises(BannedError):
        court.store.lease("cheat", 1)


class Hesitant(InProcess):
    """A scorer that is not done in time."""

    def scores(self, split: Split, answers: Sequence[tuple[Task, str]], seconds: float = math.inf) -> list[Score]:
        if math.isfinite(seconds):
            return [Score(None, "took too long")] * len(answers)
        return super().scores(split, answers)


def test_answers_that_are_made_up_to_fail_our_scorer_are_their_makers_fault(tmp_path: Path, world: World) -> None:
    """No file is rejected for our scorer's sake alone before it is known that its answers were drawn."""
    court = open_court(tmp_path / "run", world, audit={"rate": 0.0})
    court.validator.checks.judge = Hesitant(gym())
    honest, cheat = court.hand_in("honest"), court.hand_in("cheat", "best_of_n")
    court.judge()
    assert court.verdict(honest).accept
    finding = court.verdict(cheat).finding
    assert finding is not None
    assert finding.check == "sampling"
    assert court.validator.strikes == {"cheat": 1}


class Fickle(InProcess):
    """A scorer of programs that look at the clock: each time it says another thing."""

    said = 0

    def scores(self, split: Split, answers: Sequence[tuple[Task, str]], seconds: float = math.inf) -> list[Score]:
        Fickle.said += 1
        return [Score(float(Fickle.said))] * len(answers)


def test_nobody_is_blamed_where_our_own_scorer_wavers(tmp_path: Path, world: World) -> None:
    court = open_court(tmp_path / "run", world, audit={"rate": 0.0})
    honest, cheat = court.hand_in("honest"), court.hand_in("cheat", "false_reward")
    court.validator.checks.judge = Fickle(gym())
    court.judge()
    finding = court.verdict(honest).finding
    assert finding is not None
    assert finding.check == "scorer"
    assert not court.verdict(cheat).accept
    assert court.validator.strikes == {}


def test_all_answers_of_a_file_have_one_deadline() -> None:
    tasks = [TaskConfig(source="reasoning-gym/simple_integration")]
    task = build_source(tasks).task("train", 0)
    with Scorer(tasks) as scorer:
        assert scorer.scores("train", [(task, "x")])[0].reward is not None
        began = time.monotonic()
        found = scorer.scores("train", [(task, "9**9**9**9")] * 20, 2.0)
        assert time.monotonic() - began < 30  # a deadline per answer would be 40 s
        assert len(found) == 20
        assert all(score.reward is None and score.error for score in found)
        assert scorer.scores("train", [(task, "x")])[0].reward is not None


@pytest.mark.parametrize("generator", ["polynomial_multiplication", "simple_integration", "countdown"])
def test_forms_are_matched_in_one_pass(generator: str) -> None:
    began = time.process_time()
    assert not in_form(generator, "1" * 10_000 + "!")
    assert time.process_time() - began < 1


def test_a_node_with_a_strike_is_audited_always(tmp_path: Path, world: World) -> None:
    court = open_court(tmp_path / "run", world, audit={"rate": 0.0, "strikes": 5})
    court.hand_in("cheat", "false_reward")
    court.judge()
    leases = court.hand_in("cheat"), court.hand_in("cheat", "best_of_n"), court.hand_in("honest")
    court.judge()
    assert [court.verdict(lease).audited for lease in leases] == [True, True, False]
    assert [court.verdict(lease).accept for lease in leases] == [True, False, True]


def test_no_worker_goes_by_the_name_of_the_validator() -> None:
    with pytest.raises(ConfigError):
        check_worker_name("validator")


def test_an_answer_longer_than_the_budget_is_computed_alone(world: World, honest: Submission) -> None:
    keys = noise_keys(honest, world.config)
    found = replay(world.checks.policy, honest.rollouts, keys, 1.0, 3)
    assert [len(own.logprobs_T) for own in found] == [len(sample.completion) for sample in honest.rollouts]
