"""Three validators, of which one lies: honest verdicts stand, and the liar is found out within 50 submissions."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from shoal.ledger.acts import Challenge, Commit, Deposit, Rule, Settle, vote_hash
from shoal.ledger.plant_draw import planted
from shoal.ledger.state import in_standing
from shoal.ledger.store import SqliteLedger
from tests.support.ledgers import (
    ARBITER,
    COORDINATOR,
    EVIDENCE,
    KEYS,
    NODES,
    RUN,
    SALT,
    VALIDATORS,
    Court,
    leaf,
    refusal,
    reveal,
    sqlite_ledger,
)

SUBMISSIONS, PER_BATCH = 50, 5
CHEATS = 1 / 6
SECRET = b"known to the coordinator"
LIAR = VALIDATORS[2]
Lie = Callable[[str], str]


def truth_and_plants(rng: Random, first: int) -> tuple[str, str]:
    plants = "".join(planted(SECRET, first + i) for i in range(PER_BATCH))
    truth = "".join("ar"[rng.random() < CHEATS] if letter == "." else letter for letter in plants)
    return truth, plants if plants.strip(".") else ""


def run_court(ledger: SqliteLedger, lie: Lie | None, seed: int, *, challenged: bool) -> int:
    """Judges 50 submissions; after how many the liar had no standing, or 51. A lie of None copies commitments."""
    rng, court, found = Random(seed), Court(ledger), SUBMISSIONS + 1
    court.begin(stake=100_000)
    ledger.enter(COORDINATOR, Deposit(id="bonds", node=VALIDATORS[0].address, amount=100_000))
    for number in range(SUBMISSIONS // PER_BATCH):
        truth, plants = truth_and_plants(rng, number * PER_BATCH)
        leaves = [leaf(number * PER_BATCH + i, NODES[i % 3 if kind == "a" else 2]) for i, kind in enumerate(truth)]
        batch = court.work(*leaves, plants=plants)
        jury = ledger.jury(batch)
        lies = truth if lie is None or LIAR.address not in jury else lie(truth)
        votes = {who: lies if who == LIAR.address else truth for who in jury}
        if lie is None and LIAR.address in jury:
            copy_votes(court, batch, truth, jury)
        else:
            court.vote(batch, votes)
        ledger.enter(COORDINATOR, Settle(batch=batch, plants=plants, salt=SALT if plants else "0" * 64))
        expected = "".join("x" if plants[i : i + 1] not in ("", ".") else kind for i, kind in enumerate(truth))
        assert ledger.outcomes(batch) == expected
        if challenged:
            refute(ledger, batch, truth, votes)
        court.pass_steps(1)
        if found > SUBMISSIONS and ledger.judge(LIAR.address) == 0:
            found = (number + 1) * PER_BATCH
    return found


def copy_votes(court: Court, batch: int, truth: str, jury: tuple[str, ...]) -> None:
    """The liar does no work: it commits to what another committed to, and reveals what that one reveals."""
    honest = [who for who in jury if who != LIAR.address]
    sealed = {who: vote_hash(RUN, who, reveal(batch, truth)) for who in honest}
    for who, hash_ in (*sealed.items(), (LIAR.address, sealed[honest[0]])):
        court.ledger.enter(KEYS[who], Commit(batch=batch, hash=hash_))
    for who in honest:
        court.ledger.enter(KEYS[who], reveal(batch, truth))
    assert refusal(court.ledger, LIAR, reveal(batch, truth)) == "mismatch"
    court.pass_steps(2)  # it has no votes to reveal; the others do not wait for ever


def refute(ledger: SqliteLedger, batch: int, truth: str, votes: dict[str, str]) -> None:
    """An honest validator replays what the liar says otherwise, and the arbiter finds the same."""
    for index, kind in enumerate(truth):
        if {vote[index] for vote in votes.values()} != {kind} and ledger.outcomes(batch)[index] != "x":
            claim: Literal["a", "r"] = "a" if kind == "a" else "r"
            ledger.enter(VALIDATORS[0], Challenge(batch=batch, index=index, claim=claim, evidence=EVIDENCE))
            rule = Rule(batch=batch, index=index, challenger=VALIDATORS[0].address, upheld=True)
            ledger.enter(ARBITER, rule)


LIES: dict[str, Lie | None] = {
    "accepts all": lambda truth: "a" * len(truth),
    "rejects all": lambda truth: "r" * len(truth),
    "copies": None,
}


@pytest.mark.parametrize("challenged", [True, False])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("how", LIES)
def test_honest_verdicts_stand_and_the_liar_loses_standing_within_50_submissions(
    tmp_path: Path, how: str, seed: int, challenged: bool
) -> None:
    """Even if nobody challenges what the liar says."""
    ledger = sqlite_ledger(tmp_path, ban_after=1000)
    assert run_court(ledger, LIES[how], seed, challenged=challenged) <= SUBMISSIONS
    assert in_standing(ledger.state) == [key.address for key in VALIDATORS[:2]]
    assert [ledger.judge(key.address) for key in VALIDATORS[:2]] == [100, 100]
    ledger.close()


def test_of_every_ten_submissions_one_is_planted_good_and_one_bad() -> None:
    letters = "".join(planted(SECRET, number) for number in range(1000))
    blocks = {letters[i : i + 10] for i in range(0, 1000, 10)}
    assert {"".join(sorted(block)) for block in blocks} == {"........ar"}
    assert len(blocks) > 50
