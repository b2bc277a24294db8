"""Trust on first use: the coordinator's address is remembered per URL, as ssh does in known_hosts.

A machine that joined `URL` once believes no other coordinator there. Loopback is not remembered: a new run takes the
port of an old one every day, and a program that listens on this machine's loopback is on this machine already.
"""

import os
import re
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from shoal.client.identity import default_home
from shoal.crypto.keys import checked_address, checksummed
from shoal.errors import ShoalError, SwarmError
from shoal.files import disk_errors, locked, read_regular, whole_file
from shoal.protocol.run_card import Join
from shoal.shardcast.fetch.http import distance, distances

LOCK_S = 10.0
IP = re.compile(r"[0-9.]+|.*:.*")
PUBLIC = 3  # of `http.distance`


def known_file() -> Path:
    return default_home() / "known_coordinators"


def trusted(text: str) -> Join:
    """What a join line means, with the address that is remembered for its URL.

    A SwarmError for a line that contradicts what is remembered, and for plain HTTP over the open internet.
    """
    join = Join.parse(text)
    if _is_local(join):
        return join
    url, address = _read().get(_place(join), ("", None))
    if address is not None:
        if join.coordinator not in (None, address):
            raise SwarmError(_contradiction(join, join.coordinator or "", address))
        if url.startswith("https://") and not join.is_secure:
            raise SwarmError(
                f"--join {join.url}: that coordinator was joined over https before; over plain http anybody on the way "
                f"could be it; join {url}"
            )
        join = replace(join, coordinator=address)
    if not join.is_secure and PUBLIC in distances(join.url):
        raise SwarmError(
            f"--join {join.url}: plain http over the open internet, where anybody on the way can change what is "
            "answered; join over https (the run's owner has the line; swarm.tls), or through a VPN or an ssh tunnel"
        )
    return join


def remember(join: Join, address: str) -> None:
    """Writes down who the coordinator at a URL is; a SwarmError if another one is remembered."""
    if _is_local(join):
        return
    entry = (join.url, address)
    if _read().get(_place(join)) == entry:
        return
    with _writing():
        entries = _read()
        _, known = entries.get(_place(join), entry)
        if known != address:
            raise SwarmError(_contradiction(join, address, known))
        _write(entries | {_place(join): entry})


def forget(text: str) -> str:
    """Forgets the coordinator at a URL, and says who it was."""
    join = Join.parse(text)
    with _writing():
        entries = _read()
        if (found := entries.pop(_place(join), None)) is None:
            raise SwarmError(f"identity forget {join.url}: {known_file()} has no such line; it has {_listed(entries)}")
        _write(entries)
    return found[1]


def _contradiction(join: Join, found: str, known: str) -> str:
    return (
        f"--join {join.url}: the coordinator there was {checksummed(known)}, now it is said to be "
        f"{checksummed(found)}; it is another run, or somebody sits in the middle. If the run's owner says that it is "
        f"right: shoal identity forget {join.url}"
    )


def _is_local(join: Join) -> bool:
    """Whether a URL says itself that it leads to this machine; a name does not, for it may lead elsewhere next time."""
    host = urlsplit(join.url).hostname or ""
    return host == "localhost" or (bool(IP.fullmatch(host)) and distance(host) == 0)


def _place(join: Join) -> str:
    """Host, port and path: what is remembered of https holds for http too."""
    parts = urlsplit(join.url)
    return f"{parts.netloc.lower()}{parts.path}"


def _read() -> dict[str, tuple[str, str]]:
    """Place -> (URL, address)."""
    path = known_file()
    try:
        lines = [line.split() for line in read_regular(path).decode().splitlines() if line.strip()]
        return {_place(Join.parse(url)): (url, checked_address(address)) for url, address in lines}
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, ShoalError) as error:
        raise SwarmError(f"{path}: cannot be read ({error}); each line is a URL and an address") from error


def _writing() -> AbstractContextManager[None]:
    path = known_file()
    return locked(path.with_name(f".{path.name}.lock"), f"{path}: another process has it", LOCK_S)


def _write(entries: dict[str, tuple[str, str]]) -> None:
    path = known_file()
    text = "".join(f"{url} {address}\n" for url, address in entries.values())
    with whole_file(path) as staging, disk_errors(path):
        descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)


def _listed(entries: dict[str, tuple[str, str]]) -> str:
    return ", ".join(url for url, _ in entries.values()) or "none at all"
