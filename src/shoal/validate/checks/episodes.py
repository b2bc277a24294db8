"""Episode check: the environment is played again with what the policy said, and the file holds just what it answers.

Every inserted token is compared, and the episode ends where it has to: a turn that was left out, added or cut short, an
answer that the environment did not give, one that it gives to other words, all of them show here. That what the policy
said was drawn from this very context is the sampling check's concern.

What depends on the clock or on the machine is nobody's fault: an episode that was void for the worker or is void here,
and answers that the environment itself calls doubtful. Nor are the last digits of a fraction, in a text or in a score.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shoal.config import TurnsConfig
from shoal.models.chat import Turns
from shoal.protocol.rollout import Rollout, Tokens, read_parts
from shoal.protocol.turns import inserted_runs
from shoal.protocol.verdict import Finding, shown
from shoal.tasks.environments.environment import Observation, Played
from shoal.tasks.source import Score, TokenCount

CHECK = "episode"
# A finding that blames nobody.
UNSURE = "scorer"
MAX_REMEMBERED = 8192
# Fractions: whole numbers are computed alike everywhere.
NUMBER = re.compile(r"-?\d+\.\d*(?:[eE][-+]?\d+)?|-?\d+[eE][-+]?\d+")
# Sums of a few thousand numbers of float32 are off by less; and what is left of a difference by the second.
ROUNDED, NOTHING = 1e-5, 1e-9


@dataclass(frozen=True, slots=True)
class EpisodeRules:
    """What worker and validator know of episodes, besides the environment itself."""

    limits: TurnsConfig
    longest: int
    eos_ids: frozenset[int]
    turns: Turns
    decode: Callable[[Tokens], str]

    def actions(self, sample: Rollout) -> list[str]:
        """What the policy said, turn by turn."""
        return [self.decode(sample.completion[begin:end]) for begin, end in self._spans(sample)]

    def tokens(self, sample: Rollout) -> list[TokenCount]:
        """Of each action: tokens before it, and its own."""
        return [(len(sample.prompt) + begin, end - begin) for begin, end in self._spans(sample)]

    def _spans(self, sample: Rollout) -> list[tuple[int, int]]:
        """Where each action begins and ends. A turn without an end token was cut off and is not an action."""
        return [(begin, end) for begin, end in sample.turns if int(sample.completion[end - 1]) in self.eos_ids]

    def inserted(self, sample: Rollout, turn: int, observation: Observation) -> list[int]:
        """The tokens that belong behind a turn."""
        last = int(sample.completion[sample.turns[turn][1] - 1])
        return self.turns.between(last, observation.role, observation.text)


def remembered(decode: Callable[[Tokens], str]) -> Callable[[Tokens], str]:
    """The same, for turns that many episodes have."""

    @lru_cache(maxsize=MAX_REMEMBERED)
    def text(ids: bytes) -> str:
        return decode(np.frombuffer(ids, np.int32))

    return lambda ids: text(np.asarray(ids, np.int32).tobytes())


def differ_by_rounding(claimed: str, own: str) -> bool:
    """Whether two texts are the same but for the last digits of fractions, which processors and libraries of
    mathematics compute otherwise."""
    if claimed == own or NUMBER.sub("0", claimed) != NUMBER.sub("0", own):
        return False
    pairs = zip(NUMBER.findall(claimed), NUMBER.findall(own), strict=True)
    return all(_is_close(float(one), float(other)) for one, other in pairs)


def is_score_close(sample: Rollout, own: Score) -> bool:
    """Whether what a worker says that an episode earns is what it earns here, but for the last digits."""
    if sample.reward is None or own.reward is None:
        return False
    claimed = read_parts(sample.parts)
    is_whole_close = claimed.keys() == own.parts.keys() and _is_close(sample.reward, own.reward)
    return is_whole_close and all(_is_close(claimed[name], own.parts[name]) for name in claimed)


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=ROUNDED, abs_tol=NOTHING)


def check_episode(number: int, sample: Rollout, played: Played, rules: EpisodeRules) -> Finding | None:
    """Compares one episode with the same actions played here, which were all played and scored."""
    if sample.reward is None or played.error:
        return None  # void there or here: the check of rewards says so
    seen, turns = played.observations, sample.turns
    inserted = list(inserted_runs(sample.runs))
    last = len(turns) - 1
    for turn, (begin, end) in enumerate(inserted):
        check = UNSURE if any(one.doubtful for one in seen[: turn + 1]) else CHECK
        if turn >= len(seen) or seen[turn].over:
            ended = f"the environment is over after turn {len(seen) - 1}"
            return Finding(check, f"turn {turn + 1}: nothing follows the end", f"{last + 1} turns", ended, number)
        own, claimed = rules.inserted(sample, turn, seen[turn]), sample.completion[begin:end].tolist()
        if own != claimed:
            if differ_by_rounding(*(rules.decode(np.array(tokens, np.int32)) for tokens in (claimed, own))):
                check = UNSURE
            rule = f"turn {turn}: what is inserted is what the environment answers to the action that was drawn"
            return Finding(check, rule, shown(claimed), shown(own), number)
    if sample.finish == "length":
        return None  # it was cut off, which the termination check has looked at
    check = UNSURE if any(one.doubtful for one in seen) else CHECK
    final = seen[-1] if len(seen) == last + 1 else None
    if final is None or final.over or last + 1 == rules.limits.max:
        return None
    if len(sample.completion) + len(rules.inserted(sample, last, final)) >= rules.longest:
        return None
    rule = "an episode goes on until its environment is over, its turns are used up or nothing more fits"
    return Finding(check, rule, f"ends after turn {last}", f"the environment answers {final.text[:80]!r}", number)
