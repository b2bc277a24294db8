"""A relay's store served by the real nginx, with the configuration that `shoal relay --nginx` writes."""

import http.client
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.errors import ShoalError
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.format.store import Store
from shoal.wait import wait_until
from tests.support.origin_and_relays import KEY, RUN, Origin, contents, origin_at
from tests.support.servers.nginx import nginx
from tests.support.servers.programs import find_program
from tests.support.servers.running import free_port, running


@pytest.fixture(scope="session")
def program() -> Path:
    try:
        return find_program("nginx")
    except ShoalError as error:
        pytest.skip(f"nginx is not available: {error}")


@dataclass
class Relay:
    origin: Origin
    store: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, target: str, method: str = "GET") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.putrequest(method, target, skip_host=False)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()


@contextmanager
def relay_behind(program: Path, path: Path) -> Iterator[Relay]:
    port = free_port()
    config, store = path / "nginx" / "nginx.conf", path / "relay"
    config.parent.mkdir()
    with origin_at(path / "world") as origin:
        options = ["--from", origin.server.url, "--store", store, "--origin", KEY.address, "--port", port]
        command = [sys.executable, "-m", "shoal", "relay", *options, "--nginx", config, "--no-serve"]
        with running([str(part) for part in command], path / "relay.log"):
            wait_until(config.exists, 30, f"no configuration; see {path / 'relay.log'}", pause_s=0.02)
            with nginx(config, port, path / "nginx.log", program):
                yield Relay(origin, store, port)


@pytest.fixture
def relay(program: Path, tmp_path: Path) -> Iterator[Relay]:
    (tmp_path / "world").mkdir()
    with relay_behind(program, tmp_path) as relay:
        yield relay


def test_versions_come_through_nginx_as_they_are_published(relay: Relay, tmp_path: Path) -> None:
    with Puller(Store(tmp_path / "client"), [relay.url], KEY.address, RUN) as puller:
        for number in (1, 2):
            folder = relay.origin.publish(number)
            assert contents(puller.fetch(number, wait_s=30)) == contents(folder)


def test_nginx_hands_out_packages_and_nothing_else(relay: Relay, tmp_path: Path) -> None:
    relay.origin.publish(1)
    with Puller(Store(tmp_path / "client"), [relay.url], KEY.address, RUN) as puller:
        puller.fetch(1, wait_s=30)
    (relay.store / "secret").write_text("secret")
    package = next(p.name for p in relay.store.iterdir() if "-full-" in p.name)
    (relay.store / package / "files" / "link").symlink_to(tmp_path / "nginx" / "nginx.conf")
    assert relay.ask(f"/{package}/files/config.json")[0] == 200
    for target in (
        "/",
        f"/{package}",
        f"/{package}/",
        f"/{package}/files/",
        "/.lock",
        "/secret",
        f"/{package}/../secret",
        f"/{package}/files/..%2f..%2f..%2fsecret",
        f"/{package}/files/a/../../../secret",
        f"/{package}/files/%2e%2e/%2e%2e/secret",
        f"/{package}/files//../../secret",
        "/../nginx/nginx.conf",
        "/head.json/",
        f"/{package}/files/link",
    ):
        status, body = relay.ask(target)
        assert 300 <= status < 500, target
        assert b"secret" not in body
        assert b"worker_processes" not in body
    assert relay.ask(f"/{package}/files/config.json", "POST")[0] == 405
    assert relay.ask("/head.json", "DELETE")[0] == 405
