"""Each check alone: an honest submission passes, and one change breaks one rule, which is named with its values."""

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shoal.config import ThresholdsConfig
from shoal.errors import TaskError
from shoal.protocol.rollout import bare_rollout
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding, Verdict, shown
from shoal.rl.advantages import group_advantages
from shoal.tasks.source import Score, Split, Task
from shoal.validate.checks.all_checks import noise_keys
from shoal.validate.checks.proofs import check_computation, check_lengths
from shoal.validate.checks.rewards import check_rewards
from shoal.validate.checks.sampling import check_free, check_logprobs, check_seeded, surprise, unlikely_ends
from shoal.validate.checks.tasks import check_tasks
from shoal.validate.checks.termination import check_termination
from shoal.validate.checks.version import check_version
from shoal.validate.recompute import TILTS, UNLIKELY, Replayed, replay
from tests.support.model_and_checks import VERSIONS, World, gym, with_sample
from tests.support.submissions import make_lease, make_submission

LIMITS = ThresholdsConfig(shortfall=0.02, inexact_share=0.002, inexact_tokens=2, logprob=0.01)


def said(finding: Finding | None) -> tuple[Any, ...]:
    """What a finding says, without its rule, which must be there."""
    assert finding is not None
    assert finding.rule
    assert finding.check in str(finding)
    return finding.check, finding.sample, finding.claimed, finding.found


@pytest.fixture(scope="module")
def replayed(world: World, honest: Submission) -> list[Replayed]:
    return replay(world.checks.policy, honest.rollouts, noise_keys(honest, world.config), 1.0, 4096)


def roots(number: int) -> str | None:
    return {version.number: version.root for version in VERSIONS}.get(number)


def test_version(honest: Submission) -> None:
    assert check_version(honest, roots) is None
    assert said(check_version(replace(honest, version=3), roots)) == ("version", None, 3, 1)
    assert said(check_version(replace(honest, version=-1), roots)) == ("version", None, -1, 1)
    for version in (0, 2):  # not too old for the step, and not the lease's
        assert said(check_version(replace(honest, version=version), roots)) == ("version", None, version, 1)
    assert said(check_version(honest, lambda _: None)) == ("version", None, "a1" * 32, None)
    assert said(check_version(replace(honest, weights="a0" * 32), roots)) == ("version", None, "a0" * 32, "a1" * 32)


def test_tasks(world: World, honest: Submission) -> None:
    encode = world.checks.policy.encode_task
    assert check_tasks(honest, gym(), encode) is None
    group = [n for n, r in enumerate(honest.rollouts) if r.group == 1]
    own = honest.rollouts[group[0]]
    other = honest
    for number in group:
        other = with_sample(other, number, task=12)
    expected = ("tasks", group[0], "spell_backward task 12", f"spell_backward task {own.task}")
    assert said(check_tasks(other, gym(), encode)) == expected
    for number in group:
        other = with_sample(other, number, task=own.task, source="another")
    assert said(check_tasks(other, gym(), encode))[:3] == ("tasks", group[0], f"another task {own.task}")
    longer = with_sample(honest, group[2], prompt=[*own.prompt, 5])
    check, sample, claimed, found = said(check_tasks(longer, gym(), encode))
    assert (check, sample) == ("tasks", group[2])
    assert (claimed, found) == (shown([*own.prompt.tolist(), 5]), shown(own.prompt.tolist()))


class Mute:
    name = "spell_backward"

    def task(self, split: Split, index: int) -> Task:
        raise TaskError("nothing left to ask")

    def score(self, task: Task, answer: str) -> float:
        return 0.0


def test_a_task_that_nobody_can_ask_is_a_finding(honest: Submission) -> None:
    """No honest worker got past it, and a validator that falls over it would judge nobody any more."""

    def encode(_: Task) -> list[int]:
        raise ValueError("no tokens for this")

    assert said(check_tasks(honest, Mute(), lambda _: [1]))[3] == "TaskError: nothing left to ask"
    assert said(check_tasks(honest, gym(), encode))[3] == "ValueError: no tokens for this"


def scores_of(submission: Submission) -> list[Score]:
    return [Score(r.reward) for r in submission.rollouts]


def test_rewards(honest: Submission) -> None:
    scores = scores_of(honest)
    assert check_rewards(honest, scores, normalise=True) is None
    reward = honest.rollouts[5].reward
    assert reward is not None
    lie = with_sample(honest, 5, reward=reward + 0.25)
    assert said(check_rewards(lie, scores, normalise=True)) == ("rewards", 5, reward + 0.25, reward)
    lie = with_sample(honest, 5, reward=reward + 1e-6)
    assert said(check_rewards(lie, scores, normalise=True))[:2] == ("rewards", 5)
    lie = with_sample(honest, 9, advantage=honest.rollouts[9].advantage + 1e-3)
    check, sample, _, found = said(check_rewards(lie, scores, normalise=True))
    assert (check, sample) == ("rewards", 9)
    assert found == pytest.approx(honest.rollouts[9].advantage, abs=1e-6)
    assert said(check_rewards(honest, scores, normalise=False))[0] == "rewards"


@pytest.mark.parametrize("nothing", [math.nan, math.inf, -math.inf])
def test_a_reward_or_advantage_that_is_no_number_never_passes(honest: Submission, nothing: float) -> None:
    scores = scores_of(honest)
    for field in ("reward", "advantage"):
        lie = with_sample(honest, 2, **{field: nothing})
        assert said(check_rewards(lie, scores, normalise=True))[:2] == ("rewards", 2)


def test_where_the_scorer_fails_on_both_sides_the_group_teaches_nothing(honest: Submission) -> None:
    scores = [Score(None, "scorer raised") if n < 8 else score for n, score in enumerate(scores_of(honest))]
    failed = honest
    for number in range(8):
        failed = with_sample(failed, number, reward=None, error="another message", advantage=0.0)
    assert check_rewards(failed, scores, normalise=True) is None
    lie = with_sample(failed, 3, advantage=1.0)
    assert said(check_rewards(lie, scores, normalise=True)) == ("rewards", 3, 1.0, 0.0)


def test_where_only_our_scorer_fails_the_finding_is_about_the_scorer(honest: Submission) -> None:
    scores = scores_of(honest)
    scores[4] = Score(None, "took longer than 5 s")
    expected = ("scorer", 4, honest.rollouts[4].reward, "took longer than 5 s")
    assert said(check_rewards(honest, scores, normalise=True)) == expected


def test_where_only_the_workers_scorer_fails_the_finding_is_about_the_scorer(honest: Submission) -> None:
    scores = scores_of(honest)
    slow = with_sample(honest, 4, reward=None, error="took\x1b too long")
    expected = ("scorer", 4, repr("took\x1b too long"), honest.rollouts[4].reward)
    assert said(check_rewards(slow, scores, normalise=True)) == expected


def test_rewards_a_hair_apart_would_have_taught_something(honest: Submission) -> None:
    """What the exactness of rewards is for: advantages divide by whatever the rewards differ by."""
    hair = torch.tensor([[0.0, 5e-6] * 4])
    assert group_advantages(hair)[0].abs().min() > 0.5
    flat = replace(honest, rollouts=[replace(r, reward=0.0, advantage=0.0) for r in honest.rollouts])
    nudged = with_sample(flat, 1, reward=5e-6)
    assert check_rewards(flat, scores_of(flat), normalise=True) is None
    assert said(check_rewards(nudged, scores_of(flat), normalise=True)) == ("rewards", 1, 5e-6, 0.0)


def test_termination() -> None:
    honest = make_submission(make_lease())
    ends, most = frozenset({1, 2}), 8

    def judged(**changes: Any) -> Finding | None:
        return check_termination(with_sample(honest, 3, **changes), ends, most)

    assert check_termination(honest, ends, most) is None
    assert judged(completion=[5] * 8, finish="length") is None
    assert judged(completion=[5, 2], finish="eos") is None
    assert said(judged(completion=[5, 1, 5, 1])) == ("termination", 3, "4 tokens", "an end token at 1")
    assert said(judged(completion=[5, 1, 5], finish="length")) == ("termination", 3, "3 tokens", "an end token at 1")
    assert said(judged(completion=[5, 6])) == ("termination", 3, "finish eos", "no end token")
    assert said(judged(completion=[5, 6], finish="length")) == ("termination", 3, "finish length", "2 tokens")
    assert said(judged(completion=[*[5] * 7, 1], finish="length"))[3] == "8 tokens, ended"


def test_proof_lengths(world: World, honest: Submission) -> None:
    hidden = world.checks.policy.hidden_size
    assert check_lengths(honest, hidden) is None
    proof = honest.rollouts[6].proof
    for wrong in (b"", proof[:-2], proof + proof, proof[:-1]):
        finding = said(check_lengths(with_sample(honest, 6, proof=wrong), hidden))
        assert finding == ("computation", 6, f"{len(wrong)} bytes", f"{len(proof)} bytes needed")


def test_seeded_draws(honest: Submission, replayed: Sequence[Replayed]) -> None:
    assert check_seeded(honest, replayed, LIMITS) is None

    def judged(number: int, shortfalls: Sequence[float], limits: ThresholdsConfig = LIMITS) -> Finding | None:
        changed = list(replayed)
        changed[number] = replace(changed[number], shortfalls_T=np.array(shortfalls))
        return check_seeded(honest, changed, limits)

    token = honest.rollouts[7].completion[1]
    assert said(judged(7, [0.0, 0.5])) == ("sampling", 7, f"token {token}", "0.5 below the best")
    assert said(judged(7, [0.0, math.nan]))[:3] == ("sampling", 7, f"token {token}")
    assert said(judged(7, [0.0, math.inf]))[:3] == ("sampling", 7, f"token {token}")
    assert judged(7, [0.01, 0.01]) is None, "as many as two are rounding"
    check, sample, claimed, found = said(judged(7, [0.01] * 3))
    assert (check, sample, found) == ("sampling", None, "3 not the best")
    assert claimed.endswith("tokens")
    strict = ThresholdsConfig(inexact_tokens=0, inexact_share=0.0)
    assert said(judged(7, [1e-9], strict))[3] == "1 not the best"


def test_a_file_of_many_tokens_may_have_a_share_that_is_not_the_best(honest: Submission) -> None:
    def judged(inexact: int) -> Finding | None:
        shortfalls = np.zeros(1000)
        shortfalls[:inexact] = 0.01
        own = Replayed(torch.zeros(1, 1), shortfalls, shortfalls, None, None, None)
        return check_seeded(honest, [own], LIMITS)

    assert judged(4) is None
    assert judged(5) is not None


def test_logprobs(honest: Submission, replayed: Sequence[Replayed]) -> None:
    assert check_logprobs(honest, replayed, LIMITS) is None
    own = honest.rollouts[4].logprobs.tolist()
    for wrong in (own[0] - 0.02, own[0] + 0.02, math.nan, -math.inf):
        finding = check_logprobs(with_sample(honest, 4, logprobs=[wrong, *own[1:]]), replayed, LIMITS)
        check, sample, claimed, found = said(finding)
        assert (check, sample) == ("logprobs", 4)
        assert claimed == pytest.approx(wrong, rel=1e-6) or math.isnan(wrong)
        assert found == pytest.approx(own[0], abs=1e-4)
    assert check_logprobs(with_sample(honest, 4, logprobs=[own[0] + 0.005, *own[1:]]), replayed, LIMITS) is None


def test_a_nan_of_our_own_never_passes(honest: Submission, replayed: Sequence[Replayed]) -> None:
    broken = list(replayed)
    broken[3] = replace(broken[3], logprobs_T=np.full_like(broken[3].logprobs_T, math.nan))
    assert said(check_logprobs(honest, broken, LIMITS))[:2] == ("logprobs", 3)


def test_computation(honest: Submission, replayed: Sequence[Replayed]) -> None:
    assert check_computation(honest, replayed, LIMITS) is None
    other = next(r for r in honest.rollouts if len(r.proof) == len(honest.rollouts[8].proof) and r.group == 0)
    for wrong in (bytes(len(other.proof)), other.proof, other.proof[:-2]):
        check, sample, claimed, found = said(check_computation(with_sample(honest, 8, proof=wrong), replayed, LIMITS))
        assert (check, sample, claimed) == ("computation", 8, f"a proof of {len(wrong)} bytes")
        assert found.startswith("chunk 0: ")


@pytest.fixture(scope="module")
def free(world: World, honest: Submission) -> list[Replayed]:
    return replay(world.checks.policy, honest.rollouts, None, 1.0, 4096)


def test_free_draws(honest: Submission, free: Sequence[Replayed]) -> None:
    assert check_free(honest, free, LIMITS) is None
    unlikely = [replace(own, logprobs_T=own.logprobs_T - 4.0) for own in free]
    check, _, claimed, found = said(check_free(honest, unlikely, LIMITS))
    assert (check, claimed) == ("sampling", "fair draws")
    assert "nats of evidence" in found
    likely = [replace(own, logprobs_T=own.logprobs_T * 0) for own in free]
    assert said(check_free(honest, likely, LIMITS))[0] == "sampling"
    one = [replace(own, logprobs_T=own.logprobs_T - 40.0) if n == 6 else own for n, own in enumerate(free)]
    assert said(check_free(honest, one, LIMITS))[:2] == ("sampling", 6)


@pytest.mark.parametrize(("share", "told"), [(0.02, False), (0.03, False), (0.08, True), (0.0, True)])
def test_a_second_mode_near_zero_is_seen(share: float, told: bool) -> None:
    """Of 1,000 tokens 2 % should be less likely than 1e-4; that is all that is known here."""
    logp_T = np.full(1000, -0.5)
    logp_T[: int(1000 * share)] = -12.0
    tails_TU = np.full((1000, len(UNLIKELY)), 0.02)
    flat = np.full((1000, len(TILTS)), 10.0)
    own = Replayed(torch.zeros(1000, 1), logp_T, None, flat, tails_TU, np.zeros(1000))
    assert surprise([own]) > 16 if told else surprise([own]) < 1


def test_ends_at_unlikely_places_are_counted(honest: Submission, free: Sequence[Replayed]) -> None:
    early = []
    for own in free:
        assert own.ends_T is not None
        early.append(replace(own, ends_T=np.full_like(own.ends_T, 1e-3)))
    assert said(check_free(honest, early, LIMITS))[:3] == ("termination", None, "fair draws")
    one = [own if n else early[0] for n, own in enumerate(free)]
    assert check_free(honest, one, LIMITS) is None, "one in a file is what fair draws do"


def test_the_ends_of_all_turns_are_counted_and_not_the_last_one_alone() -> None:
    runs = np.array([10, 3] * 5 + [10], np.int32)
    sample = replace(bare_rollout([1], [5] * 75), runs=runs)
    assert sample.ended_at == [9, 19, 29, 39, 49, 59]
    assert replace(sample, finish="length").ended_at == [9, 19, 29, 39, 49]
    ends_T = np.full(60, 0.02)
    ends_T[-1] = 0.9
    nothing = np.zeros((60, 1))
    own = Replayed(torch.zeros(60, 1), np.zeros(60), None, nothing, nothing, ends_T)
    submission = SimpleNamespace(rollouts=[sample] * 64)
    assert unlikely_ends(submission, [own] * 64) > 100  # type: ignore[arg-type]
    last_alone = SimpleNamespace(rollouts=[replace(sample, runs=np.array([10, 3, 50], np.int32))] * 64)
    assert unlikely_ends(last_alone, [own] * 64) < 16  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("field", ["logprobs_T", "tilts_TL", "tails_TU", "ends_T"])
def test_a_nan_is_no_fair_draw(honest: Submission, free: Sequence[Replayed], field: str) -> None:
    values = np.full_like(getattr(free[2], field), math.nan)
    broken = [replace(own, **{field: values}) if n == 2 else own for n, own in enumerate(free)]
    finding = check_free(honest, broken, LIMITS)
    assert finding is not None
    assert finding.check in ("sampling", "termination")


def test_replaying_gives_an_entry_a_token_and_what_the_engine_had(
    world: World, honest: Submission, replayed: Sequence[Replayed], free: Sequence[Replayed]
) -> None:
    for sample, own, other in zip(honest.rollouts, replayed, free, strict=True):
        size = len(sample.completion)
        assert own.states_TD.shape == (size, world.checks.policy.hidden_size)
        assert np.abs(own.logprobs_T - sample.logprobs).max() < 1e-4
        assert own.shortfalls_T is not None
        assert len(own.shortfalls_T) == size
        assert other.tilts_TL is not None
        assert other.tilts_TL.shape == (size, len(TILTS))
        assert other.tails_TU is not None
        assert other.tails_TU.shape == (size, len(UNLIKELY))
        assert other.shortfalls_T is own.tilts_TL is own.tails_TU is own.ends_T is None


def test_a_verdict_comes_back_from_its_json_as_it_was() -> None:
    finding = Finding("rewards", "the rule", 0.0, None, 3)
    for verdict in (Verdict(True, "ab", True), Verdict(False, "ab", False, finding, "evidence/x.json")):
        assert Verdict.from_json(verdict.to_json()) == verdict
    assert Verdict(False, "", False, finding).reason == "rewards: sample 3: claimed 0.0, found None; the rule"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"accept": 1, "sha256": "", "audited": true, "finding": null}', "7"]
)
def test_what_is_no_verdict_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a verdict|EOF while parsing"):
        Verdict.from_json(text)


def test_long_lists_are_cut_in_messages() -> None:
    assert shown([1, 2]) == "[1, 2]"
    assert shown(range(20)) == "[0, 1, 2, 3, 4, 5, 6, 7, ...]"
