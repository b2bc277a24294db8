"""What people say of a verdict on the ledger: that it is wrong, and how the arbiter rules on that.

Anyone who has joined may challenge a verdict, with evidence that the arbiter replays before it rules.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from rich.console import Console

from shoal.errors import LedgerError
from shoal.files import sha256_file
from shoal.keys import Key
from shoal.ledger.acts import Challenge, Rule
from shoal.ledger.commands import OUTCOMES
from shoal.swarm.ask import named_submission
from shoal.swarm.client import Link
from shoal.swarm.history import ASK_S, access
from shoal.swarm.known import trusted


def challenge(join: str, submission: str, claim: str, evidence: Path, key: Key, console: Console) -> None:
    """Says on the ledger what the verdict on a submission, STEP/NUMBER, should have been."""
    if claim not in ("accept", "reject"):
        raise LedgerError(f"--claim {claim}: give accept or reject")
    if not evidence.is_file():
        raise LedgerError(f"evidence {evidence}: no such file; give the bundle that shoal replay was given")
    step, number = named_submission(submission)
    with Link(trusted(join), key, ASK_S) as link:
        ledger = access(link)
        for batch in ledger.catch_up().batches:
            for index, leaf in enumerate(batch.leaves):
                if (batch.step, leaf.submission) == (step, number):
                    letter: Literal["a", "r"] = "a" if claim == "accept" else "r"
                    proof = sha256_file(evidence)
                    ledger.say(Challenge(batch=batch.number, index=index, claim=letter, evidence=proof))
                    console.print(f"challenged: {submission} is {OUTCOMES[batch.outcomes[index]]}, should be {claim}ed")
                    return
    raise LedgerError(f"submission {submission}: is not on the ledger yet; its step is entered when it is over")


def arbitrate(join: str, evidence: Path, key: Key, replay: Callable[[Path], bool], console: Console) -> tuple[int, int]:
    """Rules on every open challenge whose evidence lies in a directory; how many were upheld, and how many refuted.

    `replay` says whether a bundle's accusation holds when it is computed again.
    """
    bundles = {sha256_file(path): path for path in sorted(evidence.glob("*.json"))}
    upheld = refuted = 0
    with Link(trusted(join), key, ASK_S) as link:
        ledger = access(link)
        state = ledger.catch_up()
        if key.address != state.terms.arbiter:
            raise LedgerError(f"{key.address}: is not this run's arbiter, who is {state.terms.arbiter}")
        for batch in list(state.batches):
            for (index, who), one in list(batch.challenges.items()):
                if index in batch.rulings or (index, who) in batch.answered:
                    continue
                name = f"{batch.step}/{batch.leaves[index].submission}"
                if one.evidence not in bundles:
                    console.print(f"{name}: evidence {one.evidence[:12]} is not in {evidence}; left open")
                    continue
                accusation_holds = replay(bundles[one.evidence])
                right = accusation_holds == (one.claim == "r")
                ledger.say(Rule(batch=batch.number, index=index, challenger=who, upheld=right))
                console.print(f"{name}: challenge of {who} {'upheld' if right else 'refuted'}")
                upheld, refuted = upheld + right, refuted + (not right)
    return upheld, refuted
