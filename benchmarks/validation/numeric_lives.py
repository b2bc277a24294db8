"""Lives of nodes before the numeric judge: files in turn, compared with what audits draw, until the node is banned.

Nodes of one machine hand in the same files, each in an order of its own and with draws of its own. A life that
is longer than there are files goes on with them in another order.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.config import AuditConfig
from shoal.protocol.verdict import is_blame
from shoal.validate.audit import COMPARED, Audits
from shoal.validate.numerics.account import Account
from shoal.validate.numerics.alternative_names import shift_bet
from shoal.validate.numerics.bets import Bets, Noise, Observed
from shoal.validate.numerics.judge import BETS, VOID_NATS, Weighed, finding_of

NOT_ALWAYS = {name: shift_bet(name) for name in COMPARED}
# A cheat that is not found in so many tokens is called not found.
MAX_TOKENS = 200_000


@dataclass(frozen=True, slots=True)
class Life:
    """How a node fared."""

    files: int
    tokens: int
    banned: bool
    blamed: int
    """Files that were blamed."""
    dropped: int
    worst: float
    """Most evidence there ever was against it."""


def weighed_files(answers: Sequence[Observed], per_file: int, bets: Bets, noise: Noise) -> list[Weighed]:
    """Evidence against files of so many answers, compared with every other computation."""
    files = [answers[begin : begin + per_file] for begin in range(0, len(answers) - per_file + 1, per_file)]
    return [Weighed(bets.nats(file, noise), sum(len(answer.gaps_T) for answer in file)) for file in files]


def with_draw(weighed: Weighed, drawn: Sequence[str]) -> Weighed:
    """Evidence against a file that is compared with these computations and no others."""
    left_out = {bet for name, bet in NOT_ALWAYS.items() if name not in drawn}
    return Weighed({bet: won for bet, won in weighed.nats.items() if bet not in left_out}, weighed.tokens)


def live(
    files: Sequence[Weighed],
    audit: AuditConfig,
    node: int,
    most: int,
    *,
    to_the_end: bool = False,
    before: Sequence[Weighed] = (),
) -> Life:
    """A node's life: until it is banned, or until so many tokens were judged; all of it if `to_the_end`. `before` are
    the files that it hands in first."""
    rng, audits = np.random.default_rng(node), Audits(audit, secret=node.to_bytes(32, "big"))
    account, blamed, dropped = Account(), 0, 0
    while account.tokens < most:
        for file in [*before, *(files[number] for number in rng.permutation(len(files)))]:
            sha256 = f"{node} {account.files}"
            audits.drawn(str(node), sha256, account.files)
            weighed = with_draw(file, audits.alternatives(str(node), sha256, account.won))
            account.add(weighed.nats, weighed.tokens, BETS)
            finding = finding_of(weighed, account)
            blamed += is_blame(finding)
            dropped += weighed.total >= VOID_NATS
            if (account.is_over and not to_the_end) or account.tokens >= most:
                break
        before = ()
        if account.is_over and not to_the_end:
            break
    return Life(account.files, account.tokens, account.is_over, blamed, dropped, account.highest)


def tokens_until_ban(files: Sequence[Weighed], audit: AuditConfig, nodes: int) -> int:
    """Median over nodes of the tokens that are judged before the node is banned; MAX_TOKENS if it is not."""
    lives = [live(files, audit, node, MAX_TOKENS) for node in range(nodes)]
    return int(statistics.median(life.tokens if life.banned else MAX_TOKENS for life in lives))


def tokens_after_turning(honest: Sequence[Weighed], files: Sequence[Weighed], audit: AuditConfig, nodes: int) -> int:
    """The same of nodes that are honest for their probation: tokens that are judged after they turn."""
    before = [honest[n % len(honest)] for n in range(audit.probation)]
    spent = sum(file.tokens for file in before)
    lives = [live(files, audit, node, spent + MAX_TOKENS, before=before) for node in range(nodes)]
    return int(statistics.median(life.tokens - spent if life.banned else MAX_TOKENS for life in lives))


def files_until_ban(files: Sequence[Weighed], audit: AuditConfig, nodes: int) -> int:
    lives = [live(files, audit, node, MAX_TOKENS) for node in range(nodes)]
    return int(statistics.median_high(life.files for life in lives))


def validity(honest: Sequence[Weighed]) -> float:
    """How much more often than e^-x honest files have more than x nats, for x of 1 to 6; fair is 1 or less."""
    totals = np.array([weighed.total for weighed in honest])
    return max(float((totals > x).mean()) / math.exp(-x) for x in range(1, 7))
