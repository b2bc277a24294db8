"""The node's identity: where its private key is stored, and how it moves to another machine."""

import os
from pathlib import Path

from rich.console import Console

from shoal.crypto.keys import Key, checksummed
from shoal.errors import IdentityError


def default_key(role: str = "worker") -> Path:
    """`shoal/node.key` under the user's config directory; a relay is a node of its own, with `relay.key`."""
    users = os.environ.get("XDG_CONFIG_HOME")
    folder = (Path(users) if users else Path.home() / ".config") / "shoal"
    return folder / ("relay.key" if role == "relay" else "node.key")


def default_home() -> Path:
    """Where a machine keeps what it needs of the runs it joined: `shoal/` under the user's state directory."""
    users = os.environ.get("XDG_STATE_HOME")
    return (Path(users) if users else Path.home() / ".local" / "state") / "shoal"


def forget_coordinator(url: str, console: Console) -> None:
    """Forgets who the coordinator at a URL was, so that another one may be joined there."""
    from shoal.client.known_coordinators import forget

    console.print(f"forgot that {checksummed(forget(url))} is the coordinator at {url}", highlight=False)


def show(path: Path, console: Console) -> None:
    """Prints the address; the key is made at first use."""
    is_new = not path.exists()
    key = Key.load_or_create(path)
    if is_new:
        console.print(f"created a key in {path}; keep it: it is your identity in every run", highlight=False)
    console.print(checksummed(key.address), highlight=False)


def export(path: Path, to: Path | None, console: Console) -> None:
    """Prints the private key, or writes it to a file that only its owner can read."""
    key = Key.load(path)
    if to is None:
        console.print(key.export(), highlight=False)
        return
    try:
        key.save(to)
    except FileExistsError:
        raise IdentityError(f"key {to}: the file exists, and may be a key; give another name") from None
    console.print(f"{checksummed(key.address)} is in {to}; anyone who has that file can act as you", highlight=False)


def bring_in(path: Path, source: str, replace: bool, console: Console) -> None:
    """Makes a private key, in hexadecimal, this machine's own."""
    key = Key.parse(source)
    if path.exists():
        old = Key.load(path)
        if old.address == key.address:
            console.print(f"{checksummed(key.address)} is already this machine's key", highlight=False)
            return
        if not replace:
            raise IdentityError(
                f"key {path}: holds {checksummed(old.address)}; give --replace to rename it and use "
                f"{checksummed(key.address)}, or another file with --key"
            )
        aside = path.with_name(f"{path.name}.{old.address[2:10]}")
        path.rename(aside)
        console.print(f"{checksummed(old.address)} is kept as {aside}", highlight=False)
    key.save(path)
    console.print(checksummed(key.address), highlight=False)
