"""The published `shardcast` package, one node of it: a side of `python -m benchmarks broadcast`.

A standalone script. The python of the package's own environment runs it, so it imports nothing of shoal, and they meet
only in JSON lines on stdin and stdout:

    in   {"role": "origin", "folder": "/o", "port": 8001}                   or "relay" with "upstream": "http://.."
    out  {"version": "0.3.2"}
    in   {"publish": "/data.bin"}                                           to an origin, once it is to begin
    out  {"published": "v1"}
    in   {"role": "client", "folder": "/c", "upstream": "http://.."}        probes its relay
    out  {"version": "0.3.2"}
    in   {"fetch": "v1"}                                                    asks once a second until it is there
    out  {"file": "/c/download_v1.bin"}                                     its checksum verified

The end of stdin ends it. It binds to the loopback address instead of all addresses, its polling is lowered to a second
(the environment variables of `shardcast_side` lower its retries), and the probe file that its clients ask for is made:
the package leaves that to its user. A client keeps its temporary files to itself, as on a machine of its own.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

POLL_S = 1
PROBE = ("data1.bin", 1 << 20)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    node: Any = None
    for line in sys.stdin:
        question = json.loads(line)
        if "publish" in question:
            answer = {"published": node.broadcast(question["publish"])}
        elif "fetch" in question:
            answer = {"file": fetch(node, question["fetch"])}
        else:
            node, answer = start(question)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def start(question: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    import shardcast  # type: ignore[import-not-found]
    from shardcast import client, server

    class Loopback(server.ShardcastServer):  # type: ignore[misc]
        def __init__(self, address: tuple[str, int], *rest: Any) -> None:
            super().__init__(("127.0.0.1", address[1]), *rest)

    server.ShardcastServer = Loopback
    server.get_local_ip = lambda: "127.0.0.1"
    folder = Path(question["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    client.__file__ = str(folder / "own" / "client.py")  # temporary files go two directories above it
    if question["role"] != "client":
        (folder / PROBE[0]).write_bytes(os.urandom(PROBE[1]))
    if question["role"] == "origin":
        node = shardcast.OriginServer(str(folder), question["port"])
    elif question["role"] == "relay":
        node = shardcast.MiddleNode([question["upstream"]], str(folder), question["port"], check_interval=POLL_S)
    else:
        node = shardcast.ClientNode([question["upstream"]], str(folder))
    return node, {"version": shardcast.__version__}


def fetch(node: Any, version: str) -> str | None:
    while version not in node.list_available_versions():
        time.sleep(POLL_S)
    return node.download_version(version)  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
