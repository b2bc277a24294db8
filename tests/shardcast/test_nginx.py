"""The real nginx over the same store: a plain web server is a relay too."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from shoal.errors import BenchError, ShardcastError
from shoal.shardcast.format.records import MIB
from shoal.shardcast.serve.nginx import nginx_config
from tests.support.origin_and_relays import client_of, contents, origin_at
from tests.support.servers.nginx import nginx
from tests.support.servers.running import free_port


@contextmanager
def nginx_over(store: Path, state: Path) -> Iterator[str]:
    state.mkdir()
    port, config = free_port(), state / "nginx.conf"
    config.write_text(nginx_config(store, config, "127.0.0.1", port))
    with ExitStack() as stack:
        try:
            stack.enter_context(nginx(config, port, state / "log"))
        except BenchError as error:
            pytest.skip(f"nginx is not available: {error}")
        yield f"http://127.0.0.1:{port}"


def test_a_version_arrives_through_nginx_while_it_is_being_written(tmp_path: Path) -> None:
    with (
        origin_at(tmp_path) as origin,
        nginx_over(origin.store.path, tmp_path / "nginx") as url,
        client_of(tmp_path / "client", url) as client,
    ):
        made = origin.publish(1)
        assert contents(client.fetch(1)) == contents(made)
        with origin.publisher.publish(2) as package, package.file("model.safetensors") as file:
            for i in range(6):
                file.write(bytes([i]) * MIB)
                time.sleep(0.05)
        files = client.fetch(2)
        assert (files / "model.safetensors").read_bytes() == b"".join(bytes([i]) * MIB for i in range(6))
        assert not client.counts["lies"]


def test_nginx_lists_nothing_and_gives_nothing_else(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin, nginx_over(origin.store.path, tmp_path / "nginx") as url:
        origin.publish(1, mib=0.1)
        name = origin.publisher.entries[0].name
        (origin.store.path / name / "files" / "link").symlink_to("/etc/passwd")
        host, port = url.removeprefix("http://").split(":")

        def status(path: str, method: str = "GET") -> int:
            connection = HTTPConnection(host, int(port), timeout=10)
            connection.request(method, path)
            answer = connection.getresponse()
            answer.read()
            connection.close()
            return answer.status

        assert status("/head.json") == 200
        assert status(f"/{name}/files/config.json") == 200
        assert status("/head.json", "POST") == 405
        for path in (
            "/",
            "/.lock",
            f"/{name}/",
            f"/{name}/files/",
            f"/{name}/files/../../.lock",
            f"/{name}/files/link",
        ):
            assert status(path) in (403, 404), path


def test_a_path_that_nginx_would_misread_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardcastError, match="nginx does not accept a path"):
        nginx_config(tmp_path / "a b", tmp_path / "nginx.conf", "127.0.0.1", 80)
