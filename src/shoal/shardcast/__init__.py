"""SHARDCAST: signed versions of files, passed on piece by piece through relays that nobody has to trust.

    from shoal.shardcast import Publisher, Puller, Server, Store, Versions, serving

A store is a content-addressed directory; a publisher (origin) or a puller (relay, client) fills it, and a server serves
it. An origin is a publisher and a server, a relay a puller and a server, a client a puller; see
`examples/broadcast_files.py`.

Names are loaded on first use: a client that only fetches needs no web server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.shardcast.fetch.client import Puller
    from shoal.shardcast.format.store import Store
    from shoal.shardcast.origin.publish import Publisher
    from shoal.shardcast.origin.versions import Versions
    from shoal.shardcast.serve.server import Server, serving

__all__ = ["Publisher", "Puller", "Server", "Store", "Versions", "serving"]

_HOMES = {
    "Publisher": "origin.publish",
    "Puller": "fetch.client",
    "Server": "serve.server",
    "Store": "format.store",
    "Versions": "origin.versions",
    "serving": "serve.server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
