"""Moves on the ledger of a run in this process: verdicts with votes, announced versions, stake, settlement."""

from collections.abc import Sequence

from shoal.client.voting import Juror
from shoal.ledger.acts import Deposit
from shoal.ledger.export import verify_file
from shoal.ledger.state import State
from shoal.protocol.verdict import Finding, Verdict
from shoal.validate.evidence.vote_log import Vote, Votes
from tests.support.coordinator_in_process import COORDINATOR, World, key_of

BAD = Finding("sampling", "tokens are the best", 5, 7, 0)
EVIDENCE = "ee" * 32
TOKENS = 40
STAKE = 10_000


def judge(world: World, votes: Votes, accept: bool = True) -> None:
    """Judges whatever waits, as a validator does that notes what it found."""
    for upload in world.validator.waiting(0, 5):
        _, sha256 = world.validator.read(upload)
        votes.note(upload.step, upload.submission, vote_on(sha256, accept))
        verdict = Verdict(accept, sha256, True, None if accept else BAD, samples=8, tokens=TOKENS if accept else 0)
        world.validator.judge(upload, verdict)


def vote_on(sha256: str, accept: bool) -> Vote:
    return Vote("a", sha256, TOKENS) if accept else Vote("r", sha256, 0, EVIDENCE)


def announce(world: World, number: int) -> None:
    world.trainer._link.announce(number, f"{number:064x}")


def keep(world: World) -> None:
    """What the coordinator does every second."""
    world.ledger_writer.keep(world.database)


def speak(world: World, jurors: Sequence[Juror]) -> None:
    """All say what they found, and it is settled."""
    for _ in range(2):  # commitments, then votes
        for juror in jurors:
            juror.work()
    keep(world)


def state(world: World) -> State:
    return world.ledger_writer.look(lambda state: state)


def history(world: World) -> State:
    """The state as anybody computes it from the file."""
    return verify_file(world.path / "ledger.db", COORDINATOR.address).state


def pay_in(world: World, name: str) -> None:
    """Stake for a node, with which it has an account."""
    node = key_of(name).address
    world.ledger_writer._enter([Deposit(id=node, node=node, amount=STAKE)])


def cost(world: World) -> int:
    """What a rejected file takes of stake."""
    ledger = world.config.ledger
    return max(ledger.slash, ledger.slash_files * ledger.rate * TOKENS)
