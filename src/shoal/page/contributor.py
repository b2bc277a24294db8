"""Page "contributor": what one address brought, earned and lost, and what became of each of its files."""

from sqlalchemy import Connection, func, select

from shoal.coordinator.db.schema import nodes, submissions
from shoal.coordinator.verdicts import evidence_against
from shoal.crypto.keys import checksummed
from shoal.ledger.balance_report import outlook, unit
from shoal.ledger.state import Account, State, holdings, leases, status
from shoal.page.ledger import contract_document
from shoal.page.privacy import public_text
from shoal.page.source import RunFiles
from shoal.page.swarm import node_row
from shoal.page.verdicts import PER_PAGE, listed
from shoal.protocol.numeric_evidence import standing

ON_CHAIN = (
    "This run's ledger is a contract on a chain, which this page does not call: what the node earned, has locked and "
    "lost is there."
)
NO_ACCOUNT = "No account: the first accepted file or a deposit opens one."
NO_LEDGER = "The ledger is not here, or has no entry yet: what this node earned is not known."


def node_document(db: Connection | None, files: RunFiles, address: str, page: int) -> dict[str, object] | None:
    """None if neither the coordinator nor the ledger knows the address."""
    row = db.execute(select(nodes).where(nodes.c.address == address)).first() if db is not None else None
    against = evidence_against(db, address) if db is not None else None
    books = _books(files, address)
    found = _count(db, address) if db is not None else 0
    if row is None and books["account"] is None and not found:
        return None
    page = min(page, max(0, -(-found // PER_PAGE) - 1))
    return {
        "address": address,
        "checksummed": checksummed(address),
        "node": node_row(row) if row is not None else None,
        "evidence": public_text(standing(against.nats, against.files, against.limit)) if against else "",
        "contract": contract_document(files.path, ON_CHAIN, f"shoal node {address} RUN"),
        **books,
        "found": found,
        "page": page,
        "per_page": PER_PAGE,
        "files": listed(db, submissions.c.node == address, page) if db is not None else [],
    }


def _books(files: RunFiles, address: str) -> dict[str, object]:
    """What the ledger says, all of one moment: it may be verified further meanwhile."""
    with files.ledger.lock:
        state = files.ledger.state
        account = state.accounts.get(address) if state else None
        return {
            "no_account": NO_LEDGER if state is None else NO_ACCOUNT,
            "account": _account(state, account) if state and account else None,
            "unit": unit(state) if state else "credits",
            "outlook": [public_text(line) for line in outlook(state, address, None)] if state and account else [],
            "judge": _judge(state, address) if state else None,
        }


def _count(db: Connection, address: str) -> int:
    query = select(func.count()).select_from(submissions).where(submissions.c.node == address)
    return db.execute(query).scalar_one()


def _account(state: State, account: Account) -> dict[str, object]:
    has = holdings(state, account)
    return {
        "status": status(state, account),
        "earned": account.earned_ever - account.voided,
        "free": has.earned,
        "locked": has.locked,
        "slashed": account.slashed,
        "voided": account.voided,
        "paid": account.paid,
        "stake": has.stake,
        "leaving": has.leaving,
        "gift": has.gift,
        "leases": leases(state, account),
        "accepted": account.accepted,
        "offences": account.offences,
        "tokens": account.tokens_accepted,
    }


def _judge(state: State, address: str) -> dict[str, object] | None:
    judge = state.judges.get(address)
    if judge is None:
        return None
    return {
        "standing": judge.standing,
        "judged": judge.judged,
        "refuted": judge.refuted,
        "misjudged": judge.misjudged,
        "missed": judge.missed,
    }
