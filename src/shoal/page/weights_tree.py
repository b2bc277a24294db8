"""How weights travel, for page "swarm": who has which version, and who fetches it from whom.

Origin and relay of a run write down who fetched from them (`shardcast/serve/child_relays.py`), in files that only the
owner can read. Of those a page shows names and amounts, no network address and no URL. What a relay elsewhere has sent
is not known here. A node that fetches from several stands below the one that sent it most.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, func, select

from shoal.coordinator.db.schema import nodes
from shoal.coordinator.node_states import State
from shoal.page.privacy import public_text
from shoal.page.source import RunFiles
from shoal.shardcast.serve.child_relays import children_file
from shoal.telemetry.metrics import number
from shoal.watch.history import HIDDEN_ROLES

AT_WORK = (State.JOINED, State.HEALTHY)
MAX_RELAYS = 64
MAX_CHILDREN = 32
MAX_FILE_BYTES = 4 << 20
VERSION = re.compile(r"version (\d+)")
Branch = dict[str, object]
"""Role, name, note and what is below; of a node also its public address and its state."""


@dataclass(frozen=True, slots=True)
class Child:
    """A node that fetched from one of the run's own servers. Only relays give a URL."""

    name: str
    url: str
    sent: int


def weights_tree(db: Connection, files: RunFiles) -> Branch:
    """Trainer, origin, relays and those that fetch from them, as branches."""
    origin = next((status for status in files.statuses if status.role == "origin"), None)
    offered = VERSION.search(origin.doing) if origin else None
    published = number(files.history.last_step, "version")
    if published is None and offered:  # before the first step, the base model is
        published = float(offered[1])
    found = below_origin(db, files.path) or [{"role": "", "note": "no relay has joined"}]
    below = [*found, {"role": "workers", "note": "", "below": _workers(db)}]
    return {
        "role": "trainer",
        "note": _version(published),
        "below": [{"role": "origin", "note": f"offers {_version(offered and offered[1])}", "below": below}],
    }


def below_origin(db: Connection, run: Path) -> list[Branch]:
    """Branches of the relays, each below the server that sent it most, and of others that fetched from the origin."""
    order = (nodes.c.joined, nodes.c.address)
    relays = db.execute(select(nodes).where(nodes.c.role == "relay").order_by(*order).limit(MAX_RELAYS)).all()
    by_origin, by_relay = (children_of(run / name) for name in ("origin", "relay"))
    own = relays[0].address if relays and by_relay else None  # the run's own relay is there before all others
    sent: dict[str, dict[str, int]] = defaultdict(dict)
    for server, children in (("origin", by_origin), ("relay", by_relay)):
        for child in children:
            sent[child.url][server] = sent[child.url].get(server, 0) + child.sent
    top: list[Branch] = []
    below_own: list[Branch] = []
    for row in relays:
        branch: Branch = {
            "role": "relay",
            "address": row.address,
            "name": public_text(row.name) if row.name != "relay" else "",
            "state": row.state,
            "note": _version(row.version) if row.version is not None else "",
        }
        from_whom = sent.get(_plain(row.url), {})
        is_below = row.address != own and from_whom.get("relay", 0) > from_whom.get("origin", 0)
        (below_own if is_below else top).append(branch)
        if row.address == own:
            branch["below"] = below_own
    below_own += _named(by_relay)
    return [*top, *_named(by_origin)]


def _named(children: Iterable[Child]) -> list[Branch]:
    """Those that are not relays, by what they say their names are; the ones that were sent most, and how many more."""
    found = sorted(
        (child for child in children if not child.url and child.name not in HIDDEN_ROLES),
        key=lambda child: (-child.sent, child.name),
    )
    shown: list[Branch] = [
        {"role": "", "name": public_text(child.name) or "unnamed", "note": f"fetched {child.sent / 1e6:,.1f} MB here"}
        for child in found[:MAX_CHILDREN]
    ]
    more = len(found) - len(shown)
    return [*shown, {"role": "", "note": f"and {more:,} more"}] if more else shown


def _workers(db: Connection) -> list[Branch]:
    holders = db.execute(
        select(nodes.c.version, func.count())
        .where(nodes.c.role == "worker", nodes.c.state.in_(AT_WORK))
        .group_by(nodes.c.version)
        .order_by(nodes.c.version.desc())
        .limit(8)
    ).all()
    return [
        {
            "role": "",
            "name": f"{count:,} worker{'s' * (count != 1)}",
            "note": "fetching the first version" if version is None else f"on {_version(version)}",
        }
        for version, count in holders
    ] or [{"role": "", "note": "none at work"}]


def _version(which: object) -> str:
    return "no version yet" if which is None else f"version {int(str(which).partition('.')[0]):,}"


def _plain(url: str) -> str:
    """Without the address that vouches for a certificate."""
    return url.partition("#")[0]


def children_of(store: Path) -> list[Child]:
    """Who fetched from the server of a store; nobody where its file is missing, unreadable or of another form."""
    try:
        with children_file(store).open("rb") as file:
            rows = json.loads(file.read(MAX_FILE_BYTES))
        return [
            Child(str(row["name"]), _plain(str(row["url"])), sum(int(count) for count in row["sent"].values()))
            for row in rows
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []
