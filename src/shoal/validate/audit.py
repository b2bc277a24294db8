"""Random audits: which files, and which answers of the others, are recomputed; drawn with a secret after the upload.

Of a file that is not recomputed whole, half of the answers are drawn by tokens, because answers are paid by the token:
the chance to miss a fake is then no more than the share of the pay that was honest, so fakes earn nothing on average
(`economics.py`). The other half are drawn by answers, so that short fakes are seen as well.
"""

import hashlib
import hmac
import math
import os
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

from shoal.config import AuditConfig
from shoal.validate.numerics.alternative_names import FP8, INT8, OLDER, shift_bet

FIRST_LOOK = 2
COMPARED = (INT8, FP8, OLDER)
# Of the files that are compared, one in so many is compared with what is drawn, whatever its node is suspected of.
DRAWN_EVERY = 4
# Nats that a comparison has won against a node, from which on all of its files are compared.
SUSPECTED = 0.0
# One answer drawn by tokens and one by answers.
MIN_SPOT = 2


def spot_draws(config: AuditConfig, answers: int) -> tuple[int, int]:
    """How many answers of a file are drawn by tokens, and how many by answers; none where nothing is recomputed."""
    if config.rate <= 0 or config.spot_share <= 0:
        return 0, 0
    count = max(MIN_SPOT, math.ceil(config.spot_share * answers))
    return (count + 1) // 2, count // 2


def spot_rate(config: AuditConfig, answers: int) -> float:
    """Share of the answers of a file of so many that are drawn, at most: two draws may be of one answer."""
    return min(1.0, sum(spot_draws(config, answers)) / answers)


class Audits:
    """Draws files to audit with a secret that never leaves this process; the first files of each node are all drawn."""

    def __init__(self, config: AuditConfig, secret: bytes | None = None) -> None:
        self._config = config
        self._secret = secret or os.urandom(32)
        self._seen: Counter[str] = Counter()
        self._alarmed: set[int] = set()

    def drawn(self, node: str, sha256: str, step: int) -> bool:
        """Whether the file of that hash is audited. The hash is the file's own, so it was fixed before the draw."""
        self._seen[node] += 1
        if self._config.rate <= 0:
            return False
        if self._seen[node] <= self._config.probation or step in self._alarmed:
            return True
        return self._number("file", sha256) < self._config.rate * 2**64

    def saw(self, node: str) -> None:
        """Counts a file that another validator judged: a node is on probation once, not with each of them."""
        self._seen[node] += 1

    def alarm(self, node: str, step: int) -> None:
        """A file of this node was found out. If its files were only sampled, the step's other files are all drawn from
        now on: however many keys strike in one step, what passes is what came before the first that was found out.

        Files of nodes on probation raise no alarm, for none of theirs passes unseen: keys that did no work cost a step
        nothing. A restarted validator needs no memory of alarms, because every node is on probation with it.
        """
        if self._seen[node] > self._config.probation:
            self._alarmed.add(step)

    def spot(self, sha256: str, lengths: Sequence[int]) -> list[int]:
        """Which of a file's answers, given by their tokens, are computed again where the file is not drawn.

        Each draw is from a stretch of its own, all equally long. So fakes cannot be arranged to be missed more often
        than by independent draws from the whole file.
        """
        by_tokens, by_answers = spot_draws(self._config, len(lengths))
        if by_tokens + by_answers >= len(lengths):
            return list(range(len(lengths))) if by_tokens else []
        rng = random.Random(self._number("answers", sha256))
        ends = list(accumulate(lengths))
        found = {bisect_right(ends, (i + rng.random()) * ends[-1] / by_tokens) for i in range(by_tokens)}
        found |= {int((i + rng.random()) * len(lengths) / by_answers) for i in range(by_answers)}
        # Rounding may bring a draw to the very end of the last stretch.
        return sorted({min(answer, len(lengths) - 1) for answer in found})

    def first_look(self, sha256: str, answers: int) -> list[int]:
        """Which answers of a newcomer's file are computed before the others, so that what is made up costs little."""
        count = min(FIRST_LOOK, answers) if self._config.rate > 0 else 0
        return sorted(random.Random(self._number("first look", sha256)).sample(range(answers), count))

    def alternatives(self, node: str, sha256: str, won: Mapping[str, float]) -> list[str]:
        """Which other computation a file is compared with, if any; by a draw that its maker does not know.

        `won` is what bets have won against the node before this file. A file is compared with what most speaks for, so
        that evidence grows where there is some; an honest node's falls with each comparison, and the next is with
        another. All files are compared of a newcomer, and of a node that is suspected. What is chosen by earlier files
        alone leaves bets as fair as they are.
        """
        number = self._number("alternative", sha256)
        suspect = max(COMPARED, key=lambda name: won.get(shift_bet(name), -math.inf))
        always = self._seen[node] <= self._config.probation or won.get(shift_bet(suspect), -math.inf) >= SUSPECTED
        if number >= self._config.shift_rate * 2**64 and not (always and self._config.shift_rate > 0):
            return []
        if number % DRAWN_EVERY == 0:
            return [COMPARED[number // DRAWN_EVERY % len(COMPARED)]]
        return [suspect]

    def _number(self, what: str, sha256: str) -> int:
        digest = hmac.digest(self._secret, f"{what} {sha256}".encode(), hashlib.sha256)
        return int.from_bytes(digest[:8], "big")
