"""Free sampling: only averages are judged. Fair draws pass, other distributions do not, and a choice among fair draws
cannot be seen."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.validate.checks.sampling import check_free, surprise
from shoal.validate.recompute import replay
from tests.support.model_and_checks import World, build_world, lease_of, with_sample

FILES = 200


@pytest.fixture(autouse=True)
def _drawn_alike_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers draw with the system's randomness; here from a seed, so that a rare draw fails no test now and then."""
    drawn = SimpleNamespace(urandom=random.Random(0).randbytes)
    monkeypatch.setattr("shoal.generate.submission_builder.os", drawn)


@pytest.fixture(scope="module")
def world() -> World:
    return build_world("short", mode="free")


@pytest.fixture(scope="module")
def peaked() -> World:
    """Hardly a choice at most tokens, so that fair draws surprise seldom and much."""
    return build_world("short", mode="free", temperature=0.4)


@pytest.mark.parametrize("name", ["world", "peaked"])
def test_fair_draws_pass(name: str, request: pytest.FixtureRequest) -> None:
    world: World = request.getfixturevalue(name)
    maker = world.maker(max_batch=64)
    for number in range(FILES // 2):
        lease = lease_of(world, number)
        assert world.verdict(world.file(maker, lease), lease) is None


def test_fair_draws_are_other_ones_each_time(world: World) -> None:
    assert world.honest().rollouts != world.honest().rollouts


@pytest.mark.parametrize(
    ("attack", "check"),
    [
        ("small_model_text", "sampling"),
        ("temperature", "sampling"),
        ("top_k", "sampling"),
        ("early_ending", "termination"),
        ("false_logprobs", "logprobs"),
        ("own_mean_proof", "computation"),
        ("int4", "logprobs"),
    ],
)
def test_other_distributions_are_caught_in_files_of_some_length(world: World, attack: str, check: str) -> None:
    maker = world.maker(attack, max_batch=64)
    caught = []
    for number in range(5):
        lease = lease_of(world, number, groups=32)
        finding = world.verdict(world.file(maker, lease), lease)
        caught.append(finding.check if finding else None)
    assert caught.count(check) >= 4, caught


def test_what_cannot_be_caught_is_said() -> None:
    assert "cannot tell a fair draw from the best of n" in " ".join((check_free.__doc__ or "").split())


def test_fair_draws_have_little_evidence_against_them(peaked: World) -> None:
    """More than x nats with a probability below e^-x: of some 1,600 answers, none has 12."""
    answers = [sample for n in range(100) for sample in peaked.honest(submission=n).rollouts]
    found = replay(peaked.checks.policy, answers, None, 0.4, 4096)
    scores = np.array([surprise([own]) for own in found])
    assert scores.max() < 12
    assert np.mean(scores > 2) < np.exp(-2)


def test_one_answer_that_is_hardly_possible_is_caught_alone(peaked: World) -> None:
    """The other samples of a long file do not hide it, nor do log-probs that are right."""
    honest = peaked.honest(groups=4)
    worst = [peaked.workers.vocab - 1] * 11 + [1]
    assert honest.rollouts[3].completion.tolist() != worst
    forged = with_sample(honest, 3, completion=worst, logprobs=[0.0] * 12)
    [own] = replay(peaked.checks.policy, [forged.rollouts[3]], None, 0.4, 4096)
    finding = next(peaked.checks.costly([with_sample(forged, 3, logprobs=own.logprobs_T.tolist())]))
    assert finding is not None
    assert (finding.check, finding.sample) == ("sampling", 3)
