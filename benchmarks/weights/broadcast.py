"""`python -m benchmarks broadcast`: a file from an origin through a relay to clients, against shardcast and nginx.

The peers are the package `shardcast` 0.3.2, in an environment of its own and with its polling lowered to a second, and
nginx before nginx with curl and b3sum, streaming or with a cache, whichever is faster. Sides take turns within one run,
the order changes from round to round, and the best round of each counts. The data are random, so that nothing
compresses, and on a memory disk where there is room.

Our side alone is then measured behind links of a chosen speed: how much longer a chain of relays takes, how many bytes
the origin sends, and how soon the first byte of a new version reaches a client.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from benchmarks.common.cpu_usage import cpu_below
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure, Op
from benchmarks.peers.process import Peer
from benchmarks.weights.broadcast_ours import Ours
from benchmarks.weights.broadcast_sides import Nginx, Shardcast, Side, links, new_link
from shoal.errors import BenchError, WaitError
from shoal.files import cache_dir

BARS: dict[str, tuple[Op, float]] = {
    "vs_shardcast_2": (">=", 4.0),
    "vs_shardcast_8": (">=", 4.0),
    "vs_nginx_2": ("<=", 1.3),
    "vs_nginx_8": ("<=", 1.3),
    "cpu_vs_shardcast_8": ("<=", 0.5),
    "chain_3_vs_1": ("<=", 1.15),
    "origin_bytes_per_relay": ("<=", 1.02),
    "publish_to_first_byte_ms": ("<=", 200.0),
}
MEMORY_DISK = Path("/dev/shm")
# shardcast's clients have every byte twice while they join their shards.
COPIES_A_NODE = 2
SHARE_OF_ROOM = 0.7
CHAIN = (1, 2, 3)
# A head and a few lines of manifest come before the first byte of a piece, and are shorter than this.
PREAMBLE = 1 << 15
WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much is sent, to how many, how often; chains have links of `rate` bytes per second."""

    rounds: int
    bytes_to: dict[int, int]
    chain_rounds: int
    chain_bytes: int
    rate: float
    publications: int


FULL = Size(3, {2: 1_000_000_000, 8: 500_000_000}, chain_rounds=2, chain_bytes=96_000_000, rate=16e6, publications=9)
QUICK = Size(1, {2: 20_000_000, 8: 10_000_000}, chain_rounds=1, chain_bytes=8_000_000, rate=16e6, publications=2)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one send took: seconds on the clock, and of all processes' CPU."""

    seconds: float
    cpu: float


def bench_broadcast(quick: bool, progress: Progress) -> BenchResult:
    """Ratios of times and CPU seconds to the peers' at 2 and 8 clients, and what our side does on slow links."""
    size = QUICK if quick else FULL
    cache = cache_dir()
    with progress.aside():
        ours = Ours()
        sides: list[Side] = [ours, Shardcast(cache), Nginx("pass", cache), Nginx("cache", cache)]
    ratios: dict[str, float] = {}
    values: dict[str, Figure] = {"hash": "BLAKE3: b3sum for nginx, as shardcast and shoal have it built in"}
    with scratch(size, progress) as (folder, scale):
        values["data_on"] = "memory disk" if MEMORY_DISK in folder.parents else "disk"
        for clients, count in size.bytes_to.items():
            count = int(count * scale)
            progress.stage(f"{count / 1e9:g} GB to {clients} clients")
            data = random_file(folder / "data.bin", count)
            costs = in_turns(sides, folder, data, clients, size.rounds, progress)
            data.unlink()
            values[f"bytes_{clients}"] = count
            ratios |= compare(costs, clients)
            for name, cost in costs.items():
                values[f"seconds_{clients}_{name}"] = cost.seconds
                values[f"cpu_{clients}_{name}"] = cost.cpu
        with links() as link:
            progress.stage("chains of relays")
            chains = chain_seconds(ours, link, folder, size, progress)
            ratios |= {f"chain_{n}_vs_1": chains[n] / chains[1] for n in CHAIN[1:]}
            values |= {f"chain_{n}_seconds": seconds for n, seconds in chains.items()}
            progress.stage("what the origin sends")
            for clients in (1, 8):
                times = origin_bytes(ours, link, folder, size.chain_bytes, clients)
                values["origin_bytes_per_relay" if clients == 8 else f"origin_bytes_per_relay_{clients}"] = times
            progress.stage("the first byte of a new version")
            waits = first_bytes(ours, link, folder, size)
            values["publish_to_first_byte_ms"] = statistics.median(waits)
            values["publish_to_first_byte_ms_worst"] = max(waits)
    return BenchResult("broadcast", ratios, values, BARS)


def compare(costs: dict[str, Cost], clients: int) -> dict[str, float]:
    """The ratios at one number of clients; of the two nginx relays the faster one counts."""
    ours, shardcast = costs["shoal"], costs["shardcast"]
    nginx = min(cost.seconds for name, cost in costs.items() if name.startswith("nginx"))
    return {
        f"vs_shardcast_{clients}": shardcast.seconds / ours.seconds,
        f"vs_nginx_{clients}": ours.seconds / nginx,
        f"cpu_vs_shardcast_{clients}": ours.cpu / shardcast.cpu,
    }


def in_turns(
    sides: Sequence[Side], folder: Path, data: Path, clients: int, rounds: int, progress: Progress
) -> dict[str, Cost]:
    """The best of each side's sends; the side that begins one round ends the next."""
    costs: dict[str, list[Cost]] = {side.name: [] for side in sides}
    for i in range(rounds):
        for side in sides if i % 2 == 0 else sides[::-1]:
            progress.detail(f"{side.name}, round {i + 1} of {rounds}")
            costs[side.name].append(send_once(side, folder, data, clients, check=i == 0))
    return {name: Cost(min(c.seconds for c in found), min(c.cpu for c in found)) for name, found in costs.items()}


def send_once(side: Side, folder: Path, data: Path, clients: int, *, check: bool) -> Cost:
    """One send of `data` through a swarm of its own, which is gone afterwards; `check` hashes what came, unclocked."""
    with _room_for(folder, side.name) as own:
        with side.swarm(own, clients) as send:
            cpu, began = cpu_below(), time.perf_counter()
            files = send(data)
            cost = Cost(time.perf_counter() - began, cpu_below() - cpu)
        if len(set(files)) != clients or any(f.stat().st_size != data.stat().st_size for f in files):
            raise BenchError(f"{side.name}: not all of {clients} clients have the whole file; nothing was measured")
        if check and len({_hash(file) for file in (data, *files)}) != 1:
            raise BenchError(f"{side.name}: a client has other bytes than were sent; nothing was measured")
        return cost


def chain_seconds(ours: Ours, link: Peer, folder: Path, size: Size, progress: Progress) -> dict[int, float]:
    """The best time from publication to the end of a chain, by its number of relays; every link has the same speed."""
    found: dict[int, list[float]] = {n: [] for n in CHAIN}
    data = random_file(folder / "data.bin", size.chain_bytes)
    for i in range(size.chain_rounds):
        for relays in CHAIN if i % 2 == 0 else CHAIN[::-1]:
            progress.detail(f"{relays} in a row, round {i + 1} of {size.chain_rounds}")
            with _room_for(folder, "chain") as own, ExitStack() as stack:
                origin = stack.enter_context(ours.origin(own))
                port = new_link(link, origin.port, size.rate)
                for n in range(relays):
                    relay = stack.enter_context(ours.relay(own / f"relay-{n}", port, origin.address))
                    port = new_link(link, relay, size.rate)
                client = stack.enter_context(ours.client(own / "client", port, origin.address))
                client.await_version(origin.publish_first())
                began = time.perf_counter()
                client.await_version(origin.publish(data))
                found[relays].append(time.perf_counter() - began)
    data.unlink()
    return {n: min(seconds) for n, seconds in found.items()}


def origin_bytes(ours: Ours, link: Peer, folder: Path, count: int, clients: int) -> float:
    """All bytes that leave the origin for one relay with so many clients, over those of the version."""
    data = random_file(folder / "data.bin", count)
    with _room_for(folder, "origin") as own, ExitStack() as stack:
        origin = stack.enter_context(ours.origin(own))
        port = new_link(link, origin.port, None)
        relay = stack.enter_context(ours.relay(own / "relay", port, origin.address))
        waiting = [stack.enter_context(ours.client(own / f"client-{i}", relay, origin.address)) for i in range(clients)]
        first = origin.publish_first()
        for client in waiting:
            client.await_version(first)
        before = _count(link, port)[0]
        version = origin.publish(data)
        for client in waiting:
            client.await_version(version)
        sent = _count(link, port)[0] - before
    data.unlink()
    return sent / count


def first_bytes(ours: Ours, link: Peer, folder: Path, size: Size) -> list[float]:
    """Milliseconds from each publication until bytes of its first piece come to a client behind one relay."""
    waits = []
    data = random_file(folder / "data.bin", size.chain_bytes)
    with _room_for(folder, "first") as own, ExitStack() as stack:
        origin = stack.enter_context(ours.origin(own))
        relay = stack.enter_context(ours.relay(own / "relay", origin.port, origin.address))
        port = new_link(link, relay, None)
        client = stack.enter_context(ours.client(own / "client", port, origin.address))
        client.await_version(origin.publish_first())
        for _ in range(size.publications):
            before = _count(link, port)[0]
            began = time.monotonic()
            client.await_version(origin.publish(data))
            at = _count(link, port, before + PREAMBLE)[1]
            if at is None:
                raise WaitError("a client has a version of which nothing came over its link; nothing was measured")
            waits.append(1e3 * (at - began))
    data.unlink()
    return waits


def _count(link: Peer, port: int, beyond: int = 0) -> tuple[int, float | None]:
    answer = link.ask({"count": port, "beyond": beyond}, awaiting="a count", deadline_s=WAIT_S)
    return int(answer["down"]), answer["at"]


@contextmanager
def scratch(size: Size, progress: Progress) -> Iterator[tuple[Path, float]]:
    """A directory, on the memory disk if there is room, and the share of the sizes that it has room for."""
    need = max(count * (1 + COPIES_A_NODE * (clients + 2)) for clients, count in size.bytes_to.items())
    places = {place: _room(place) for place in (MEMORY_DISK, Path(tempfile.gettempdir())) if place.is_dir()}
    place = next((p for p, room in places.items() if room >= need), max(places, key=lambda p: places[p]))
    scale = min(1.0, places[place] / need)
    if scale < 1.0:
        with progress.aside() as console:
            console.print(f"{place} has room for {scale:.0%} of the data; less is sent", markup=False, highlight=False)
    with tempfile.TemporaryDirectory(prefix="shoal-broadcast-", dir=place) as folder:
        yield Path(folder), scale


def _room(place: Path) -> float:
    room = shutil.disk_usage(place).free
    if place == MEMORY_DISK:
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        room = min(room, 1024 * int(facts["MemAvailable"].split()[0]))
    return SHARE_OF_ROOM * room


@contextmanager
def _room_for(folder: Path, name: str) -> Iterator[Path]:
    """A directory of its own that is gone afterwards, whatever its owner left in it."""
    own = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def random_file(path: Path, count: int) -> Path:
    with path.open("wb") as file:
        while count > 0:
            count -= file.write(os.urandom(min(count, 1 << 24)))
    return path


def _hash(path: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
