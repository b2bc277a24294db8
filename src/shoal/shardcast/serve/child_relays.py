"""Who fetches from a server: visitors see names and counts, the operator alone sees network addresses.

A worker's IP address is nobody's business but that of the server it talks to. So addresses are never served over HTTP:
they are written to a file beside the store that only its owner can read.
"""

import json
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import StorageError
from shoal.files import write_whole

MAX_CHILDREN = 1024


@dataclass(slots=True)
class Child:
    """A node that fetches here. Its name and its URL are its own claim; only relays give a URL."""

    address: str
    name: str
    url: str
    seen: float = 0.0
    sent: Counter[str] = field(default_factory=Counter)


def children_file(store: Path) -> Path:
    """The operator's file. It is beside the store and not in it: any web server may serve a store."""
    return store.with_name(f".{store.name}.children.json")


class Children:
    """The nodes that asked last, the least recent of which is forgotten first."""

    def __init__(self, store: Path) -> None:
        self._file = children_file(store)
        self._known: OrderedDict[tuple[str, str], Child] = OrderedDict()
        self._written = b""

    def heard(self, address: str, name: str, url: str) -> Child:
        """The child that a request comes from."""
        child = self._known.pop((address, name), None) or Child(address, name, url)
        child.seen = time.time()
        self._known[address, name] = child
        while len(self._known) > MAX_CHILDREN:
            self._known.popitem(last=False)
        return child

    def public(self) -> list[dict[str, object]]:
        """What anybody may see of those that were sent something."""
        return [
            {"name": c.name, "url": c.url, "seen": round(c.seen, 3), "sent": dict(c.sent)}
            for c in self._known.values()
            if c.sent
        ]

    def save(self) -> None:
        """Writes names, addresses and counts to the operator's file. Neither a full disk nor a lack of file
        descriptors, which visitors can cause, stops the server."""
        known = [child for child in self._known.values() if child.sent]
        rows = [{"address": c.address, "name": c.name, "url": c.url, "sent": dict(c.sent)} for c in known]
        data = json.dumps(rows, indent=1).encode()
        if known and data != self._written:
            with suppress(StorageError, OSError):
                write_whole(self._file, data, private=True)
                self._written = data
