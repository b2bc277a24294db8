"""Episodes token by token: contexts, noise, log-probs, proofs, loss and limits across turns."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from shoal import toploc
from shoal.generate.engine import Completion, Request
from shoal.generate.episodes import Episode
from shoal.protocol.rollout import Rollout
from shoal.protocol.submission import Submission
from shoal.protocol.turns import inserted_runs
from shoal.tasks.environments.environment import Observation, Played
from shoal.tasks.source import Score, Task
from shoal.train.batch import Group, pack, sort_groups, staleness
from shoal.train.scorer import logprobs
from shoal.validate.recompute import replay
from tests.support.episode_world import TURNS, VERSION, EpisodeWorld, episode_world, lease_of

EOS = 1
TASK = Task("calculator", 0, "2*3?", None, {})


@pytest.fixture(scope="module")
def world() -> EpisodeWorld:
    return episode_world()


@pytest.fixture(scope="module")
def played(world: EpisodeWorld) -> Submission:
    submission = world.honest(groups=4)
    assert max(len(r.turns) for r in submission.rollouts) > 2, "too short to show anything"
    return submission


def episode(max_new: int = 40, max_turns: int = 4, tokens: int = 8) -> Episode:
    return Episode(
        Request((5, 6), 7, 3, max_new),
        task=TASK,
        max_turns=max_turns,
        turn_tokens=tokens,
        decode=lambda ids: " ".join(map(str, ids)),
        between=lambda _, role, text: [50, 60 + len(text), 51],
    )


def turn(*tokens: int) -> Completion:
    finish = "eos" if tokens[-1] == EOS else "length"
    return Completion(0, list(tokens), [-0.5] * len(tokens), finish, b"p" * len(tokens))  # type: ignore[arg-type]


def test_a_turn_is_asked_for_behind_all_that_there_is_and_at_its_own_place() -> None:
    own = episode()
    assert own.piece(40, 7) == Request((5, 6), 7, 3, 8)
    own.add(turn(20, 21, EOS))
    own.observe(Played((Observation("abc"),)))
    assert own.piece(40, 7) == Request((5, 6, 20, 21, EOS, 50, 63, 51), 7, 3, 8, position=6)
    own.add(turn(30, EOS))
    own.observe(Played((Observation(over=True),), Score(1.0)))
    done = own.completion(0)
    assert (done.tokens, done.finish) == ([20, 21, EOS, 50, 63, 51, 30, EOS], "eos")
    assert (len(done.logprobs), done.proof, own.runs) == (5, b"p" * 5, [3, 3, 2])
    assert own.actions == ["20 21 1", "30 1"]


def test_a_turn_that_is_cut_off_is_no_action_and_ends_the_episode() -> None:
    own = episode(tokens=2)
    own.add(turn(20, 21))
    assert (own.call().actions, own.call().score) == ((), True)
    own.observe(Played((), Score(0.0)))
    assert (own.finish, own.score) == ("length", Score(0.0))


def test_the_last_turn_that_is_allowed_is_played_and_scored() -> None:
    own = episode(max_turns=1)
    own.add(turn(20, EOS))
    assert own.call().score
    own.observe(Played((Observation("go on"),), Score(0.5)))
    assert (own.finish, own.score, own.turns) == ("eos", Score(0.5), 1)


def test_an_observation_behind_which_nothing_fits_is_not_inserted() -> None:
    own = episode(max_new=6)
    own.add(turn(20, 21, EOS))
    own.observe(Played((Observation("x"),)))
    assert own.is_acting
    assert own.call().score
    own.observe(Played((), Score(0.25)))
    assert (own.tokens, own.finish, own.score) == ([20, 21, EOS], "eos", Score(0.25))


def test_a_void_episode_has_an_error_and_no_reward() -> None:
    own = episode()
    own.add(turn(20, EOS))
    own.observe(Played(error="hung"))
    assert own.score == Score(None, "hung")
    assert own.finish == "eos"


def test_drawn_tokens_are_never_encoded_again(world: EpisodeWorld) -> None:
    """Every request's prompt is the prompt and the tokens so far, and each turn in the file is what was drawn."""
    maker = world.maker()
    made = dict[tuple[int, ...], list[int]]()
    honest = maker.answer

    class Noting(type(maker)):  # type: ignore[misc]
        def answer(self, requests: Sequence[Request]) -> list[Completion]:
            found = honest(requests)
            for request, completion in zip(requests, found, strict=True):
                made[(request.sample, *request.prompt)] = completion.tokens
            return found

    noting = Noting(maker.config, maker.policy, maker.engine, maker.tasks, maker.judge)
    for number, sample in enumerate(noting.make(lease_of(), VERSION).rollouts):
        for begin, end in sample.turns:
            context = (number, *sample.prompt.tolist(), *sample.completion[:begin].tolist())
            assert made[context] == sample.completion[begin:end].tolist()


def test_inserted_text_stands_behind_the_turn_that_it_answers(world: EpisodeWorld, played: Submission) -> None:
    for sample in played.rollouts:
        for begin, end in inserted_runs(sample.runs):
            text = str(world.workers.tokenizer.decode(sample.completion[begin:end].tolist()))
            assert text.startswith("\n")
            assert text.endswith("\n")
            assert sample.completion[begin - 1] in world.workers.eos_ids
            assert not set(sample.completion[begin:end].tolist()) & world.workers.eos_ids


def test_every_drawn_token_is_the_one_that_its_own_context_and_noise_give(
    world: EpisodeWorld, played: Submission
) -> None:
    keys = [(played.lease.seed, number) for number in range(len(played.rollouts))]
    own = replay(world.checks.policy, played.rollouts, keys, 1.0, 4096)
    for sample, found in zip(played.rollouts, own, strict=True):
        assert found.shortfalls_T is not None
        assert len(found.shortfalls_T) == sample.drawn_count
        assert float(found.shortfalls_T.max()) <= 1e-3
        assert np.abs(found.logprobs_T - sample.logprobs).max() < 1e-3


def shifted(sample: Rollout) -> Rollout:
    """The same with its second turn said to begin a token earlier."""
    runs = sample.runs.copy()
    runs[1] -= 1
    runs[2] += 1
    return replace(sample, runs=runs, logprobs=np.append(sample.logprobs, np.float32(-1.0)))


def test_a_shifted_mask_is_found(world: EpisodeWorld, played: Submission) -> None:
    number = next(n for n, sample in enumerate(played.rollouts) if len(sample.runs))
    rollouts = [shifted(r) if n == number else r for n, r in enumerate(played.rollouts)]
    assert world.verdict(replace(played, rollouts=rollouts)) is not None


def groups_of(played: Submission) -> list[Group]:
    return [Group(own[0].prompt, own, [1.0] * len(own), 3) for own in played.groups()]


def test_the_loss_is_about_drawn_tokens_at_the_states_that_they_were_drawn_from(
    world: EpisodeWorld, played: Submission
) -> None:
    """The trainer's log-probs of loss tokens are the engine's own: masks, packing and positions fit together."""
    for batch in pack(groups_of(played), 4096):
        with torch.no_grad():
            logp_A, _ = logprobs(world.workers, batch, 1.0)
        assert torch.allclose(logp_A, batch.engine_logp_A, atol=1e-3)
        assert batch.target_A.numel() == sum(r.drawn_count for r in played.rollouts)
        assert batch.advantage_A.shape == batch.sample_A.shape == batch.version_A.shape == batch.target_A.shape
    assert len(pack(groups_of(played), 4096)) == 1


def test_loss_tokens_are_the_same_however_an_episode_is_packed(world: EpisodeWorld, played: Submission) -> None:
    longest = max(len(r.prompt) + len(r.completion) for r in played.rollouts)
    found = dict[int, list[int]]()
    for batch in pack(groups_of(played), longest):
        for number, target in zip(batch.sample_A.tolist(), batch.target_A.tolist(), strict=True):
            found.setdefault(int(batch.number_S[number]), []).append(target)
    assert [found[n] for n in range(len(played.rollouts))] == [r.drawn.tolist() for r in played.rollouts]


def test_staleness_counts_drawn_tokens_alone(played: Submission) -> None:
    groups = sort_groups([played], normalise=True)
    chosen = groups.signal + groups.flat
    assert staleness(3, chosen).largest == 3 - played.version
    drawn = sum(len(g.versions(sample)) for g in chosen for sample in g.samples)
    assert drawn == sum(r.drawn_count for r in played.rollouts)


def test_turns_and_tokens_are_within_their_limits(played: Submission) -> None:
    for sample in played.rollouts:
        assert len(sample.turns) <= TURNS["max"]
        assert all(end - begin <= TURNS["tokens"] for begin, end in sample.turns)
        assert len(sample.completion) <= 80


def test_proofs_are_of_drawn_tokens_turn_by_turn(world: EpisodeWorld, played: Submission) -> None:
    for sample in played.rollouts:
        sizes = [toploc.proof_size(end - begin, world.workers.hidden_size) for begin, end in sample.turns]
        assert len(sample.proof) == sum(sizes)


def test_length_budgets_count_drawn_tokens(world: EpisodeWorld) -> None:
    tables: dict[str, Any] = {"length": {"targets": [6], "alpha": 0.01, "prompt": "{target}: {prompt}"}}
    budgeted = episode_world(**tables)
    submission = budgeted.honest()
    assert any(len(r.completion) > r.drawn_count for r in submission.rollouts), "nothing was inserted that might count"
    assert budgeted.verdict(submission) is None
    for sample in submission.rollouts:
        assert sample.reward == pytest.approx((sample.task_reward or 0.0) - 0.01 * abs(6 - sample.drawn_count))
