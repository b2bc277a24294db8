"""Who was admitted to a closed run by an invite, and which invites were revoked: each is used once, for good.

Functions of a transaction. A single writer commits them, and the invite's number is the table's key: of two nodes that
bring the same invite at the same time one is admitted, before and after a restart.
"""

import time
from dataclasses import dataclass

from sqlalchemy import Connection, select

from shoal.coordinator.db.schema import invites
from shoal.protocol.invite import Invite
from shoal.protocol.refusal import Refusal


@dataclass(frozen=True, slots=True)
class InviteRecord:
    """What became of an invite. One that is neither used nor revoked is not on record."""

    id: str
    node: str
    """Who used it; empty if it was revoked."""
    at: float


def is_invited(db: Connection, address: str) -> bool:
    """Whether a node was admitted by an invite before; then it may come again without one."""
    return db.execute(select(invites.c.id).where(invites.c.node == address)).first() is not None


def check_invite(db: Connection, invite: Invite, address: str, now: float) -> None:
    """A Refusal unless this node may use this invite, whose signature was checked, now."""
    found = db.execute(select(invites.c.node).where(invites.c.id == invite.id)).scalar()
    if found == address:
        return
    name = f"invite {invite.id[:8]}"
    if found:
        raise Refusal(
            "taken", f"{name}: was used by another node; an invite admits one. Ask the run's owner for another"
        )
    if found is not None:
        raise Refusal("not-allowed", f"{name}: was revoked by the run's owner; ask for another")
    if invite.expires <= now:
        gone = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(invite.expires))
        raise Refusal("expired", f"{name}: expired at {gone}; ask the run's owner for another")


def use_invite(db: Connection, invite: Invite, address: str, now: float) -> None:
    """Writes down that a node was admitted by an invite that was checked in this transaction."""
    if db.execute(select(invites.c.id).where(invites.c.id == invite.id)).first() is None:
        db.execute(invites.insert().values(id=invite.id, node=address, at=now))


def revoke(db: Connection, number: str, now: float) -> bool:
    """Makes an invite useless; False if it was revoked before, a Refusal if a node has used it already."""
    found = db.execute(select(invites.c.node).where(invites.c.id == number)).scalar()
    if found:
        raise Refusal("taken", f"invite {number[:8]}: was used by {found} already; only a ban keeps that node out")
    if found is None:
        db.execute(invites.insert().values(id=number, node="", at=now))
    return found is None


def on_record(db: Connection) -> list[InviteRecord]:
    """All that were used or revoked, oldest first."""
    return [InviteRecord(*row) for row in db.execute(select(invites).order_by(invites.c.at))]
