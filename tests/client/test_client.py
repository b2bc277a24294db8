"""A node's line to its coordinator: it goes on by itself when the network is back, and believes nobody else's card."""

import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.client.client import CoordinatorClient
from shoal.client.known_coordinators import trusted
from shoal.errors import IdentityError, SwarmError, WaitError
from shoal.protocol.pacing import StepCount
from shoal.protocol.refusal import Refusal
from shoal.protocol.run_card import Join, SignedCard, read_card
from tests.support.coordinator_in_process import COORDINATOR, ORIGIN, TRAINER, World, key_of, make_config, world_at
from tests.support.faulty_network import Mischief, Network, Proxy

A = key_of("a")


def test_a_request_made_while_the_coordinator_is_down_is_done_when_it_is_back(small_world: World) -> None:
    world = small_world
    world.announce()
    lease = world.take("a")
    waited: list[str] = []
    link = world.link(A, on_wait=lambda what, _left: waited.append(what))
    _ = link.card
    world.stop()
    back = threading.Timer(0.5, world.start)
    back.start()
    order = link.heartbeat("working")
    back.join()
    assert order["do"] == "work"
    assert waited
    assert world.url in waited[0]
    world.hand_in("a", lease)
    assert world.trainer.count(0) == StepCount(seen=2, signal=2, leased=0)


def test_a_request_that_something_on_the_way_sent_twice_is_signed_anew(small_world: World) -> None:
    world = small_world
    proxy = Proxy(int(world.url.rsplit(":", 1)[1]), seed=1, rate=0.5, kinds=[Mischief.AGAIN])
    with Network(proxy):
        link = CoordinatorClient(proxy.url, A, wait_s=60)
        link.join("worker")
        for _ in range(10):
            assert link.heartbeat("working")["do"] == "work"
    assert proxy.counts[Mischief.AGAIN] > 3
    assert proxy.answers[401] > 3


def test_a_body_that_was_held_up_on_its_way_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stalls for longer than the coordinator waits has done nothing wrong, and its lease goes on."""
    tries: list[int] = []

    def stalls_once(data: bytes) -> Iterator[bytes]:
        tries.append(len(data))
        yield data[:1]
        if len(tries) == 1:
            time.sleep(1.0)
            return  # the rest is not sent any more: the answer is there
        yield data[1:]

    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", pause_s=0.3) as world:
        world.announce()
        waited: list[str] = []
        link = world.link(A, on_wait=lambda what, _left: waited.append(what))
        link.join("worker")
        monkeypatch.setattr("shoal.client.client.to_send", stalls_once)
        monkeypatch.setattr("h11._writers.ContentLengthWriter.send_eom", lambda *_: None)
        assert link.heartbeat("working")["do"] == "work"
    assert len(tries) == 2
    assert "bytes came in" in waited[0]


def test_a_wait_has_an_end_and_says_what_it_waited_for(tmp_path: Path) -> None:
    with pytest.raises(
        WaitError, match=r"coordinator http://127.0.0.1:1: did not answer /v1/card within 0 s .*refused"
    ):
        CoordinatorClient("http://127.0.0.1:1", A, wait_s=0.2).join("worker")


def test_what_is_refused_is_not_asked_again(small_world: World) -> None:
    began = time.monotonic()
    with pytest.raises(Refusal, match="has not joined this run"):
        small_world.link(key_of("nobody")).heartbeat()
    assert time.monotonic() - began < 5


def test_a_node_whose_clock_is_off_is_told_by_how_much(small_world: World) -> None:
    with pytest.raises(IdentityError, match=r"your clock is 1\d\d s behind this server's.*set it"):
        small_world.link(A, clock=lambda: time.time() - 120).join("worker")


def test_a_card_says_all_that_a_worker_needs_and_nothing_private(small_world: World) -> None:
    card = small_world.link(A).card
    config = card.run_config()
    assert (card.run, card.coordinator, card.origin) == ("test", COORDINATOR.address, ORIGIN.address)
    assert card.relays == ("http://127.0.0.1:1",)
    assert config.tasks == small_world.config.tasks
    assert config.sampling == small_world.config.sampling
    assert config.audit.thresholds == small_world.config.audit.thresholds
    assert "swarm" not in card.config


def test_a_relay_that_joins_is_part_of_the_card(small_world: World) -> None:
    small_world.link(A).join("relay", url="http://127.0.0.1:7201")
    assert small_world.link(key_of("b")).card.relays == ("http://127.0.0.1:1", "http://127.0.0.1:7201")


def signed_card(world: World) -> bytes:
    return json.dumps(world.link(A).get("/v1/card")).encode()


def test_a_card_of_another_coordinator_than_was_meant_is_not_believed(small_world: World) -> None:
    data = signed_card(small_world)
    assert read_card(data, Join.parse(f"{small_world.url}#{COORDINATOR.address}")).run == "test"
    with pytest.raises(SwarmError, match=f"expected {TRAINER.address}; do not join it"):
        read_card(data, Join.parse(f"{small_world.url}#{TRAINER.address}"))


@pytest.mark.parametrize(("key", "value"), [("origin", TRAINER.address), ("run", "other"), ("max_upload", 7)])
def test_a_card_that_was_changed_on_the_way_is_not_believed(small_world: World, key: str, value: object) -> None:
    tree = json.loads(signed_card(small_world))
    tree["card"][key] = value
    with pytest.raises(SwarmError, match="as coordinator, but 0x"):
        read_card(json.dumps(tree).encode(), Join(small_world.url, None))


@pytest.mark.parametrize("data", [b"", b"<html>", b"[]", b"{}", b'{"card": {}}', b"[" * 100_000, b'{"card": 7}'])
def test_what_is_no_card_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(SwarmError, match="is a coordinator at that URL"):
        read_card(data, Join("http://x", None))


def test_a_card_of_another_schema_says_so(small_world: World) -> None:
    tree = json.loads(signed_card(small_world))
    tree["card"]["schema_version"] = 1
    with pytest.raises(SwarmError, match="has schema version 1, this program knows 3"):
        read_card(json.dumps(tree).encode(), Join(small_world.url, None))


def test_a_coordinator_that_becomes_another_is_not_followed(small_world: World) -> None:
    link = small_world.link(A)
    _ = link.card
    other = small_world.coordinator.key = TRAINER
    small_world.coordinator._card = None
    with pytest.raises(SwarmError, match=f"is {other.address}, expected"):
        link.refresh()


def test_join_wants_a_url() -> None:
    for text in ("", "example.org:7000", "ftp://x"):
        with pytest.raises(SwarmError, match="must be the URL of a coordinator"):
            Join.parse(text)
    with pytest.raises(IdentityError, match="an address is 0x and 40"):
        Join.parse("http://x#0x12")


@pytest.mark.parametrize(
    "url", ["http://[::1/x", "http://", "https://:7000", "http://x:99999", "http://x:0", "http://x:y"]
)
def test_a_url_that_leads_nowhere_is_refused_in_one_line_that_names_it(url: str) -> None:
    with pytest.raises(SwarmError) as refused:
        Join.parse(url)
    assert str(refused.value).startswith(f"--join {url}: ")
    assert str(refused.value).endswith("give it as in https://HOST:7000#0xADDRESS")
    assert "\n" not in str(refused.value)


def test_a_line_of_known_coordinators_that_is_none_is_said_of_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "shoal").mkdir()
    (tmp_path / "shoal" / "known_coordinators").write_text(f"http://[::1/x {A.address}\n")
    with pytest.raises(SwarmError, match=r"known_coordinators: cannot be read .*each line is a URL and an address"):
        trusted("https://run.example.org:7000")


def test_the_signature_of_a_card_covers_its_config() -> None:
    from shoal.protocol.run_card import SCHEMA, Card, sign_card

    def card(**changes: object) -> SignedCard:
        fields = {
            "schema_version": SCHEMA,
            "run": "test",
            "coordinator": COORDINATOR.address,
            "origin": ORIGIN.address,
            "relays": (),
            "max_upload": 1,
            "heartbeat_s": 1.0,
            "direct_uploads": False,
            "packages": {},
            "config": make_config().model_dump(mode="json"),
        }
        return sign_card(Card.model_validate(fields | changes), COORDINATOR)

    assert card().signature == card().signature
    assert card(config=make_config(steps=21).model_dump(mode="json")).signature != card().signature


def test_a_file_that_was_damaged_on_its_way_comes_again_and_nobody_is_blamed(
    small_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_world.announce()
    small_world.hand_in("a", small_world.take("a"))
    (upload,) = small_world.validator.waiting(0, 3)
    real, bad = small_world.coordinator.objects.get, [True, True]

    async def damaged(name: str) -> AsyncIterator[bytes]:
        pieces = await real(name)
        if not bad or not bad.pop():
            return pieces
        return flipped(pieces)

    async def flipped(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            yield bytes([piece[0] ^ 1]) + piece[1:]

    monkeypatch.setattr(small_world.coordinator.objects, "get", damaged)
    submission, _ = small_world.validator.read(upload)
    assert submission.rollouts
    assert not bad
