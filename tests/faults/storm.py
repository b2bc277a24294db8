"""A run in a storm: its roles are killed, its network misbehaves, its disk fills up and strangers come and go, in an
order that follows from a seed; after every event the invariants of the design are checked from the outside.

    python -m tests.faults.storm --minutes 10        # what make soak does; --seed N repeats one

The harness starts every role itself and starts again what it kills. All of them reach the coordinator through a proxy
that loses, cuts, repeats and reorders requests, and the relay through one that cuts connections.
"""

import argparse
import io
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from shoal.client.client import CoordinatorClient
from shoal.config_io import check_config
from shoal.coordinator.archive import HOME, UPLOADS
from shoal.coordinator.uploads import object_name
from shoal.crypto.keys import Key
from shoal.errors import BannedError, RolloutError
from shoal.fork_server import ForkedProcess, ForkServer
from shoal.process import EXIT_BANNED, PARENT_PIPE, free_ports, role_environment
from shoal.protocol.lease import Lease
from shoal.roles.supervisor import PRELOAD
from shoal.rundir import key_path, prepare_run
from tests.faults.checks import Checker, People, read_lineage, read_records
from tests.support.faulty_network import Cutter, Network, Proxy
from tests.support.small_disk import own_mounts

ASYNC_LEVEL = 2
HONEST = ("worker-0", "worker-1")
SERVICES = ("coordinator", "origin", "relay")
ROLES = (*SERVICES, "trainer", "validator", *HONEST)
# Ways to cheat that show in every file.
ATTACKS = ("false_reward", "int8", "constant_proof", "best_of_n", "truncated")
DISK_KIB = 64 << 10
# Deadlines are for what hangs, not for what is slow: the machine may be busy with other things.
START_S = 180.0
FINISH_S = 600.0
EVENT_S = 60.0
MISCHIEF, CUTS = 0.12, 0.15


def config_of(steps: int, seed: int) -> dict[str, object]:
    """A run whose steps are small, so that a storm sees many of them, with leases that come back soon."""
    return {
        "name": "storm",
        "seed": seed,
        "steps": steps,
        "async_level": ASYNC_LEVEL,
        "tasks": [
            {
                "source": "reasoning-gym/spell_backward",
                "options": {"min_word_len": 3, "max_word_len": 4},
                "binary": False,
            }
        ],
        "model": {"tiny": {"hidden": 64, "layers": 2, "warm_steps": 60}},
        "sampling": {"group_size": 4, "max_new_tokens": 8, "max_prompt_tokens": 64},
        "train": {
            "groups_per_step": 8,
            "lr": 1e-4,
            "warmup_steps": 5,
            "old_logprobs": "sampled",
            "checkpoint_every": 2,
            "loss": {"kl_coef": 0.0},
        },
        "workers": {"count": len(HONEST), "groups_per_submission": 4, "lease_s": 20.0},
        "keep": {"versions": 6},
        "swarm": {"heartbeat_s": 1.0},
    }


class StormError(AssertionError):
    """An invariant was broken, or something was waited for in vain."""


def environment() -> dict[str, str]:
    return role_environment(1) | {"COLUMNS": "200"}


class Role:
    """A process of the run that ends with this one."""

    def __init__(
        self, arguments: Sequence[str], log: Path, fork_server: ForkServer | None = None, prefix: Sequence[str] = ()
    ) -> None:
        """`fork_server` starts it faster; `prefix` comes before its command."""
        self._arguments = arguments
        self._prefix = prefix
        self._log = log
        self._fork_server = fork_server
        self._theirs, self._ours = os.pipe()
        log.parent.mkdir(exist_ok=True)
        self.process = self._popen()

    def _popen(self) -> subprocess.Popen[bytes] | ForkedProcess:
        with self._log.open("ab") as log:
            if self._fork_server is not None:
                return self._fork_server.start(self._arguments, {}, log.fileno(), {PARENT_PIPE: self._theirs})
            return subprocess.Popen(
                [*self._prefix, sys.executable, "-m", "shoal", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment(), PARENT_PIPE: str(self._theirs)},
                pass_fds=[self._theirs],
                start_new_session=True,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        self.process = self._popen()

    def close(self) -> None:
        self.kill()
        os.close(self._ours)
        os.close(self._theirs)


class Disk:
    """A small disk at the store, seen by the processes that are started with `prefix` alone."""

    def __init__(self, mount: Path, how: Sequence[str]) -> None:
        mount.mkdir(parents=True)
        command = f'mount -t tmpfs -o size={DISK_KIB}k tmpfs "$0" && echo ready && exec cat'
        self._holder = subprocess.Popen(
            [*how, "sh", "-c", command, str(mount)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n", "the small disk could not be mounted"
        own_user = ["-U", "--preserve-credentials"] if "-r" in how[1] else []
        self.prefix = ["nsenter", *own_user, "-m", "-t", str(self._holder.pid)]
        self.path = Path(f"/proc/{self._holder.pid}/root{mount}")

    def fill(self) -> None:
        with (self.path / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def free(self) -> None:
        (self.path / "filler").unlink()

    def close(self) -> None:
        self._holder.communicate()


class Storm:
    """One run from its start to its end. Use it as a context manager: nothing that it started outlives it."""

    def __init__(self, folder: Path, seed: int, steps: int, say: Callable[[str], None], *, hurry: bool = False) -> None:
        """In a hurry there is little calm between events, and roles start fast."""
        self.folder = folder.resolve()
        self.config = check_config(config_of(steps, seed), "storm")
        self.rng = random.Random(seed)
        self.hurry = hurry
        self.say = say
        self.steps = steps
        self.allowed = 2
        """The version that the run may come to for now: it must not be over before the storm is."""
        self.events: Counter[str] = Counter()
        self.began = time.monotonic()
        self._held = ExitStack()
        self.dishonest: set[str] = set()
        self.roles: dict[str, Role] = {}
        self.done: set[str] = set()

    def __enter__(self) -> "Storm":
        try:
            self._start()
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _start(self) -> None:
        self.fork_server = ForkServer(PRELOAD, environment(), self.folder / "fork_server.log") if self.hurry else None
        if self.fork_server is not None:
            self._held.callback(self.fork_server.close)
        self.run = prepare_run(self.config, self.folder / "run", QUIET)
        run, path = self.run.path, str(self.run.path)
        ports = dict(zip(SERVICES, free_ports([0] * len(SERVICES)), strict=True))
        self.proxy = Proxy(ports["coordinator"], self.rng.getrandbits(32), MISCHIEF)
        self.cutter = Cutter(ports["relay"], self.rng.getrandbits(32), CUTS)
        self.proxy.is_ahead = lambda: self.version() >= self.allowed
        self.back_door = Proxy(ports["coordinator"], self.rng.getrandbits(32), MISCHIEF)  # for strangers
        self.network = self._held.enter_context(Network(self.proxy, self.back_door, self.cutter))
        how = own_mounts()
        self.disk = Disk(run / HOME / UPLOADS, how) if how else None
        if self.disk is not None:
            self._held.callback(self.disk.close)
        store = self.disk.path if self.disk else run / HOME / UPLOADS
        self.checker = Checker(self.run, store, self._people())
        join = ["--join", self.proxy.url]
        origin = ["--from", f"http://127.0.0.1:{ports['origin']}"]
        relay = ["relay", path, *origin, "--port", str(ports["relay"]), "--url", self.cutter.url, *join]
        self._add("coordinator", ["coordinator", path, "--port", str(ports["coordinator"])])
        self._add("origin", ["origin", path, "--port", str(ports["origin"])])
        self._add("relay", relay)
        self._add("trainer", ["trainer", path, *join])
        self._add("validator", ["validator", path, *join])
        for name in HONEST:
            self._add(name, ["worker", path, "--name", name, *join])

    def _add(self, name: str, arguments: Sequence[str]) -> None:
        log = self.run.path / "logs" / f"{name}.log"
        if name in SERVICES:
            prefix = self.disk.prefix if self.disk and name == "coordinator" else ()
            self.roles[name] = Role(arguments, log, prefix=prefix)
        else:
            self.roles[name] = Role(arguments, log, self.fork_server)
        self._held.callback(self.roles[name].close)

    def _people(self) -> People:
        known = {name: Key.load_or_create(key_path(self.run.path, name)).address for name in ROLES}
        return People(known["trainer"], frozenset([known["validator"]]), frozenset(known[name] for name in HONEST))

    # What happens

    def kinds(self) -> dict[str, Callable[[], None]]:
        """Everything that can happen, by name."""
        kinds: dict[str, Callable[[], None]] = {
            "cheater": self.cheater,
            "deserter": self.deserter,
            **{f"kill {name}": lambda name=name: self.kill(name) for name in ROLES},  # type: ignore[misc]
            "cut": self.cut,
            "coordinator down": self.coordinator_down,
            "rubbish": self.rubbish,
        }
        if self.disk is not None:
            kinds["full disk"] = self.full_disk
        return kinds

    def kill(self, name: str) -> None:
        self.roles[name].kill()
        if name not in self.done:
            self.roles[name].start()

    def coordinator_down(self) -> None:
        self.roles["coordinator"].kill()
        self._pause(self.rng.uniform(2.0, 5.0))
        self._check("while the coordinator is down")
        self.roles["coordinator"].start()

    def cut(self) -> None:
        self.network.block(True)
        self._pause(self.rng.uniform(2.0, 5.0))
        self._check("while nobody reaches anybody")
        self.network.block(False)

    def full_disk(self) -> None:
        """Lasts until an upload has met it."""
        assert self.disk is not None
        self.disk.fill()
        before = self.proxy.answers[503]
        held, self.allowed = self.allowed, self.steps + 1  # with no upload taken the run does not get far
        try:
            deadline = time.monotonic() + EVENT_S
            while self.proxy.answers[503] == before and time.monotonic() < deadline and not self._is_over():
                self._pause(0.2)
            self._check("while the disk is full")
        finally:
            self.disk.free()
            self.allowed = held
        self.events["uploads met a full disk"] += self.proxy.answers[503] - before

    def cheater(self) -> None:
        number = self.events["cheater"]
        name = f"cheater-{number}"
        self.dishonest.add(Key.load_or_create(key_path(self.run.path, name)).address)
        attack = ATTACKS[number % len(ATTACKS)]
        self._add(
            name, ["worker", str(self.run.path), "--name", name, "--attack", attack, "--join", self.back_door.url]
        )

    def deserter(self) -> None:
        """Takes work and is never seen again."""
        with self._stranger() as link:
            self._lease(link)

    def rubbish(self) -> None:
        """Submits the work of others, in random order, until it is banned."""
        records = read_records(self.run)
        files = [row for row in records.submissions if row.accept and row.kept]
        row = self.rng.choice(files) if files else None
        path = self.checker.store / object_name(row.step, row.submission, row.sha256) if row else None
        anothers = path.read_bytes() if path else b"PAR1"
        kinds: list[Callable[[Lease], bytes]] = [
            lambda _lease: secrets.token_bytes(self.rng.randrange(1, 50_000)),
            lambda _lease: anothers,
            lambda lease: _under_lease(anothers, lease),
        ]
        self.rng.shuffle(kinds)
        with self._stranger() as link:
            try:
                for kind in kinds:
                    if (lease := self._lease(link)) is None:
                        return
                    self._hand_in(link, lease.step, lease.submission, lease.groups, kind(lease))
                    if row is not None:
                        self._hand_in_under_anothers(link, row.step, row.submission)
            except BannedError:
                self.events["stranger put out while at it"] += 1

    def _hand_in(self, link: CoordinatorClient, step: int, submission: int, signal: int, data: bytes) -> None:
        try:
            link.put_file(f"/v1/files/{step}/{submission}?signal={signal}", data)
            self.events["rubbish handed in"] += 1
        except RolloutError as error:  # too late
            self.say(f"  refused: {error}")

    def _hand_in_under_anothers(self, link: CoordinatorClient, step: int, submission: int) -> None:
        try:
            link.put_file(f"/v1/files/{step}/{submission}?signal=1", b"mine now")
        except RolloutError:
            return
        raise StormError(f"a stranger handed in a file under another's lease {step}/{submission}")

    def _stranger(self) -> CoordinatorClient:
        key = Key.create()
        self.dishonest.add(key.address)
        link = CoordinatorClient(self.back_door.url, key, wait_s=EVENT_S)
        link.join("worker", "stranger")
        return link

    def _lease(self, link: CoordinatorClient) -> Lease | None:
        """Work for a stranger; None if there was none for long."""
        deadline = time.monotonic() + EVENT_S / 2
        while time.monotonic() < deadline and not self._is_over():
            version = link.get("/v1/status")["version"]
            answer = link.send("POST", "/v1/leases", {"version": version}) if version is not None else {"lease": None}
            if answer["lease"] is not None:
                return Lease(**answer["lease"]["lease"])
            self._pause(0.2)
        return None

    # What must hold

    def _check(self, when: str) -> None:
        faults = [*self.checker.faults(), *self._role_faults(), *self.proxy.faults, *self.back_door.faults]
        if faults:
            raise StormError(f"{when}:\n" + "\n".join(f"- {fault}" for fault in faults))

    def _role_faults(self) -> list[str]:
        """A role ends only when the run does; a cheater may be banned."""
        faults = []
        for name, role in self.roles.items():
            code = role.process.poll()
            if code == 0 and name not in SERVICES:
                self.done.add(name)
            elif name in self.done:
                continue
            elif code is not None and not (name.startswith("cheater") and code == EXIT_BANNED) and code >= 0:
                log = (self.run.path / "logs" / f"{name}.log").read_text(errors="replace")
                faults.append(f"{name} ended by itself with code {code}; its log ends: {log[-1500:]}")
        return faults

    def version(self) -> int:
        """The newest version in the trainer's directory."""
        newest = self.run.channel().latest()
        return newest.number if newest else 0

    def _is_over(self) -> bool:
        return self.version() >= self.steps

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def _wait(self, what: str, holds: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if faults := self._role_faults():
                raise StormError(f"while waiting for {what}:\n" + "\n".join(faults))
            if time.monotonic() > deadline:
                statuses = "\n".join(f"{n}: {r.process.poll()}" for n, r in self.roles.items())
                raise StormError(f"waited {seconds:.0f} s for {what} in vain; roles:\n{statuses}")
            time.sleep(0.2)

    def blow(self, events: Sequence[str]) -> None:
        """Lets these events happen, one after the other, and sees the run to its end."""
        kinds = self.kinds()
        self._wait("the first version", lambda: self.version() >= 1, START_S)
        for number, name in enumerate(events):
            self.allowed = 2 + (self.steps - 4) * (number + 1) // len(events)
            self._pause(self.rng.uniform(0.1, 1.0 if self.hurry else 2.0))
            self.say(f"event {number + 1} of {len(events)}: {name}; version {self.version()} of {self.steps}")
            kinds[name]()
            self.events[name] += 1
            self._pause(self.rng.uniform(0.1, 0.5))
            self._check(f"after event {number + 1}, {name}")
        self.allowed = self.steps + 1
        self.finish()

    def finish(self) -> None:
        """Waits for the end, and checks it."""
        self._wait("the end of the run", lambda: {"trainer", "validator", *HONEST} <= self.done, FINISH_S)
        self._wait("the ledger to be told everything", lambda: not read_records(self.run).outbox, FINISH_S)
        for name in SERVICES:
            self.roles[name].process.send_signal(signal.SIGTERM)
        for name in SERVICES:
            code = self.roles[name].process.wait(EVENT_S)
            self.done.add(name)
            if code != 0:
                raise StormError(f"{name} ended with code {code} when it was told to stop")
        self._check("at the end")
        lineage = read_lineage(self.run.checkpoints)
        if sorted(lineage) != list(range(self.steps)):
            raise StormError(
                f"the run is over and its lineage has the steps {sorted(lineage)}, not 0..{self.steps - 1}"
            )

    def mischief(self) -> Counter[str]:
        """What the network did."""
        return self.proxy.counts + self.back_door.counts + self.cutter.counts

    def summary(self) -> str:
        mischief = self.mischief()
        verdicts = Counter(str(row.accept) for row in read_records(self.run).submissions)
        return (
            f"{self.steps} steps in {time.monotonic() - self.began:.0f} s, {self.checker.checks} checks; "
            f"events: {_counted(self.events)}; network: {_counted(mischief)}; "
            f"files: {verdicts['True']} accepted, {verdicts['False']} rejected"
        )


QUIET = Console(file=io.StringIO())


def _under_lease(data: bytes, lease: Lease) -> bytes:
    """Another's answers with this lease in the footer."""
    try:
        table = pq.read_table(io.BytesIO(data))
    except (pa.ArrowException, OSError):
        return data
    table = table.replace_schema_metadata({**table.schema.metadata, b"shoal.lease": lease.to_json().encode()})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()


def _counted(counts: Counter[str] | dict[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))


def one_of_each(seed: int, kinds: Sequence[str]) -> list[str]:
    """Every kind once, in random order; those whose effect takes time come in the first half."""
    rng = random.Random(seed)
    slow = [kind for kind in kinds if kind in ("cheater", "deserter", "rubbish")]
    others = [kind for kind in kinds if kind not in slow]
    rng.shuffle(others)
    half = len(kinds) // 2
    first = [*slow, *others[: half - len(slow)]]
    rng.shuffle(first)
    return first + others[half - len(slow) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="go on with new storms until so long has passed")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SHOAL_STORM_SEED", time.time_ns() % 10**6)))
    parser.add_argument("--events", type=int, default=40, help="events of one storm")
    parser.add_argument("--hurry", action="store_true", help="start roles fast, with little calm between events")
    parser.add_argument("--steps", type=int, default=50, help="training steps of one storm")
    options = parser.parse_args()
    console = Console()
    began, totals, checks, storms = time.monotonic(), Counter[str](), 0, 0

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - began:5.0f} s  {text}", highlight=False, markup=False, soft_wrap=True)

    while time.monotonic() - began < options.minutes * 60:
        seed = options.seed + storms
        say(f"storm {storms + 1}, seed {seed} (--seed {seed} --minutes 0.1 repeats it)")
        with tempfile.TemporaryDirectory(prefix="storm-") as folder:
            os.environ.setdefault("SHOAL_CACHE", str(Path(tempfile.gettempdir()) / "storm-cache"))
            with Storm(Path(folder), seed, options.steps, say, hurry=options.hurry) as storm:
                kinds = list(storm.kinds())
                more = random.Random(seed).choices(kinds, k=max(0, options.events - len(kinds)))
                events = [*one_of_each(seed, kinds), *more]
                try:
                    storm.blow(events)
                except BaseException as error:
                    kept = Path(tempfile.mkdtemp(prefix=f"storm-{seed}-"))
                    subprocess.run(["cp", "-r", str(storm.run.path), str(kept)], check=False)
                    say(f"storm with seed {seed} failed: {error}")
                    say(f"the run is kept in {kept}")
                    sys.exit(1)
                say(storm.summary())
                totals += storm.events + storm.mischief()
                checks += storm.checker.checks
        storms += 1
    say(f"{storms} storms, all well: {checks} checks of every invariant, {_counted(totals)}")


if __name__ == "__main__":
    main()
