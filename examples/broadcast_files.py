"""SHARDCAST alone: publish a directory, pass it on through a relay, fetch it, and update it with the next version.

    python examples/broadcast_files.py

Everything runs in this process on loopback. Over the internet the three parts are `shoal origin`, `shoal relay` and
`shoal fetch`; the origin's address is all that a client has to know.
"""

import tempfile
from pathlib import Path

from shoal.crypto.keys import Key
from shoal.shardcast import Publisher, Puller, Server, Store, Versions, serving


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        key = Key.create()  # signs versions; Key.load_or_create(path) keeps one
        store = Store(here / "origin")
        with Publisher(store, key, run="demo") as publisher, serving(Server(store)) as origin:
            versions = Versions(publisher)
            versions.publish(1, _version(here / "v1", "first"))

            relayed = Store(here / "relay")
            with (
                Puller(relayed, [origin.url], origin=key.address, mirror=True),
                serving(Server(relayed)) as relay,
                Puller(Store(here / "client"), [relay.url, origin.url], origin=key.address) as client,
            ):
                print("version 1:", (client.fetch(1) / "notes.txt").read_text())
                versions.publish(2, _version(here / "v2", "second"))
                print("version 2:", (client.fetch(2) / "notes.txt").read_text())


def _version(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "notes.txt").write_text(text)
    (folder / "weights.bin").write_bytes(bytes(1 << 20))
    return folder


if __name__ == "__main__":
    main()
