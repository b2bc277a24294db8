"""What strangers say of themselves does not stop who listens."""

import time
from http.client import HTTPResponse
from pathlib import Path
from typing import cast

import pytest
from pydantic import ValidationError

from shoal.errors import ShardcastError
from shoal.shardcast.fetch.http import Connection, Pace, Response
from shoal.shardcast.format.store import HEAD
from shoal.shardcast.serve.relay_tree import Node, Seen, walk
from tests.support.origin_and_relays import KEY, RUN, origin_at


@pytest.mark.parametrize("url", ["http://[::1", "http://a:99999", "http://a:x", "ftp://a", "a:80", ""])
def test_what_is_no_url_of_a_source_is_named(url: str) -> None:
    with pytest.raises(ShardcastError, match="give it as http://HOST:PORT"):
        Connection(url)


@pytest.mark.parametrize(
    ("said", "below"),
    [
        ("bytes */5", True),
        ("bytes */7", False),
        ("bytes */\u00b2", False),
        ("bytes */" + "1" * 5000, False),
        ("", False),
    ],
)
def test_a_size_that_is_no_number_is_none(said: str, below: bool) -> None:
    class Answer:
        status, length = 416, 0

        def getheader(self, _: str) -> str:
            return said

    response = Response(Connection("http://127.0.0.1:1"), cast("HTTPResponse", Answer()))
    assert response.says_size_below(6) is below


def test_a_child_with_a_url_that_is_none_is_shown_and_passed_over() -> None:
    child = Seen(name="odd", url="http://[::1", seen=time.time(), sent={})

    def ask(url: str) -> Node:
        Connection(url)
        return Node(name="origin", packages={}, children=[child])

    tree = walk("http://127.0.0.1:1", ask)
    assert "odd" in str(tree.children[0].label)


def test_a_node_that_claims_more_bytes_than_there_are_is_not_believed() -> None:
    with pytest.raises(ValidationError, match="less than"):
        Node.model_validate_json(
            '{"name": "n", "packages": {"p": {"bytes": 1%s, "whole": true}}, "children": []}' % ("0" * 400)
        )


def test_a_connection_goes_on_after_an_answer_without_a_body(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin:
        origin.publish(1)
        head = origin.store.head(KEY.address, RUN)
        assert head is not None
        connection = Connection(origin.server.url)
        for _ in range(3):
            answer = connection.get(f"{HEAD}?after={head.sequence}", pace=Pace(5.0))
            assert answer.status == 304
            answer.drop()
        connection.close()
        assert origin.server.counts["requests"] == 3
