"""Node registry: who has joined, liveness, bans, and room for newcomers per network (Sybil protection).

Functions of a transaction and a time; each decides before it writes.
"""

from sqlalchemy import ColumnElement, Connection, Row, exists, func, select, update

from shoal.coordinator import draws, invites
from shoal.coordinator.db import queries
from shoal.coordinator.db.schema import LeaseStatus, bans, leases, nodes, submissions, versions
from shoal.coordinator.node_states import LOST_S, QUIET_S, SUSPENDED_S, Event, State, after
from shoal.coordinator.policy import Terms
from shoal.crypto.signed_request import Signed
from shoal.protocol.invite import Invite
from shoal.protocol.messages import Role
from shoal.protocol.refusal import Refusal

# A node that asks often is not written down as seen each time.
SEEN_EVERY_S = 1.0
Node = Row  # of the table of nodes


def join(
    db: Connection,
    terms: Terms,
    signed: Signed,
    role: Role,
    name: str,
    url: str,
    now: float,
    network: str = "",
    profile: str = "",
    invite: Invite | None = None,
) -> str | None:
    """Makes the signer a node of the run. A second time changes nothing but its role, name, URL and profile.

    An invite, whose signature was checked, is used up by a node that a closed run would not admit otherwise. Gives the
    address of the node that had to be forgotten for it, if any.
    """
    address = signed.node
    found = find(db, address)
    if found is not None and found.state == State.BANNED:
        raise _banned(found)
    if role == "trainer" and address != terms.trainer:
        raise Refusal("not-allowed", f"{address}: is not this run's trainer, which is {terms.trainer}")
    if role == "validator" and address not in terms.validators:
        raise Refusal("not-allowed", f"{address}: is not one of this run's validators; ask the run's owner to add it")
    trusted = address == terms.trainer or address in terms.validators
    needs = not trusted and _needs_invite(db, terms, address)
    if needs:
        if invite is None:
            raise Refusal(
                "not-allowed",
                f"{address}: is not on this run's allow-list and brings no invite; ask the run's owner for one",
            )
        invites.check_invite(db, invite, address, now)
    if found is not None:
        use_nonce(db, signed)
        if needs and invite is not None:
            invites.use_invite(db, invite, address, now)
        db.execute(
            nodes.update().where(nodes.c.address == address).values(role=role, name=name, url=url, profile=profile)
        )
        _hear(db, found, now)
        return None
    forgotten = None
    if db.execute(queries.COUNT_NODES).scalar_one() >= terms.max_nodes:
        forgotten = _make_room(db, terms, network)
        if forgotten is None:
            raise Refusal(
                "full", f"run {terms.run}: has {terms.max_nodes} nodes, which is the maximum (swarm.max_nodes)"
            )
    use_nonce(db, signed)
    if needs and invite is not None:
        invites.use_invite(db, invite, address, now)
    counts = dict.fromkeys(("accepted", "rejected", "samples", "tokens", "busy_s", "expired", "abandoned", "owed"), 0)
    fresh = {**counts, "version": None, **dict.fromkeys(("reason", "refused", "doing", "waits_on"), "")}
    times = {"joined": now, "seen": now, "since": now}
    place = {"name": name, "url": url, "network": network, "profile": profile}
    row = {"address": address, "role": role, "state": State.JOINED, **place, **fresh, **times}
    db.execute(queries.ADD_NODE, row)
    return forgotten


def _needs_invite(db: Connection, terms: Terms, address: str) -> bool:
    is_closed = terms.closed or terms.allow is not None
    return is_closed and address not in (terms.allow or ()) and not invites.is_invited(db, address)


def _make_room(db: Connection, terms: Terms, network: str) -> str | None:
    """Forgets a node that has had no file accepted; says which, or None if all may stay.

    First one that is gone. Then one of the network that has most of them, if that is not the newcomer's own: keys that
    one machine keeps alive fill no run. A node that is forgotten may join again; what it has under way is waited for.
    """
    newest = select(func.coalesce(func.max(versions.c.number), 0)).scalar_subquery()
    awaited = exists().where(
        submissions.c.node == nodes.c.address, submissions.c.accept.is_(None), submissions.c.step >= newest
    )
    own = nodes.c.address.in_([terms.trainer, *terms.validators])
    idle = (nodes.c.accepted == 0) & (nodes.c.state != State.BANNED) & ~own & ~awaited
    found = _forget_oldest(db, idle & (nodes.c.state == State.GONE))
    if found is not None:
        return found
    crowds = select(nodes.c.network, func.count().label("many")).where(idle).group_by(nodes.c.network)
    sizes: dict[str, int] = dict(db.execute(crowds).all())
    largest = max(sizes, key=lambda name: sizes[name], default=network)
    if sizes.get(largest, 0) <= sizes.get(network, 0) + 1:
        return None
    works = exists().where(leases.c.node == nodes.c.address, leases.c.status == LeaseStatus.OPEN)
    return _forget_oldest(db, idle & (nodes.c.network == largest) & ~works)


def _forget_oldest(db: Connection, among: ColumnElement[bool]) -> str | None:
    found = db.execute(select(nodes.c.address).where(among).order_by(nodes.c.seen).limit(1)).scalar()
    if found is not None:
        db.execute(nodes.delete().where(nodes.c.address == found))
    return found


def enter(db: Connection, signed: Signed, now: float) -> Node:
    """The node that makes a request, which is heard by it; a Refusal if it has not joined or is banned."""
    node = known(db, signed.node)
    use_nonce(db, signed)
    _hear(db, node, now)
    return node


def known(db: Connection, address: str) -> Node:
    node = find(db, address)
    if node is None:
        raise Refusal("not-joined", f"{address}: has not joined this run; join first. Is it your address?")
    if node.state == State.BANNED:
        raise _banned(node)
    return node


def find(db: Connection, address: str) -> Node | None:
    return db.execute(queries.NODE, {"who": address}).first()


def use_nonce(db: Connection, signed: Signed) -> None:
    db.execute(queries.ADD_NONCE, {"node": signed.node, "nonce": signed.nonce, "time": signed.time})


def _hear(db: Connection, node: Node, now: float) -> None:
    state = after(State(node.state), Event.SEEN)
    if state != node.state:
        db.execute(queries.CHANGED, {"who": node.address, "now": now, "then": state})
    elif now - node.seen >= SEEN_EVERY_S:
        db.execute(queries.HEARD, {"who": node.address, "now": now})


def _banned(node: Node) -> Refusal:
    return Refusal("banned", f"{node.address}: gets no more leases in this run: {node.reason}")


def ban(
    db: Connection, terms: Terms, judge: str, address: str, reason: str, now: float, rates: int | None = None
) -> bool:
    """Bans a node once as many validators ask for it as decide on a file; whether it is banned now.

    For good, unless numbers are the reason: then as long as these `rates` are the newest (`readmit`). Asking a second
    time changes nothing, but that another reason outlasts one by numbers.
    """
    must_judge(terms, judge)
    found = find(db, address)
    if found is None:
        raise Refusal("unknown", f"{address}: has not joined this run; there is nobody to ban")
    if address == terms.trainer or address in terms.validators:
        raise Refusal(
            "not-allowed",
            f"{address}: is this run's own trainer or validator; remove it from the config instead",
        )
    asked = set(db.execute(select(bans.c.judge).where(bans.c.node == address)).scalars())
    own = (bans.c.node == address) & (bans.c.judge == judge)
    if judge not in asked:
        db.execute(bans.insert().values(node=address, judge=judge, rates=rates))
    elif rates is None:
        db.execute(bans.update().where(own).values(rates=None))
    if found.state == State.BANNED:
        return True
    if len({*asked, judge} & terms.validators) < terms.quorum:
        return False
    state = after(State(found.state), Event.BAN)
    db.execute(nodes.update().where(nodes.c.address == address).values(state=state, since=now, reason=reason))
    return True


def readmit(db: Connection, terms: Terms, version: int, now: float) -> list[str]:
    """Lifts the bans that rest on numbers, which this version of the honest rates judges from now on; says whose.

    A ban that enough validators ask for by other reasons stands.
    """
    older = bans.c.rates < version
    judged = set(db.execute(select(bans.c.node).where(older)).scalars())
    db.execute(bans.delete().where(older))
    asking: dict[str, set[str]] = {}
    for node, judge in db.execute(select(bans.c.node, bans.c.judge)).all():
        asking.setdefault(node, set()).add(judge)
    banned = db.execute(select(nodes.c.address).where(nodes.c.state == State.BANNED)).scalars()
    still = {node for node, judges in asking.items() if len(judges & terms.validators) >= terms.quorum}
    lifted = [node for node in banned if node in judged - still]
    reason = f"is admitted again: it was banned by honest rates before version {version}, which were too strict"
    for node in lifted:
        changed = {"state": after(State.BANNED, Event.READMIT), "since": now, "seen": now, "reason": reason}
        db.execute(nodes.update().where(nodes.c.address == node).values(**changed))
    return lifted


def validators_present(db: Connection) -> list[str]:
    """Validators that were heard of lately."""
    there = (nodes.c.role == "validator") & (nodes.c.state != State.GONE)
    return list(db.execute(select(nodes.c.address).where(there)).scalars())


def validators_at_work(db: Connection) -> list[str]:
    """Validators whose heartbeats come: files are dealt among these."""
    there = (nodes.c.role == "validator") & nodes.c.state.in_((State.JOINED, State.HEALTHY))
    return list(db.execute(select(nodes.c.address).where(there)).scalars())


def must_judge(terms: Terms, address: str) -> None:
    if address not in terms.validators:
        raise Refusal("not-allowed", f"{address}: is not one of this run's validators, and only validators judge")


def must_train(terms: Terms, address: str) -> None:
    if address != terms.trainer:
        raise Refusal("not-allowed", f"{address}: is not this run's trainer, which is {terms.trainer}")


def must_read(terms: Terms, address: str) -> None:
    if address != terms.trainer and address not in terms.validators:
        raise Refusal("not-allowed", f"{address}: only this run's trainer and validators read uploads")


def sweep(db: Connection, now: float) -> None:
    """What follows from time alone: leases expire, nodes fall silent, suspensions end."""
    draws.expire(db, now)
    for state in State:
        of_state = nodes.c.state == state
        if (lifted := after(state, Event.LIFT)) != state:
            served = of_state & (nodes.c.since <= now - SUSPENDED_S)
            db.execute(nodes.update().where(served).values(state=lifted, since=now, expired=0, reason=""))
        for event, quiet_s in ((Event.LOST, LOST_S), (Event.QUIET, QUIET_S)):
            if (then := after(state, event)) != state:
                quiet = of_state & (nodes.c.seen <= now - quiet_s)
                db.execute(nodes.update().where(quiet).values(state=then, since=now))


def excuse(db: Connection, down_s: float) -> None:
    """Counts the time for which the coordinator was down against nobody."""
    live = leases.c.status.in_((LeaseStatus.OPEN, LeaseStatus.EXPIRED))
    db.execute(update(leases).where(live).values(until=leases.c.until + down_s))
    db.execute(update(nodes).values(seen=nodes.c.seen + down_s))
