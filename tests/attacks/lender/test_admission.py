"""Who is let in by a list of nodes: a signature is good for one server, and no server can use it at another."""

import http.client
import time
from pathlib import Path

from shoal.crypto.keys import Key
from shoal.crypto.signed_request import EMPTY, Recipient, sign_request
from shoal.shardcast.format.store import Store
from shoal.shardcast.serve.server import Server, serving


def ask(server: Server, host: str, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=10)
    connection.putrequest("GET", "/metrics", skip_host=True)
    for name, value in {"Host": host, **headers}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_a_server_cannot_use_a_visitors_signature_at_another(tmp_path: Path) -> None:
    node = Key.create()
    mine, other = (Server(Store(tmp_path / name), allow=[node.address]) for name in ("mine", "other"))
    with serving(mine), serving(other):
        visited = f"{mine.host}:{mine.port}"
        headers = sign_request(node, "GET", "/metrics", EMPTY, Recipient(visited), time.time())
        status, said = ask(other, visited, headers)
        assert status == 401
        assert b"signed for another server" in said
        assert ask(mine, visited, headers)[0] == 200


def test_a_server_that_others_know_by_another_name_is_told_so(tmp_path: Path) -> None:
    node = Key.create()
    named = Server(Store(tmp_path / "named"), allow=[node.address], public="http://relay.example:80")
    with serving(named):
        headers = sign_request(node, "GET", "/metrics", EMPTY, Recipient("relay.example:80"), time.time())
        assert ask(named, "relay.example:80", headers)[0] == 200
