"""What `shoal origin`, `relay`, `fetch` and `tree` do."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from shoal.errors import ConfigError, ShardcastError
from shoal.files import remove, write_whole
from shoal.keys import Key, checked_address, checksummed
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.format.store import Store
from shoal.shardcast.origin.follow import Follower, follow
from shoal.shardcast.origin.publish import Publisher
from shoal.shardcast.origin.versions import Versions
from shoal.shardcast.serve.nginx import nginx_config
from shoal.shardcast.serve.server import Server, until_stopped
from shoal.shardcast.serve.tree import walk
from shoal.tls import server_context, speaks_tls

FOLLOW_S = 0.02  # between looks at an origin's directory
LOOK_S = 0.5  # between looks at whether the version fetched last was taken back


def serve_origin(
    directory: Path,
    store: Path,
    key: Path,
    run: str,
    host: str,
    port: int,
    url: str | None,
    allow: Path | None,
    keep: int,
    console: Console,
    tls: bool | None = None,
) -> None:
    """Publishes what appears in a directory and serves it, until stopped."""
    if not directory.is_dir():
        raise ConfigError(
            f"origin {directory}: no such directory; make it, and put versions into it as v000000, v000001"
        )
    identity = Key.load_or_create(key)
    opened = Store(store)
    with Publisher(opened, identity, run, keep) as publisher:
        server = _server(opened, f"origin {run}", host, port, allow, url, identity, tls)

        async def main() -> None:
            listening = await server.start()
            console.print(
                f"origin of run {run} at {server.url}, signed by {checksummed(identity.address)}",
                highlight=False,
                soft_wrap=True,
            )
            console.print(
                f"fetch with: shoal fetch {server.known_as} --to DIR --origin {identity.address}",
                highlight=False,
                soft_wrap=True,
            )
            follower = Follower(directory, Versions(publisher), _Notes(console))
            await asyncio.gather(server.keep(listening), follow(follower, FOLLOW_S))

        until_stopped(main)


def serve_relay(
    sources: Sequence[str],
    store: Path,
    origin: str,
    run: str | None,
    host: str,
    port: int,
    name: str,
    url: str | None,
    key: Path | None,
    allow: Path | None,
    nginx: Path | None,
    serve: bool,
    console: Console,
    tls: bool | None = None,
) -> None:
    """Mirrors what the sources offer, and passes each verified piece on at once, until stopped."""
    if nginx is not None:
        write_whole(nginx, nginx_config(store, nginx, host, port).encode())
        console.print(
            f"{nginx}: serves {store} at {host}:{port}; start it with: nginx -c {nginx.absolute()}", highlight=False
        )
    opened = Store(store)
    identity = Key.load_or_create(key) if key else None
    server = _server(opened, name, host, port, allow, url, identity, tls if serve else False)

    async def main() -> None:
        listening = await server.start() if serve else None
        where = server.known_as
        noted = _Notes(console)
        puller = Puller(
            opened, sources, origin, run, mirror=True, name=name, own_url=where, key=identity, on_note=noted
        )
        server.facts = puller.facts
        with puller:
            said = f"relay {name} at {where}" if serve else f"relay {name} fills {store}"
            console.print(f"{said}, fetching from {', '.join(sources)}", highlight=False)
            try:
                await server.keep(listening)
            finally:
                if listening is not None:
                    listening.close()

    until_stopped(main)


def _server(
    store: Store,
    name: str,
    host: str,
    port: int,
    allow: Path | None,
    url: str | None,
    key: Key | None,
    tls: bool | None,
) -> Server:
    """A server for which `key` vouches where it speaks TLS; a key beside the store if none was given."""
    context = None
    if speaks_tls(host, url, tls):
        key = key or Key.load_or_create(store.path.with_name(f"{store.path.name}.key"))  # nginx may serve what is in it
        context = server_context(key)
    address = key.address if key else ""
    return Server(
        store,
        name=name,
        host=host,
        port=port,
        allow=read_addresses(allow),
        public=url,
        context=context,
        address=address,
    )


def fetch_version(
    sources: Sequence[str],
    to: Path,
    origin: str,
    run: str | None,
    number: int | None,
    follow: bool,
    wait_s: float,
    name: str,
    key: Path | None,
    console: Console,
    quiet: bool,
) -> None:
    """Fetches a version, or each new one as it appears; prints the directory of its files."""
    identity = Key.load_or_create(key) if key else None
    errors = Console(stderr=True)
    noted = _Notes(errors)
    files: Path | None = None
    with Puller(Store(to), sources, origin, run, name=name, key=identity, on_note=noted) as puller:
        while True:
            if follow:
                number = _await_next(puller, files)
            try:
                with _bar(errors, quiet) as show:
                    files = puller.fetch(number, wait_s, on_progress=show)
            except ShardcastError as error:
                if not follow:
                    raise
                noted(str(error))  # it was taken back while it came; there will be another
                time.sleep(LOOK_S)
                continue
            _point(to / "latest", files)
            console.print(str(files), highlight=False, soft_wrap=True)
            if not follow:
                return


def _await_next(puller: Puller, files: Path | None) -> int:
    """The version after the one fetched last; the newest there is if that one was taken back, which removes it."""
    while True:
        after = int(files.parent.name.split("-")[0]) if files is not None and files.is_dir() else -1
        if (found := puller.latest(LOOK_S, after)) is not None:
            return found


def _point(link: Path, files: Path) -> None:
    """Makes DIR/latest lead to the files of the version fetched last, in one step."""
    staging = link.with_name(f".{link.name}-new")
    remove(staging)
    staging.symlink_to(files.relative_to(link.parent))
    staging.replace(link)


@contextlib.contextmanager
def _bar(console: Console, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("fetching", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def show_tree(url: str, console: Console) -> None:
    console.print(walk(url.rstrip("/")))


def read_addresses(path: Path | None) -> list[str] | None:
    """Addresses in a file, one a line; what follows a # is a remark."""
    if path is None:
        return None
    try:
        lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--allow {path}: cannot be read ({error}); give a file with one address a line") from error
    return [checked_address(line) for line in lines if line]


class _Notes:
    """Prints what sources do wrong, the same thing at most every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, float] = {}

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self._said.get(text, -1e9) > 10:
            self._said[text] = now
            self._console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
