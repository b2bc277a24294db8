"""Discovery: reads a directory of open runs from a file or over https, shows it, and makes what it consists of."""

import json
import time
from collections.abc import Sequence
from pathlib import Path, PurePath
from urllib.parse import urlsplit

import httpx2
from rich.console import Console

from shoal.client.client import CoordinatorClient
from shoal.client.join_line import url_for_others
from shoal.config import RunConfig
from shoal.crypto.keys import Key, checked_address, checksummed
from shoal.crypto.tls import is_loopback, public_context
from shoal.errors import ConfigError, SwarmError
from shoal.files import disk_errors, read_regular, write_whole
from shoal.protocol import messages as m
from shoal.protocol.run_card import Join, url_fault
from shoal.protocol.run_list import (
    DAY_S,
    MAX_LIST_BYTES,
    Listing,
    RunEntry,
    SignedEntry,
    read_entry,
    read_list,
    sign_entry,
    sign_list,
)
from shoal.rundir import RunDir, is_own, role_key
from shoal.tasks.files import code_of
from shoal.text import one_line

ASK_S = 10.0
FETCH_S = 30.0
AT_WORK = ("joined", "healthy")


def open_directory(where: str) -> Listing:
    """The runs of a list at a path or an https URL; URL#0xADDRESS accepts only that publisher."""
    place, _, address = where.strip().partition("#")
    publisher = checked_address(address) if address else None
    scheme, colon, _ = place.partition("://")
    if colon and scheme not in ("http", "https", "file"):
        raise SwarmError(f"--directory {one_line(place)}: scheme {one_line(scheme)!r} is unknown; give https or a file")
    is_url = scheme in ("http", "https") and bool(colon)
    data = _fetch(place) if is_url else _read(Path(place.removeprefix("file://")))
    return read_list(data, f"--directory {one_line(place)}", int(time.time()), publisher)


def _fetch(url: str) -> bytes:
    """The bytes at a URL: so many, in so much time, from nowhere else, and not compressed."""
    if fault := url_fault(url):
        raise SwarmError(f"--directory {one_line(url)}: {fault}; give it as in https://HOST/runs.json")
    host = urlsplit(url).hostname or ""
    if url.startswith("http://") and not is_loopback(host):
        raise SwarmError(f"--directory {url}: plain http, where anybody on the way can leave runs out; give https")
    data, until = bytearray(), time.monotonic() + FETCH_S
    headers = {"Accept-Encoding": "identity"}
    try:
        with (
            httpx2.Client(timeout=ASK_S, verify=public_context(), trust_env=False, follow_redirects=False) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            if answer.status_code != 200:
                raise SwarmError(f"--directory {url}: was answered with {answer.status_code}; is it the right URL?")
            for piece in answer.iter_raw():
                data += piece
                if len(data) > MAX_LIST_BYTES:
                    raise SwarmError(f"--directory {url}: sends more than {MAX_LIST_BYTES} bytes, which no list needs")
                if time.monotonic() > until:
                    raise SwarmError(f"--directory {url}: sent {len(data)} bytes in {FETCH_S:.0f} s; try again later")
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        raise SwarmError(f"--directory {url}: cannot be fetched ({one_line(str(error)):.200})") from None
    return bytes(data)


def show_directory(where: str, console: Console) -> None:
    """Prints the runs of a list, each with the line that joins it."""
    listing = open_directory(where)
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(listing.updated))

    def say(text: str) -> None:
        console.print(one_line(text) if text else "", markup=False, highlight=False, soft_wrap=True)

    say(f"{len(listing.runs)} open run(s), published by {checksummed(listing.publisher)} at {made}")
    for signed in listing.runs:
        for line in entry_lines(signed.entry):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if listing.left_out:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(listing.left_out.items()))
        say(f"not shown: {reasons}")
    if "#" not in where:
        say(f"to accept lists of this publisher only: --directory {where}#{listing.publisher}")


def entry_lines(entry: RunEntry) -> list[str]:
    """A run as people read it."""
    fields = {
        "about": entry.about,
        "model": entry.model,
        "needs": "; ".join(entry.needs),
        "at": f"version {entry.version} of {entry.steps}, {entry.nodes} nodes",
        "join": entry.join_line,
    }
    return ["", entry.run, *(f"  {name:6} {one_line(text)}" for name, text in fields.items() if text)]


def needs_of(run: RunDir) -> tuple[str, ...]:
    """What a machine must have to work for a run."""
    config = run.config
    weights = sum(file.stat().st_size for file in run.base_model.glob("*.safetensors"))
    needs = [f"{weights / 1e9:.2g} GB of weights in {config.model.dtype}"] if weights else []
    needs.append(f"sequences of {config.max_len} tokens")
    if config.audit.profiles:
        needs.append(f"profile {' or '.join(config.audit.profiles)}"[:120])
    if any(code_of(task) for task in config.tasks):
        needs.append("runs the owner's Python unconfined (--allow-code)")
    if config.swarm.is_closed:
        needs.append("an invite")
    return tuple(needs)


def make_entry(run: RunDir, url: str | None, about: str, days: int) -> SignedEntry:
    """An entry about a run whose coordinator answers at the URL that the entry names."""
    if not is_own(run.path):
        raise ConfigError(f"run {run.path}: its coordinator's key is not here; run this on the coordinator's machine")
    key = role_key(run.path, "coordinator")
    found = url_for_others(run, url)
    with CoordinatorClient(Join(found, key.address), key, ASK_S, timeout_s=ASK_S) as link:
        if link.card.coordinator != key.address:
            raise SwarmError(f"{found}: the coordinator there is {link.card.coordinator}, not this run's")
        status = link.look(m.StatusOut, "/v1/status")
    now = int(time.time())
    entry = RunEntry(
        run=run.config.name,
        coordinator=key.address,
        url=found,
        model=_model_name(run.config),
        about=about,
        needs=needs_of(run),
        nodes=sum(node.role == "worker" and node.state in AT_WORK for node in status.nodes),
        version=status.version or 0,
        steps=status.steps,
        invite=run.config.swarm.is_closed,
        updated=now,
        expires=now + days * DAY_S,
    )
    return sign_entry(entry, key)


def _model_name(config: RunConfig) -> str:
    """Without the owner's folders."""
    source = config.model.source
    return one_line(PurePath(source).name if source.startswith((".", "/", "~")) else source)[:100]


def write_entry(entry: SignedEntry, to: Path) -> None:
    with disk_errors(to):
        write_whole(to, (entry.model_dump_json(indent=1) + "\n").encode())


def publish(path: Path, sources: Sequence[Path], key: Key, days: int, remove: Sequence[str]) -> Listing:
    """Adds entries to a list that this key publishes, replaces older ones of the same runs, and signs it again."""
    now = int(time.time())
    gone = {checked_address(address) for address in remove}
    entries = [read_entry(_read(source), str(source), now) for source in sources]
    if path.exists():
        entries = [*_kept(path, key, now), *entries]
    made = sign_list([entry for entry in entries if entry.entry.coordinator not in gone], key, now, days)
    with disk_errors(path):
        write_whole(path, (json.dumps(made.model_dump(mode="json"), indent=1) + "\n").encode())
    return read_list(_read(path), str(path), now, key.address)


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, MAX_LIST_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: cannot be read ({reason}); give a list, or an entry, of runs") from None


def _kept(path: Path, key: Key, now: int) -> list[SignedEntry]:
    """The entries of a list that this key published before; one that has expired is published again."""
    data = _read(path)
    try:
        made = int(json.loads(data)["list"]["updated"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SwarmError(f"{path}: is not a list of runs; give another file") from None
    # Read as of its own time, for the list may be late; entries are looked at as of now when it is signed again.
    listing = read_list(data, str(path), min(made, now), key.address)
    return listing.runs
