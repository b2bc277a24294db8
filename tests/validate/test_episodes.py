"""Judging episodes: honest ones pass, lies are named, and what depends on the machine blames nobody."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from shoal.attacks import EPISODE_ATTACKS
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import NUMBERS, is_blame
from shoal.tasks.environments.environment import Observation, Played
from shoal.tasks.source import Score, Split, Task
from tests.support.episode_world import CALCULATOR, VERSION, EpisodeWorld, episode_world, lease_of

DRAWS = {"sampling", "logprobs", "computation"}
CAUGHT_BY = {
    "forged_tool_output": {"episode"},
    "edited_environment_text": {"episode"},
    "skipped_turn": {"episode"} | DRAWS,
    "extra_turn": {"episode"},
    "replayed_episode": DRAWS,
    "truncated_context": DRAWS,
    "other_arguments": {"episode"},
    "false_outcome": {"rewards"},
    "left_early": {"episode"},
}


@pytest.fixture(scope="module")
def world() -> EpisodeWorld:
    return episode_world()


@pytest.fixture(scope="module")
def honest(world: EpisodeWorld) -> Submission:
    return world.honest()


def test_honest_episodes_are_accepted(world: EpisodeWorld, honest: Submission) -> None:
    assert world.verdict(honest) is None
    assert world.verdict(world.honest(1)) is None


def test_every_attack_on_episodes_has_a_check_that_is_there_for_it() -> None:
    assert EPISODE_ATTACKS.keys() == CAUGHT_BY.keys()
    assert all(kind.__doc__ for kind in EPISODE_ATTACKS.values())


@pytest.mark.parametrize("attack", CAUGHT_BY)
def test_every_lie_about_an_episode_is_rejected_for_what_is_wrong_with_it(
    world: EpisodeWorld, honest: Submission, attack: str
) -> None:
    cheating = world.maker(attack).make(lease_of(), VERSION)
    assert cheating.rollouts != honest.rollouts, "an attack that changes nothing proves nothing"
    finding = world.verdict(cheating)
    assert finding is not None
    assert finding.check in CAUGHT_BY[attack], str(finding)
    assert is_blame(finding)


class Otherwise:
    """Plays as another judge does, but for what is changed."""

    def __init__(self, world: EpisodeWorld, *answers: Played) -> None:
        self._judge, self._answers = world.checks.judge, list(answers)

    def scores(self, split: Split, answers: Sequence[tuple[Task, str]], seconds: float = 1e9) -> list[Score]:
        return self._judge.scores(split, answers, seconds)

    def play(self, split: Split, task: Task, actions: Sequence[str], **how: Any) -> "Future[Played]":
        found: Future[Played] = Future()
        own = self._judge.play(split, task, actions, **how).result()
        found.set_result(self._answers.pop(0) if self._answers else own)
        return found


def judged_by(world: EpisodeWorld, *answers: Played) -> EpisodeWorld:
    return replace(world, checks=replace(world.checks, judge=Otherwise(world, *answers)))


def test_an_episode_that_is_void_here_alone_blames_nobody(world: EpisodeWorld, honest: Submission) -> None:
    finding = judged_by(world, Played(error="took longer than 10 s")).verdict(honest)
    assert finding is not None
    assert finding.check == "scorer"
    assert not is_blame(finding)


def test_an_episode_that_was_void_for_its_worker_alone_blames_nobody(world: EpisodeWorld, honest: Submission) -> None:
    void = [replace(r, reward=None, error="hung", advantage=0.0) for r in honest.rollouts]
    finding = world.verdict(replace(honest, rollouts=void))
    assert finding is not None
    assert not is_blame(finding)


def test_an_environment_that_plays_otherwise_each_time_blames_nobody(world: EpisodeWorld, honest: Submission) -> None:
    rules, first = world.checks.episodes, next(r for r in honest.rollouts if len(r.runs))
    episodes = list(dict.fromkeys((r.task, tuple(rules.actions(r))) for r in honest.rollouts))
    played = [
        world.checks.judge.play("train", world.tasks.task("train", task), actions, score=True).result()
        for task, actions in episodes
    ]
    number = episodes.index((first.task, tuple(rules.actions(first))))
    before, own, rest = played[:number], played[number], played[number + 1 :]
    other = replace(own, observations=(Observation("else"), *own.observations[1:]))
    finding = judged_by(world, *before, other, *rest).verdict(honest)
    assert finding is not None
    assert finding.check == "scorer"
    assert "the same each time" in finding.rule
    doubtful = replace(other, observations=(Observation("else", doubtful=True), *own.observations[1:]))
    finding = judged_by(world, *before, doubtful, *rest).verdict(honest)
    assert finding is not None
    assert not is_blame(finding)


def test_an_episode_of_several_turns_answers_an_environment(world: EpisodeWorld, honest: Submission) -> None:
    finding = world.checks.ended(replace(honest, rollouts=[replace(r, source="words") for r in honest.rollouts]))
    assert finding is not None
    assert finding.check == "termination"


def test_a_turn_is_no_longer_than_the_run_allows(world: EpisodeWorld, honest: Submission) -> None:
    short = replace(
        world.checks,
        config=world.config.model_copy(update={"turns": world.config.turns.model_copy(update={"tokens": 2})}),
    )
    finding = short.ended(honest)
    assert finding is not None
    assert finding.check == "termination"


class Counting(Otherwise):
    """Notes what is played."""

    def __init__(self, world: EpisodeWorld) -> None:
        super().__init__(world)
        self.played = list[tuple[int, tuple[str, ...]]]()

    def play(self, split: Split, task: Task, actions: Sequence[str], **how: Any) -> "Future[Played]":
        self.played.append((task.index, tuple(actions)))
        return super().play(split, task, actions, **how)


def test_equal_episodes_are_played_once_and_each_is_compared(world: EpisodeWorld, honest: Submission) -> None:
    counting = Counting(world)
    judged = replace(world, checks=replace(world.checks, judge=counting))
    rules, first = world.checks.episodes, next(r for r in honest.rollouts if len(r.runs))
    same = [replace(first, sample=n) for n in range(4)]
    twins = replace(honest, rollouts=same)
    finding = judged.checks.rewards(twins)
    assert finding is None or "advantage" in finding.rule  # which was of another group
    assert counting.played == [(first.task, tuple(rules.actions(first)))]
    forged = replace(first, sample=3, completion=first.completion.copy())
    forged.completion[int(first.runs[0])] += 1
    finding = judged.checks.rewards(replace(honest, rollouts=[*same[:3], forged]))
    assert finding is not None
    assert (finding.check, finding.sample) == ("episode", 3)


DICE = """
import random
from shoal.tasks.environments import calculator

deterministic = False
reset, chance = calculator.reset, random.SystemRandom()

def step(state, action):
    said = calculator.step(state, action)
    return said if said is None else str(chance.randint(1000, 9999))

def score(state):
    return chance.random()
"""
BUDGET: dict[str, Any] = {"length": {"targets": [12], "alpha": 0.01, "prompt": "{target}: {prompt}"}}


@pytest.fixture(scope="module")
def on_trust(tmp_path_factory: pytest.TempPathFactory) -> EpisodeWorld:
    path = tmp_path_factory.mktemp("dice") / "dice.py"
    path.write_text(DICE)
    return episode_world(f"environment/{path}", CALCULATOR, unverified="accept", **BUDGET)


@pytest.fixture(scope="module")
def trusted(on_trust: EpisodeWorld) -> Submission:
    submission = on_trust.honest()
    assert any(len(r.runs) for r in submission.rollouts), "nothing was inserted"
    return submission


def test_an_honest_file_of_an_environment_on_trust_is_accepted_and_nobody_plays_it_again(
    on_trust: EpisodeWorld, trusted: Submission
) -> None:
    counting = Counting(on_trust)
    assert replace(on_trust, checks=replace(on_trust.checks, judge=counting)).verdict(trusted) is None
    assert counting.played == []
    config = on_trust.config
    lines = [line.model_copy(update={"unverified": "refuse"}) for line in config.tasks]
    strict = replace(on_trust.checks, config=config.model_copy(update={"tasks": lines}), judge=counting)
    finding = strict.rewards(trusted)
    assert finding is not None, "it plays the same each time, so the claim above would be empty"
    assert counting.played != []
    assert not is_blame(finding)


@pytest.mark.parametrize("attack", ["truncated_context", "replayed_episode"])
def test_on_trust_too_tokens_are_those_that_were_drawn_in_their_own_context(
    on_trust: EpisodeWorld, attack: str
) -> None:
    cheating = on_trust.maker(attack).make(lease_of(), VERSION)
    finding = on_trust.verdict(cheating)
    assert finding is not None
    assert finding.check in DRAWS, str(finding)


def test_on_trust_too_a_reward_follows_from_what_the_environment_gave_and_the_length(
    on_trust: EpisodeWorld, trusted: Submission
) -> None:
    first = trusted.rollouts[0]
    assert first.reward is not None
    more = replace(first, reward=first.reward + 0.05)
    finding = on_trust.checks.rewards(replace(trusted, rollouts=[more, *trusted.rollouts[1:]]))
    assert finding is not None
    assert (finding.check, finding.sample) == ("rewards", 0)


def test_a_prompt_that_nobody_can_make_again_costs_the_file_and_blames_nobody(
    on_trust: EpisodeWorld, world: EpisodeWorld, trusted: Submission, honest: Submission
) -> None:
    """It was tried before the run began; where a prompt changes later, its worker may be honest. That of an environment
    that can be played again is blamed."""
    for where, handed_in, blamed in ((on_trust, trusted, False), (world, honest, True)):
        first = handed_in.rollouts[0]
        prompt = first.prompt.copy()
        prompt[0] = prompt[1]
        finding = where.checks.drawn(
            replace(handed_in, rollouts=[replace(first, prompt=prompt), *handed_in.rollouts[1:]])
        )
        assert finding is not None
        assert (finding.sample, is_blame(finding)) == (0, blamed)


@pytest.fixture(scope="module")
def rounded() -> EpisodeWorld:
    return episode_world(dtype="bfloat16")


@pytest.mark.parametrize("number", range(3))
def test_honest_episodes_in_bfloat16_are_accepted(rounded: EpisodeWorld, number: int) -> None:
    submission = rounded.read(rounded.honest(number, groups=4))
    assert max(len(r.turns) for r in submission.rollouts) > 2, "too short to show anything"
    assert rounded.verdict(submission) is None
    weighed = rounded.checks.weigh(submission)
    assert weighed.tokens == sum(r.drawn_count for r in submission.rollouts), "inserted tokens are nobody's draw"
    assert weighed.total < 0


@pytest.mark.parametrize("attack", ["truncated_context", "replayed_episode"])
def test_in_bfloat16_too_turns_are_weighed_in_their_own_context(rounded: EpisodeWorld, attack: str) -> None:
    cheating = rounded.maker(attack).make(lease_of(groups=4), VERSION)
    finding = rounded.verdict(cheating)
    assert finding is not None
    assert is_blame(finding), str(finding)
    assert finding.check == NUMBERS
