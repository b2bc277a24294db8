"""A swarm of simulated nodes in one process, for the swarm benchmark: `python -m benchmarks.swarm.nodes < LOAD_JSON`.

Each node has a key and connections of its own, and does over the network what a real one does: it fetches the run card,
joins, sends heartbeats when it is told to, takes leases, and hands in a file for each. Nothing is computed: it sleeps
instead, and the file is random. A trainer and a validator are played as well, or there would soon be no more leases:
the validator fetches every file and accepts it, the trainer fetches what was accepted, announces versions and forgets
steps.

A line of JSON on stdout says how far it is, every second; the last one is what was measured.
"""

import asyncio
import hashlib
import json
import os
import random
import secrets
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp

from shoal.crypto.keys import Key
from shoal.crypto.signed_request import EMPTY, Recipient, sign_request
from shoal.errors import BenchError

Kind = Literal["card", "join", "heartbeat", "lease", "upload", "other"]
FILE_BYTES = 100_000
# Nodes that join at the same time, and files that trainer and validator each have in hand at the same time.
JOINING, IN_HAND = 32, 8
LONG_POLL_S = 0.5
MAX_AHEAD, LOOK_S = 64, 0.02
# Within this time all nodes have a new version.
FETCH_S = 2.0
ANSWER_S = 60.0
# A node's own connections: its heartbeats do not wait for its uploads.
CONNECTIONS = 2
MAX_FAULTS = 5


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the nodes."""

    url: str
    trainer: str
    """The file of its key, as the validator's."""
    validator: str
    nodes: int
    files_per_step: int
    hurried: int
    """Nodes that take leases at the same time while they hurry."""
    warm_s: float
    """For which they hurry before it counts."""
    hurry_s: float
    steady_s: float
    share: float
    """How much of the rate that they reach in a hurry is asked of them in steady work."""


@dataclass(slots=True)
class Tally:
    """What was asked while it was open, how long each answer took, in seconds, and what went wrong."""

    seconds: float = 0.0
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    leases: int = 0
    """Requests that were answered with one."""
    errors: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def fail(self, fault: str) -> None:
        self.errors += 1
        if fault in self.faults or len(self.faults) < MAX_FAULTS:
            self.faults[fault] += 1

    def per_s(self, count: int) -> float:
        return count / self.seconds if self.seconds else 0.0


def percentile(waits: Sequence[float], share: float) -> float:
    """The wait that a share of them do not exceed; NaN of none."""
    ordered = sorted(waits)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Node:
    """One key's connection to the coordinator. A refusal is an error of the benchmark and is counted in the tally."""

    def __init__(self, swarm: "Swarm", key: Key) -> None:
        self.key = key
        self._swarm = swarm
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=50),
            timeout=aiohttp.ClientTimeout(total=ANSWER_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        await self._session.close()

    async def join(self, role: str) -> None:
        await self.fetch("card", "/v1/card", signed=False)
        await self.ask("join", "POST", "/v1/nodes", {"role": role})

    async def ask(self, kind: Kind, method: str, target: str, body: Any = None) -> Any:
        """The parsed answer, or None if there was none or a refusal."""
        data = b"" if body is None else json.dumps(body).encode()
        answer = await self._send(kind, method, target, data, "application/json")
        return None if answer is None else json.loads(answer)

    async def upload(self, target: str, data: bytes) -> bool:
        return await self._send("upload", "PUT", target, data, "application/octet-stream") is not None

    async def fetch(self, kind: Kind, target: str, *, signed: bool = True) -> bytes | None:
        return await self._send(kind, "GET", target, b"", "", signed=signed)

    async def _send(
        self, kind: Kind, method: str, target: str, data: bytes, media: str, *, signed: bool = True
    ) -> bytes | None:
        swarm = self._swarm
        headers = {"Content-Type": media} if data else {}
        if signed:
            digest = hashlib.sha256(data).hexdigest() if data else EMPTY
            headers |= sign_request(self.key, method, target, digest, swarm.to, time.time())
        tally = swarm.tally
        began = time.perf_counter()
        try:
            async with self._session.request(
                method, swarm.load.url + target, data=data or None, headers=headers
            ) as got:
                answer = await got.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            tally.fail(f"{kind}: {type(error).__name__} {str(error)[:200]}")
            return None
        tally.waits[kind].append(time.perf_counter() - began)
        if got.status != 200:
            tally.fail(f"{kind}: {got.status} {answer[:200]!r}")
            return None
        return answer


class Swarm:
    """All nodes, the trainer and the validator, and what is being counted."""

    def __init__(self, load: Load, to: Recipient, heartbeat_s: float) -> None:
        self.load = load
        self.to = to
        self.heartbeat_s = heartbeat_s
        self.tally = Tally()
        self.version = 0
        """The newest one, which every node has at once: how versions travel is measured by another benchmark."""
        self.think_s = 0.0
        self.workers = [Node(self, Key.create()) for _ in range(load.nodes)]
        self.trainer = Node(self, Key.load(Path(load.trainer)))
        self.validator = Node(self, Key.load(Path(load.validator)))
        self._ahead = 0
        """Files that were handed in and that the trainer does not have yet."""
        self._file = os.urandom(FILE_BYTES)
        self._announced = asyncio.Event()
        self._turn = asyncio.Semaphore(load.hurried)

    async def join(self) -> None:
        await self.trainer.join("trainer")
        await self.validator.join("validator")
        door = asyncio.Semaphore(JOINING)

        async def enter(node: Node) -> None:
            async with door:
                await node.join("worker")

        await asyncio.gather(*(enter(node) for node in self.workers))

    async def beat(self, node: Node) -> None:
        await asyncio.sleep(random.random() * self.heartbeat_s)
        while True:
            said = {"doing": "working", "version": self.version}
            order = await node.ask("heartbeat", "POST", "/v1/heartbeats", said)
            await asyncio.sleep(order["next_s"] if order else self.heartbeat_s)

    async def hurry(self, node: Node) -> None:
        """Works without a pause, with only so many others at a time, and no further ahead of the trainer than that.

        A queue makes nothing faster, and what the trainer does not get done is not done.
        """
        while True:
            async with self._turn:
                while self._ahead >= MAX_AHEAD:
                    await asyncio.sleep(LOOK_S)
                pause_s = await self._work(node, 0.0)
            await self._pause(pause_s)

    async def steady(self, node: Node) -> None:
        """Works with a time to think, begun anywhere within it."""
        await asyncio.sleep(self.think_s * random.uniform(0.0, 0.5))
        think_s = self.think_s * random.random()
        while True:
            pause_s = await self._work(node, think_s)
            think_s = self.think_s * random.uniform(0.5, 1.5)
            await self._pause(pause_s)

    async def _pause(self, seconds: float) -> None:
        """Until there may be work again: after a while, or soon after there is a new version, as real nodes do."""
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._announced.wait(), seconds)
                await asyncio.sleep(random.random() * FETCH_S)

    async def _work(self, node: Node, think_s: float) -> float:
        """A lease, and its file after a while; for how long to pause then."""
        answer = await node.ask("lease", "POST", "/v1/leases", {"version": self.version})
        if answer is None:
            return self.heartbeat_s
        if answer["lease"] is None:
            return float(answer["retry_s"])
        self.tally.leases += 1
        lease = answer["lease"]["lease"]
        await asyncio.sleep(think_s)
        data = secrets.token_bytes(16) + self._file[16:]
        target = f"/v1/files/{lease['step']}/{lease['submission']}?signal={lease['groups']}"
        if await node.upload(target, data):
            self._ahead += 1
        return 0.0

    async def judge(self) -> None:
        """The validator: fetches what waits and accepts it."""
        while True:
            first, last = max(0, self.version - 1), self.version + 10
            target = f"/v1/files?first={first}&last={last}&accepted=false&beyond=0&wait={LONG_POLL_S}"
            found = await self.validator.ask("other", "GET", target)
            await self._each(found, self._judge)

    async def _judge(self, step: int, number: int, sha256: str) -> None:
        await self._read(self.validator, step, number, sha256)
        verdict = {"accept": True, "sha256": sha256, "audited": False}
        await self.validator.ask("other", "PUT", f"/v1/verdicts/{step}/{number}", verdict)

    async def train(self) -> None:
        """The trainer: fetches what was accepted for a step, then makes the next version known."""
        while True:
            had: set[int] = set()
            step = self.version
            while len(had) < self.load.files_per_step:
                target = f"/v1/files?first={step}&last={step}&accepted=true&beyond={len(had)}&wait={LONG_POLL_S}"
                found = await self.trainer.ask("other", "GET", target)
                new = [file for file in (found or {"files": []})["files"] if file["lease"]["submission"] not in had]
                await self._each({"files": new}, lambda *place: self._read(self.trainer, *place))
                had |= {file["lease"]["submission"] for file in new}
                self._ahead -= len(new)
            await self.announce(step + 1)
            await self.trainer.ask("other", "DELETE", f"/v1/files?before={step}")

    async def announce(self, version: int) -> None:
        root = hashlib.sha256(b"%d" % version).hexdigest()
        await self.trainer.ask("other", "PUT", f"/v1/versions/{version}", {"root": root})
        self.version = version
        self._announced.set()
        self._announced = asyncio.Event()

    async def _each(self, found: Any, do: Callable[[int, int, str], Awaitable[None]]) -> None:
        """Does something with each of the listed files, a few at a time."""
        if found is None:
            await asyncio.sleep(LONG_POLL_S)
            return
        hands = asyncio.Semaphore(IN_HAND)

        async def one(file: Any) -> None:
            async with hands:
                await do(file["lease"]["step"], file["lease"]["submission"], file["sha256"])

        await asyncio.gather(*(one(file) for file in found["files"]))

    async def _read(self, node: Node, step: int, number: int, sha256: str) -> None:
        data = await node.fetch("other", f"/v1/files/{step}/{number}")
        if data is not None and hashlib.sha256(data).hexdigest() != sha256:
            self.tally.fail(f"submission {number} of step {step}: is not what was handed in")

    @contextmanager
    def counting(self) -> Iterator[Tally]:
        """A tally of what is asked and answered meanwhile."""
        self.tally = tally = Tally()
        began = time.monotonic()
        yield tally
        tally.seconds = time.monotonic() - began
        self.tally = Tally(faults=tally.faults)


async def measure(load: Load) -> dict[str, Any]:
    """Joins, hurries to find out what is the most, then works at a share of that; both with every node's heartbeats."""
    async with aiohttp.ClientSession() as session, session.get(f"{load.url}/v1/card") as answer:
        card = (await answer.json())["card"]
    swarm = Swarm(load, Recipient(card["coordinator"], card["run"]), card["heartbeat_s"])
    tasks: list[asyncio.Task[None]] = []
    try:
        with swarm.counting() as joining:
            await swarm.join()
            await swarm.announce(0)
        tasks += [asyncio.create_task(task) for task in (swarm.judge(), swarm.train())]
        tasks += [asyncio.create_task(swarm.beat(node)) for node in swarm.workers]
        hurried = await _phase(swarm, swarm.hurry, load.warm_s, load.hurry_s, "as fast as they can", tasks)
        swarm.think_s = load.nodes / max(1.0, load.share * hurried.per_s(len(hurried.waits["upload"])))
        steady = await _phase(swarm, swarm.steady, swarm.think_s, load.steady_s, "steady work", tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in (*swarm.workers, swarm.trainer, swarm.validator):
            await node.close()
    tallies = (joining, hurried, steady)
    return {
        "errors": sum(tally.errors for tally in tallies),
        "faults": {fault: count for tally in tallies for fault, count in tally.faults.items()},
        "joins_per_s": joining.per_s(len(joining.waits["join"])),
        "hurried": _figures(hurried),
        "steady": _figures(steady),
        "versions": swarm.version,
    }


async def _phase(
    swarm: Swarm,
    work: Callable[[Node], Awaitable[None]],
    warm_s: float,
    seconds: float,
    name: str,
    tasks: "Sequence[asyncio.Task[None]]",
) -> Tally:
    """Lets every node work in one way for a while, and counts after `warm_s`; errors count from the beginning."""
    working = [asyncio.ensure_future(work(node)) for node in swarm.workers]
    try:
        with swarm.counting() as warming:
            await _tell(warm_s, f"{name}, warming up", warming)
        with swarm.counting() as tally:
            tally.errors, tally.faults = warming.errors, warming.faults
            await _tell(seconds, name, tally)
        for task in (*working, *tasks):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise BenchError(f"swarm nodes, {name}: {type(error).__name__}: {error}") from error
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    return tally


async def _tell(seconds: float, name: str, tally: Tally) -> None:
    """Waits, and says every second how it goes."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        files, errors = len(tally.waits["upload"]), tally.errors
        say({"at": f"{name}: {left:.0f} s left, {files} files, {errors} errors"})
        await asyncio.sleep(min(1.0, left))


def _figures(tally: Tally) -> dict[str, float]:
    beats = tally.waits["heartbeat"]
    return {
        "heartbeat_p50_ms": 1000 * percentile(beats, 0.5),
        "heartbeat_p99_ms": 1000 * percentile(beats, 0.99),
        "lease_p99_ms": 1000 * percentile(tally.waits["lease"], 0.99),
        "upload_p99_ms": 1000 * percentile(tally.waits["upload"], 0.99),
        "leases_per_s": tally.per_s(tally.leases),
        "uploads_per_s": tally.per_s(len(tally.waits["upload"])),
        "requests_per_s": tally.per_s(sum(len(waits) for waits in tally.waits.values())),
    }


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    say(asyncio.run(measure(Load(**json.loads(sys.stdin.readline())))))
