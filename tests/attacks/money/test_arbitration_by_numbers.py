"""Challenges of what numbers say, in bfloat16 runs: the arbiter goes by the newest honest rates of the run, and blames
nobody where it only reports. No honest node is slashed, and no honest validator put out, for rates that changed.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.client.challenge import Rulings
from shoal.client.verdict_writer import Judged
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import NUMBERS, Finding
from shoal.validate.evidence import replay as again
from tests.protocol.test_rates_table import H100, TABLE, rates_file
from tests.support.challenge_trial import Trial, open_trial
from tests.support.coordinator_in_process import VALIDATOR
from tests.support.model_and_checks import World, build_world, with_sample
from tests.support.validator_in_process import InThisProcess

MANY = {"groups_per_step": 64, "token_budget": 1024}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.client.rollout_store.LONG_POLL_S", 0.02)
    monkeypatch.setattr(again, "Scorer", InThisProcess)


@pytest.fixture(scope="module")
def world() -> World:
    return build_world("long", "bfloat16", group_size=8)


def sampled(world: World) -> dict[str, object]:
    return world.config.sampling.model_dump()


@pytest.fixture
def shadow(tmp_path: Path, world: World) -> Iterator[Trial]:
    with open_trial(tmp_path, world, train=MANY, sampling=sampled(world), audit={"enforce": False}) as trial:
        trial.announce(1)
        yield trial


@pytest.fixture
def trial(tmp_path: Path, world: World) -> Iterator[Trial]:
    with open_trial(tmp_path, world, train=MANY, sampling=sampled(world)) as trial:
        trial.announce(1)
        yield trial


def odd(trial: Trial, name: str) -> Submission:
    """What hardware that nobody has measured hands in: log-probs that the run's first rates do not explain."""
    submission, rng = trial.honest(name), np.random.default_rng(0)
    for number, sample in enumerate(submission.rollouts):
        off = sample.logprobs + rng.normal(0.0, 0.2, len(sample.logprobs))
        submission = with_sample(submission, number, logprobs=off.tolist())
    return submission


def test_where_numbers_are_only_reported_nobody_is_slashed_for_them(shadow: Trial) -> None:
    lease = shadow.hand_in("odd", odd(shadow, "odd"))
    shadow.hand_in("b", shadow.honest("b"))
    shadow.judge()
    shadow.settle()
    assert shadow.outcome(lease) == "a"
    shadow.challenge("b", lease, "reject")
    shadow.rates = TABLE
    assert shadow.arbitrate() == Rulings(refuted=1), shadow.said.getvalue()
    assert (shadow.outcome(lease), shadow.slashed("odd")) == ("a", 0)


@pytest.mark.parametrize("loosened", [True, False])
def test_what_only_looser_rates_acquit_costs_neither_its_node_nor_its_validator_anything(
    trial: Trial, loosened: bool
) -> None:
    """And what no rates of the run ever spoke against costs the validator that accused it its standing."""
    lease = trial.hand_in("odd", odd(trial, "odd") if loosened else trial.honest("odd"))
    if loosened:
        trial.judge()
    else:
        lie(trial)
    trial.settle()
    assert (trial.outcome(lease), trial.slashed("odd") > 0) == ("r", True)
    trial.rates = TABLE.loosened(rates_file(300.0, H100), "rates")
    trial.challenge("odd", lease, "accept")
    assert trial.arbitrate() == Rulings(upheld=1), trial.said.getvalue()
    assert (trial.outcome(lease), trial.slashed("odd")) == ("a", 0)
    judge = trial.state.judges[VALIDATOR.address]
    assert (judge.standing, judge.refuted) == ((100, 0) if loosened else (66, 1))
    assert ("is excused" in trial.said.getvalue()) is loosened


def lie(trial: Trial) -> None:
    (upload,) = trial.validator.store.waiting(0, 9)
    submission, sha256 = trial.validator.store.read(upload)
    said = Finding(NUMBERS, "numbers differ", "honest rounding", "40 nats of evidence")
    trial.validator._reject(Judged(upload, submission, sha256, said, audited=True, began=0.0))
