"""The owner's side of invites: signs them with the coordinator's key, and asks the coordinator what became of them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from shoal.client.client import CoordinatorClient
from shoal.client.join_line import url_for_others
from shoal.crypto.keys import Key, checksummed
from shoal.errors import ConfigError
from shoal.protocol import messages as m
from shoal.protocol.invite import ID, Invite
from shoal.protocol.run_card import Join
from shoal.rundir import RunDir, is_own, role_key

ASK_S = 10.0


def make_invites(run: RunDir, url: str | None, expires: int, count: int) -> list[str]:
    """Lines that join a closed run, each good for one node."""
    key = _own_key(run)
    if not run.config.swarm.is_closed:
        raise ConfigError(
            f"run {run.path}: is open to anyone, so an invite would admit nobody else; set swarm.closed = true and "
            "start it again"
        )
    place = url_for_others(run, url)
    made = [Invite.make(run.config.name, key, expires) for _ in range(count)]
    return [f"shoal worker --join {place}#{key.address}+{invite}" for invite in made]


def revoke_invite(run: RunDir, text: str, url: str | None) -> str:
    """Makes an invite useless; says what became of it."""
    number = text.rpartition("+")[2].partition(".")[0]
    if not ID.fullmatch(number):
        raise ConfigError(f"--revoke {text[:40]}: give the invite, or its first part: 32 hexadecimal digits")
    with _link(run, url) as link:
        changed = link.ask(m.Done, "DELETE", f"/v1/invites/{number}").changed
    return f"invite {number[:8]}: {'revoked' if changed else 'was revoked before'}"


def print_invites(run: RunDir, url: str | None, console: Console) -> None:
    """What became of invites; one that nobody has used or revoked is not on record."""
    with _link(run, url) as link:
        records = link.ask(m.InviteList, "GET", "/v1/invites").invites
    for record in records:
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record.at))
        what = f"used by {checksummed(record.node)}" if record.node else "revoked"
        console.print(f"{record.id[:8]}  {at}  {what}", markup=False, highlight=False, soft_wrap=True)
    if not records:
        console.print("no invite was used or revoked", highlight=False)


def _own_key(run: RunDir) -> Key:
    if not is_own(run.path):
        raise ConfigError(f"run {run.path}: its coordinator's key is not here; run this on the coordinator's machine")
    return role_key(run.path, "coordinator")


@contextmanager
def _link(run: RunDir, url: str | None) -> Iterator[CoordinatorClient]:
    key = _own_key(run)
    with CoordinatorClient(Join(url_for_others(run, url), key.address), key, ASK_S, timeout_s=ASK_S) as link:
        yield link
