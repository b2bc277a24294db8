"""What `shoal origin` and `shoal relay` do outside a run: shardcast as a tool of its own."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from shoal.cli.weights_fetch import Notes
from shoal.crypto.keys import Key, checked_address, checksummed
from shoal.crypto.tls import server_context, speaks_tls
from shoal.errors import ConfigError
from shoal.files import write_whole
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.format.store import Store
from shoal.shardcast.origin.directory_follower import Follower, follow
from shoal.shardcast.origin.publish import Publisher
from shoal.shardcast.origin.versions import Versions
from shoal.shardcast.serve.nginx import nginx_config
from shoal.shardcast.serve.server import Server, until_stopped

if TYPE_CHECKING:
    from shoal.cli.options import ListenFlags
    from shoal.cli.weights import OriginFlags, RelayFlags
    from shoal.shardcast.serve.bucket import Bucket


def serve_origin(directory: Path, flags: "OriginFlags", listen: "ListenFlags", port: int, console: Console) -> None:
    """Publishes the versions that appear in a directory and serves them, until stopped."""
    if not directory.is_dir():
        raise ConfigError(
            f"origin {directory}: no such directory; make it, and put versions into it as v000000, v000001"
        )
    run, place = flags.run_name, flags.store or directory / ".store"
    identity = Key.load_or_create(flags.key or place.parent / "origin.key")
    store = Store(place)
    with Publisher(store, identity, run, flags.keep) as publisher:
        server = _server(store, f"origin {run}", listen, port, flags.allow, identity)

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
            follower = Follower(directory, Versions(publisher), Notes(console))
            await asyncio.gather(server.keep(listening), follow(follower))

        until_stopped(main)


def serve_relay(
    sources: Sequence[str], flags: "RelayFlags", listen: "ListenFlags", port: int, key: Path | None, console: Console
) -> None:
    """Mirrors what the sources offer, and serves each verified piece at once, until stopped."""
    nginx, name = flags.nginx, flags.name
    if nginx is not None:
        write_whole(nginx, nginx_config(flags.store, nginx, listen.host, port).encode())
        console.print(
            f"{nginx}: serves {flags.store} at {listen.host}:{port}; start it with: nginx -c {nginx.absolute()}",
            highlight=False,
        )
    store = Store(flags.store)
    identity = Key.load_or_create(key) if key else None
    server = _server(store, name, listen if flags.serve else replace(listen, tls=False), port, flags.allow, identity)

    async def main() -> None:
        listening = await server.start() if flags.serve else None
        puller = _puller(store, sources, flags, identity, console, server.known_as)
        server.facts = puller.facts
        with puller:
            what = f"relay {name} at {server.known_as}" if flags.serve else f"relay {name} fills {flags.store}"
            console.print(f"{what}, fetching from {', '.join(sources)}", highlight=False)
            await server.keep(listening)

    until_stopped(main)


def fill_bucket(
    sources: Sequence[str], flags: "RelayFlags", bucket: "Bucket", key: Path | None, console: Console
) -> None:
    """Mirrors what the sources offer to an object store, until stopped."""
    from shoal.shardcast.serve.bucket import Mirror, keep_mirroring  # obstore is there where a bucket was opened

    store = Store(flags.store)
    puller = _puller(store, sources, flags, Key.load_or_create(key) if key else None, console)
    mirror = Mirror(store, bucket, puller.origin, flags.run_name)

    async def main() -> None:
        with puller:
            console.print(f"relay {flags.name} fills {bucket.url}, fetching from {', '.join(sources)}", highlight=False)
            await keep_mirroring(mirror, Notes(console))

    until_stopped(main)


def _puller(
    store: Store, sources: Sequence[str], flags: "RelayFlags", key: Key | None, console: Console, own_url: str = ""
) -> Puller:
    return Puller(
        store,
        sources,
        flags.origin_address,
        flags.run_name,
        mirror=True,
        name=flags.name,
        own_url=own_url,
        key=key,
        on_note=Notes(console),
    )


def _server(store: Store, name: str, listen: "ListenFlags", port: int, allow: Path | None, key: Key | None) -> Server:
    """A server for whose certificate `key` vouches if it speaks TLS; without one, a key beside the store does."""
    context = None
    if speaks_tls(listen.host, listen.url, listen.tls):
        key = key or Key.load_or_create(store.path.with_name(f"{store.path.name}.key"))  # not in it: nginx serves that
        context = server_context(key)
    return Server(
        store,
        name=name,
        host=listen.host,
        port=port,
        allow=read_addresses(allow),
        public=listen.url,
        context=context,
        address=key.address if key else "",
    )


def read_addresses(path: Path | None) -> list[str] | None:
    """Addresses in a file, one per line; text after a # is a comment."""
    if path is None:
        return None
    try:
        lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--allow {path}: cannot be read ({error}); give a file with one address per line") from error
    return [checked_address(line) for line in lines if line]
