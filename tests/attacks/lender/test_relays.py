"""A relay can withhold data but not alter it: a client that also reaches an honest relay gets the right bytes."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from shoal.crypto.keys import Key
from shoal.errors import ShardcastError, WaitError
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.format.records import MIB, Head, signed_head
from shoal.shardcast.format.store import Store
from shoal.shardcast.origin.publish import Publisher
from shoal.shardcast.serve.server import Server, serving
from shoal.wait import wait_until
from tests.attacks.lender.relays import Answer, Evil, Twist, evil_relay, late

SIZE = 12 * MIB + 12345
DEADLINE_S = 25.0  # those that drip would take longer
WAIT_S = 60.0


@dataclass
class Honest:
    """An origin with version 1, whose content is `data`."""

    url: str
    key: Key
    publisher: Publisher
    data: bytes

    def publish(self, number: int, data: bytes) -> None:
        with self.publisher.publish(number, size=len(data)) as package, package.file("model.bin") as file:
            file.write(data)


@pytest.fixture
def honest(tmp_path: Path) -> Iterator[Honest]:
    key = Key.create()
    store = Store(tmp_path / "origin")
    with Publisher(store, key, "run") as publisher, serving(Server(store)) as server:
        origin = Honest(server.url, key, publisher, os.urandom(SIZE))
        origin.publish(1, origin.data)
        yield origin


def pull(
    path: Path, origin: Honest, *urls: str, wait_s: float = WAIT_S, number: int | None = 1
) -> tuple[bytes, Puller]:
    with Puller(Store(path), urls, origin.key.address, "run", stall_s=1.0, seed=1) as puller:
        files = puller.fetch(number, wait_s=wait_s)
        return (files / "model.bin").read_bytes(), puller


def fails_to_pull(path: Path, origin: Honest, url: str, *why: str) -> None:
    """A client that reaches this relay alone ends with an error that says why, at the latest after a few tries."""
    deadline = time.monotonic() + WAIT_S
    while True:
        with pytest.raises(WaitError) as refused:
            pull(path, origin, url, wait_s=2)
        if all(re.search(words, str(refused.value)) for words in why):
            return
        assert time.monotonic() < deadline, refused.value


def nothing_is_whole(path: Path) -> bool:
    return not any('["closing"' in m.read_text(errors="replace") for m in path.glob("*/manifest.jsonl"))


def flip(answer: Answer) -> None:
    if answer.is_piece:
        body = bytearray(answer.body)
        body[len(body) // 2] ^= 1
        answer.body = bytes(body)


def cut_short(answer: Answer) -> None:
    if answer.is_piece:
        answer.body = answer.body[: len(answer.body) // 3]


def wrong_place(answer: Answer) -> None:
    """Right length, right file, other bytes of it."""
    if answer.is_piece:
        answer.body = answer.body[MIB:] + answer.body[:MIB] if len(answer.body) > MIB else answer.body[::-1]


def says_longer(answer: Answer) -> None:
    if answer.is_piece:
        answer.headers["Content-Length"] = str(len(answer.body) + 1)


def whole_file(answer: Answer) -> None:
    if answer.is_piece:
        answer.status = 200


def chunked(answer: Answer) -> None:
    if answer.is_piece:
        answer.write(b"HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(64):
            answer.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")


def elsewhere(answer: Answer) -> None:
    if answer.is_piece:
        answer.status, answer.body = 302, b""
        answer.headers["Location"] = "http://127.0.0.1:9/"


def drips(answer: Answer) -> None:
    if answer.is_piece:
        answer.write(f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(answer.body)}\r\n\r\n".encode())
        for byte in answer.body[:100]:
            answer.write(bytes([byte]))
            time.sleep(0.3)


def drips_headers(answer: Answer) -> None:
    if answer.is_piece:
        answer.write(b"HTTP/1.1 206 Partial Content\r\n")
        for i in range(100):
            answer.write(f"X-{i}: 1\r\n".encode())
            time.sleep(0.3)


def continues_for_ever(answer: Answer) -> None:
    if answer.is_piece:
        end = time.monotonic() + 2 * DEADLINE_S
        while time.monotonic() < end:
            answer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
            time.sleep(0.001)


def hangs(answer: Answer) -> None:
    if answer.is_piece:
        answer.sent = True
        time.sleep(8)


def says_nothing_more(answer: Answer) -> None:
    if answer.is_piece:
        answer.status, answer.body, answer.headers = 404, b"", {"Content-Length": "0"}


def nonsense(answer: Answer) -> None:
    if answer.is_piece:
        answer.write(b"\x00\xff" * 5000)


PIECE_LIES: list[Twist] = [
    flip,
    cut_short,
    wrong_place,
    says_longer,
    whole_file,
    chunked,
    elsewhere,
    drips,
    drips_headers,
]
PIECE_LIES += [continues_for_ever, hangs, says_nothing_more, nonsense]


@pytest.mark.parametrize("twist", PIECE_LIES, ids=lambda twist: twist.__name__)
def test_whoever_reaches_one_honest_relay_gets_the_right_bytes(tmp_path: Path, honest: Honest, twist: Twist) -> None:
    with evil_relay(honest.url, twist) as evil, evil_relay(honest.url, late(evil)) as good:
        began = time.monotonic()
        data, puller = pull(tmp_path / "client", honest, evil.url, good.url)
        took = time.monotonic() - began
    assert data == honest.data
    assert took < DEADLINE_S
    assert evil.asked_for_pieces.is_set()
    assert evil.url in puller.sources[0].said


@pytest.mark.parametrize("twist", [flip, wrong_place], ids=lambda twist: twist.__name__)
def test_a_liar_alone_is_named_and_nothing_of_it_is_kept_as_whole(tmp_path: Path, honest: Honest, twist: Twist) -> None:
    with evil_relay(honest.url, twist) as evil:
        fails_to_pull(tmp_path / "client", honest, evil.url, evil.url, f"is not what {honest.key.address} signed")
    assert nothing_is_whole(tmp_path / "client")
    # What it did deliver right is of use later.
    data, _ = pull(tmp_path / "client", honest, honest.url)
    assert data == honest.data


def endless(answer: Answer) -> None:
    """A manifest of one line that never ends."""
    if answer.is_manifest:
        answer.body = b'["piece",{"a":"' + b"x" * (4 * MIB)
        answer.status, answer.headers = 206, {"Content-Length": str(len(answer.body))}


def bomb(answer: Answer) -> None:
    """A line that takes many times its size once it is parsed."""
    if answer.is_manifest:
        answer.body = b'["piece",{"a":[' + b"[]," * (4 * MIB) + b'[]]},"0x"]\n'
        answer.status, answer.headers = 206, {"Content-Length": str(len(answer.body))}


def too_long(answer: Answer) -> None:
    if answer.is_manifest:
        answer.write(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 99999999999\r\n\r\n")
        with suppress(OSError):
            for _ in range(1000):
                answer.write(b"x" * MIB)


def forged_line(answer: Answer) -> None:
    if answer.is_manifest and b'["piece"' in answer.body:
        answer.body = answer.body.replace(b'"size":1048576', b'"size":1048575')
        answer.headers["Content-Length"] = str(len(answer.body))


def early_end(answer: Answer) -> None:
    """The opening and the closing, as if there were nothing between."""
    if answer.is_manifest and answer.body:
        lines = answer.body.splitlines(keepends=True)
        answer.body = b"".join(line for line in lines if not line.startswith(b'["piece"'))
        answer.headers["Content-Length"] = str(len(answer.body))


def stutter(answer: Answer) -> None:
    """The same lines again, whatever was asked, and never the last."""
    if answer.is_manifest:
        answer.body, answer.status = answer.from_start()[: 8 * 1024], 206
        answer.body = answer.body[: answer.body.rfind(b"\n") + 1]
        answer.headers = {"Content-Length": str(len(answer.body))}


@pytest.mark.parametrize(
    "twist", [endless, bomb, too_long, forged_line, early_end, stutter], ids=lambda twist: twist.__name__
)
def test_a_bad_manifest_stops_nobody(tmp_path: Path, honest: Honest, twist: Twist) -> None:
    with evil_relay(honest.url, twist) as evil:
        data, _ = pull(tmp_path / "client", honest, evil.url, honest.url)
    assert data == honest.data
    assert any("manifest" in path for path in evil.asked)


@pytest.mark.parametrize("twist", [endless, bomb, stutter], ids=lambda twist: twist.__name__)
def test_a_bad_manifest_is_not_asked_for_over_and_over(tmp_path: Path, honest: Honest, twist: Twist) -> None:
    with evil_relay(honest.url, twist) as evil, suppress(WaitError, ShardcastError):
        pull(tmp_path / "client", honest, evil.url, wait_s=2)
    assert 0 < len([path for path in evil.asked if "manifest" in path]) < 60


MEMORY = """
import sys
from pathlib import Path
from contextlib import suppress
import resource
from shoal.errors import ShoalError
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.format.store import Store
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with Puller(Store(Path(sys.argv[1])), [sys.argv[2]], sys.argv[3], "run", stall_s=1.0) as puller, suppress(ShoalError):
    puller.fetch(1, wait_s=2)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_manifest_line_that_unfolds_in_memory_is_refused_before_it_does(tmp_path: Path, honest: Honest) -> None:
    with evil_relay(honest.url, bomb) as evil:
        command = [sys.executable, "-c", MEMORY, str(tmp_path / "client"), evil.url, honest.key.address]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert any("manifest" in path for path in evil.asked)
    assert int(ran.stdout) < 150, f"{ran.stdout} MiB for a line of 12 MiB"


def head_twist(change: Callable[[Answer], bytes]) -> Twist:
    def twist(answer: Answer) -> None:
        if answer.is_head and answer.status == 200:
            answer.body = change(answer)
            answer.headers["Content-Length"] = str(len(answer.body))

    return twist


def test_a_head_that_another_key_signed_is_refused_and_its_signer_named(tmp_path: Path, honest: Honest) -> None:
    forger = Key.create()

    def resign(answer: Answer) -> bytes:
        head = Head.model_validate_json(json.dumps(json.loads(answer.body)[0]))
        return signed_head(head, forger)

    with evil_relay(honest.url, head_twist(resign)) as evil:
        said = f"{evil.url}: head: signed by {forger.address}, not by {honest.key.address}"
        fails_to_pull(tmp_path / "client", honest, evil.url, said)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.replace(b'"number":1', b'"number":2'),
        lambda body: body.replace(b'"run":"run"', b'"run":"nur"'),
        lambda body: b"[" * 100_000,
        lambda body: b"",
        lambda body: body[:-20],
        lambda body: b'[{"format":1},"0x00"]',
        lambda body: b"\xff\xfe" * 100,
        lambda body: b"x" * (1 << 20),
    ],
)
def test_a_damaged_head_is_refused_and_an_honest_relay_is_enough(
    tmp_path: Path, honest: Honest, change: Callable[[bytes], bytes]
) -> None:
    with evil_relay(honest.url, head_twist(lambda answer: change(answer.body))) as evil:
        data, puller = pull(tmp_path / "client", honest, evil.url, honest.url)
    assert data == honest.data
    assert puller.head is not None
    assert puller.head.run == "run"


def test_an_old_head_is_refused_even_after_a_restart_of_the_client(tmp_path: Path, honest: Honest) -> None:
    old: list[bytes] = []

    def replay(answer: Answer) -> bytes:
        old.append(answer.body)
        return old[0]

    with evil_relay(honest.url, head_twist(replay), waits=False) as evil:
        pull(tmp_path / "client", honest, evil.url)
        newer = os.urandom(MIB)
        honest.publish(2, newer)
        assert pull(tmp_path / "client", honest, honest.url, number=2)[0] == newer
        with Puller(Store(tmp_path / "client"), [evil.url], honest.key.address, "run", stall_s=1.0) as puller:
            wait_until(lambda: puller.counts["rollbacks_refused"], 60, "the old head was not noticed", pause_s=0.02)
            assert puller.latest() == 2
            assert "older than" in puller.sources[0].said


def has_changed(puller: Puller, before: Head | None) -> bool:
    return puller.head != before


def test_an_origin_that_lost_its_store_is_believed_again(tmp_path: Path) -> None:
    key = Key.create()
    for life in ("first", "second"):
        store = Store(tmp_path / life)
        with Publisher(store, key, "run") as publisher, serving(Server(store)) as server:
            origin = Honest(server.url, key, publisher, os.urandom(MIB))
            origin.publish(1, origin.data)
            client = Store(tmp_path / "client")
            before = client.head(key.address)
            with Puller(client, [server.url], key.address, "run") as puller:
                wait_until(partial(has_changed, puller, before), 60, "no head came", pause_s=0.01)
                assert (puller.fetch(1, wait_s=60) / "model.bin").read_bytes() == origin.data


def test_a_version_that_is_replaced_while_it_is_handed_out_is_given_whole_or_anew(tmp_path: Path) -> None:
    """A client starts with version 1 on its disk and asks for it while the head that replaces it arrives."""
    key = Key.create()
    store = Store(tmp_path / "origin")
    contents = [os.urandom(3 * MIB)]
    with Publisher(store, key, "run") as publisher, serving(Server(store)) as server:
        origin = Honest(server.url, key, publisher, contents[0])
        origin.publish(1, contents[0])
        for _ in range(10):
            with Puller(Store(tmp_path / "client"), [server.url], key.address, "run") as puller:
                held = puller.fetch(1, wait_s=60) / "model.bin"
                with suppress(FileNotFoundError):  # the caller's to hold; what is read is right
                    assert held.read_bytes() in contents
            contents.append(os.urandom(3 * MIB))
            origin.publish(1, contents[-1])


def test_lines_of_another_package_are_refused(tmp_path: Path, honest: Honest) -> None:
    honest.publish(2, os.urandom(SIZE))
    lines: dict[str, bytes] = {}

    def mix(answer: Answer) -> None:
        """Version 2's pieces under version 1's opening."""
        if answer.is_manifest and answer.body:
            number = answer.path.split("/")[1][:6]
            lines[number] = answer.body
            other = lines.get("000002" if number == "000001" else "000001")
            if other is not None:
                own_opening = answer.body.splitlines(keepends=True)[0]
                answer.body = own_opening + b"".join(other.splitlines(keepends=True)[1:])
                answer.headers["Content-Length"] = str(len(answer.body))

    with evil_relay(honest.url, mix) as evil:
        pull(tmp_path / "first", honest, evil.url, honest.url, number=2)
        data, _ = pull(tmp_path / "client", honest, evil.url, honest.url, number=1)
        assert data == honest.data
        fails_to_pull(tmp_path / "alone", honest, evil.url, f"{evil.url}: piece of package .*: signed by 0x")
    assert nothing_is_whole(tmp_path / "alone")


def test_seven_liars_and_one_honest_relay(tmp_path: Path, honest: Honest) -> None:
    twists: list[Twist] = [flip, cut_short, wrong_place, hangs, forged_line, early_end, nonsense]
    with ExitStack() as stack:
        evils: list[Evil] = [stack.enter_context(evil_relay(honest.url, twist)) for twist in twists]
        data, _ = pull(tmp_path / "client", honest, *(evil.url for evil in evils), honest.url)
    assert data == honest.data
