"""Process supervisor of a local swarm: starts the roles, restarts those that die, and leaves no process behind.

A role that was killed or crashed is started again and goes on from what is on disk. A role that says why it cannot go
on (exit code EXIT_REFUSED) stops the run with its own words. The supervisor computes nothing.
"""

import json
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from shoal.client.client import CoordinatorClient
from shoal.config_io import load_config
from shoal.coordinator.honeypots import Plants
from shoal.coordinator.node_states import State
from shoal.crypto.keys import Key
from shoal.errors import MissingExtraError, ShoalError, StorageError
from shoal.files import disk_errors, make_directory, parse_json, read_regular, write_whole
from shoal.fork_server import ForkServer, can_fork
from shoal.ledger.reader import read_record
from shoal.process import EXIT_BANNED, EXIT_REFUSED, Child, free_ports, role_environment, stop_all
from shoal.roles.page_server import PageServer
from shoal.roles.placement import Placement, environment_of, in_words, place, visible_devices
from shoal.roles.rank_group import RankGroup
from shoal.roles.side_process import SideProcess
from shoal.roles.sink_feeders import SinkFeeders
from shoal.rundir import (
    RUN_FILE,
    RunDir,
    claimed,
    default_path,
    locate_run,
    prepare_run,
    role_key,
    run_removed,
    validator_names,
)
from shoal.telemetry.metrics import MetricsWriter
from shoal.telemetry.status import note_stopped
from shoal.watch.contributions import CONTRIBUTIONS
from shoal.watch.plot import plot_run
from shoal.watch.summary import print_summary, summarise
from shoal.watch.view import LiveView

LOOK_S = 0.25
# A role that is killed this often within the window is not worth restarting, and neither is one that crashes by itself
# a few times: a restart does not heal a fault of its own.
MAX_RESTARTS = 10
RESTART_WINDOW_S = 60.0
MAX_CRASHES = 3
CRASH_WINDOW_S = 600.0
LOG_LINES = 12
SERVICES = ("coordinator", "origin", "relay")
# What all roles that compute import; services import a tenth of it, and are started by themselves.
PRELOAD = ("shoal.roles.trainer", "shoal.roles.worker", "shoal.roles.validator_process", "shoal.roles.evaluator")
PORTS = "ports.json"
ASK_S = 5.0
AT_WORK = (State.JOINED, State.HEALTHY)
SUMS = ("accepted", "rejected", "samples", "tokens", "earned", "slashed")


class Interrupted(ShoalError):
    """Ctrl-C or SIGTERM: stop cleanly; the run can be continued."""


def run_config(target: Path, settings: list[str], out: Path | None, console: Console) -> None:
    """What `shoal run` does. The run is this process's alone, from before anything of it is written to the end."""
    if target.is_dir():
        run = locate_run(target, settings, out, console)
        config, path = run.config, run.path
    else:
        config = load_config(target, settings)
        path = out or default_path(config)
    with claimed(path, f"run {path}: another shoal run is at work there; stop it, or give --out"):
        run_swarm(prepare_run(config, path, console), console)


def run_swarm(run: RunDir, console: Console) -> None:
    """Runs all roles to the end of the run, or until interrupted."""
    with run.metrics("supervisor") as metrics, _interruptible(), forking(run) as fork_server:
        metrics.write("start", total_steps=run.config.steps, workers=run.config.workers.count)
        children: list[Child] = []
        page = PageServer(run) if run.config.swarm.pages != "off" else None
        sinks = SinkFeeders(run)
        try:
            ports = ports_of(run)
            join = join_line(run, ports)
            console.print(f"join with: shoal worker --join {join}", soft_wrap=True, highlight=False)
            if page is not None:
                console.print(f"watch at {page.url}", soft_wrap=True, highlight=False)
            with LiveView(run.path, run.config.steps, console) as view:
                if page is not None:
                    page.start()
                for said in sinks.start():
                    view.note(said)
                # A machine whose roles are forked has no GPU, and its supervisor need not import PyTorch.
                placement = {} if fork_server is not None else place(run.config, visible_devices())
                if placement:
                    view.note(f"CUDA devices: {in_words(placement)}")
                children += start_roles(run, ports, fork_server=fork_server, page=page, placement=placement)
                _watch(run, join, children, view, metrics, [*([page] if page else []), *sinks.processes])
                _note_contributions(run, join, metrics)
        finally:
            if page is not None:
                page.close()
            stop_roles(run.path, children)
            with suppress(StorageError):  # a full disk must not hide why the run ends
                metrics.write("end")
            for said in sinks.finish():
                console.print(said, soft_wrap=True, highlight=False)
    curves = str(run.path / "curves.png")
    try:
        plot_run(run.path, run.path / "curves.png")
    except MissingExtraError as error:
        curves = f"not drawn ({error})"
    print_summary(summarise(run.path), console)
    console.print(
        f"curves: {curves}   model: {run.path / 'model'}   rollouts: shoal rollouts {run.path}   pages: shoal page "
        f"{run.path}",
        soft_wrap=True,
    )


def join_line(run: RunDir, ports: dict[str, int]) -> str:
    """Where the run's coordinator is, and who."""
    swarm = run.config.swarm
    address = role_key(run.path, "coordinator").address
    return f"{swarm.scheme}://{swarm.public_host}:{ports['coordinator']}#{address}"


@contextmanager
def forking(run: RunDir) -> Iterator[ForkServer | None]:
    """A fork server for the run's roles, where roles can be forked."""
    if not can_fork():
        yield None
        return
    make_directory(run.path / "logs")
    with disk_errors(run.path / "logs"):
        server = ForkServer(PRELOAD, role_environment(1), run.path / "logs" / "fork_server.log")
    try:
        yield server
    finally:
        server.close()


def start_roles(
    run: RunDir,
    ports: dict[str, int],
    without: Collection[str] = (),
    fork_server: ForkServer | None = None,
    page: PageServer | None = None,
    placement: Placement | None = None,
) -> list[Child]:
    """One process per role, services first, but for the roles named in `without`.

    They meet over the network, as they would on machines of their own.
    """
    config, path = run.config, str(run.path)
    port = {name: ["--port", str(number)] for name, number in ports.items()}
    host, public, scheme = config.swarm.host, config.swarm.public_host, config.swarm.scheme
    join = ["--join", join_line(run, ports)]
    front = ["--page", page.url] if page is not None and page.reaches_others else []
    source = ["--from", f"http://127.0.0.1:{ports['origin']}"]
    tls = "--tls" if scheme == "https" else "--no-tls"
    listen = ["--host", host, "--url", f"{scheme}://{public}:{ports['relay']}", tls]

    def worker(name: str, *options: str) -> tuple[str, list[str], int]:
        return name, ["worker", path, "--name", name, *join, *options], config.workers.threads

    workers = [(config.workers.batch_of(i), config.workers.engine_of(i)) for i in range(config.workers.count)]
    roles = [
        ("coordinator", ["coordinator", path, *port["coordinator"], *front], 1),
        ("origin", ["origin", path, *port["origin"]], 1),
        ("relay", ["relay", path, *source, *port["relay"], *listen, *join], 1),
        ("trainer", ["trainer", path, *join], config.train.threads),
        *[(name, ["validator", path, "--name", name, *join], config.audit.threads) for name in validator_names(config)],
        *[
            worker(f"worker-{i}", "--batch", str(batch), "--engine", engine)
            for i, (batch, engine) in enumerate(workers)
        ],
        *[worker(f"cheater-{i}", "--attack", cheater.attack) for i, cheater in enumerate(config.cheaters)],
        *([("planter", ["planter", path, *join], config.workers.threads)] if config.ledger.plants else []),
        ("evaluator", ["eval", path, "--follow"], config.eval.threads),
    ]
    children: list[Child] = []
    try:
        for name, arguments, threads in roles:
            if name in without:
                continue
            log, service = run.path / "logs" / f"{name}.log", name in SERVICES
            server = None if service else fork_server
            own = environment_of(placement or {}, name)
            if name == "trainer" and config.train.ranks > 1:
                ranks = config.train.ranks
                children.append(RankGroup(name, arguments, threads, log, ranks, environment=own, fork_server=server))
                continue
            children.append(
                Child(name, arguments, threads, log, is_service=service, environment=own, fork_server=server)
            )
    except BaseException:
        stop_all(children)
        raise
    return children


def stop_roles(path: Path, children: Sequence[Child], grace_s: float = 10.0) -> None:
    """Ends a run's roles. Those that did so when they were asked are stopped; what killed the others is not hidden."""
    asked = [child for child in children if child.poll() is None]
    stop_all(children, grace_s)
    for child in asked:
        if child.poll() in (0, -signal.SIGTERM):
            note_stopped(path, child.name)


def ports_of(run: RunDir) -> dict[str, int]:
    """A port for each service: those of the last time if they are free, so that nodes that joined find it again."""
    file = run.path / PORTS
    try:
        last = {name: int(port) for name, port in parse_json(read_regular(file)).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        last = {}
    wanted = [last.get(name, 0) for name in SERVICES]
    ports = dict(zip(SERVICES, free_ports(wanted), strict=True))
    if run.config.swarm.port:
        ports["coordinator"] = run.config.swarm.port
    write_whole(file, json.dumps(ports).encode())
    return ports


def _note_contributions(run: RunDir, join: str, metrics: MetricsWriter) -> None:
    """Writes down who contributed, earned and lost what, for the summary."""
    try:
        with CoordinatorClient(join, Key.create(), wait_s=ASK_S) as link:
            nodes = link.get("/v1/status")["nodes"]
        accounts = read_record(run.path).state.accounts
        for node in nodes:
            if account := accounts.get(node["address"]):
                node |= {"earned": account.earned_ever - account.voided, "slashed": account.slashed}
        if run.config.ledger.plants:
            nodes = _as_one(nodes, Plants(role_key(run.path, "planter"), run.config.name).addresses)
    except ShoalError as error:
        metrics.write("note", text=f"who contributed what is not known: {error}")
        return
    metrics.write(CONTRIBUTIONS, nodes=nodes)


def _as_one(nodes: list[dict[str, Any]], addresses: Collection[str]) -> list[dict[str, Any]]:
    """All addresses of the planter as one node, to which its owner knows them to belong."""
    own = [node for node in nodes if node["address"] in addresses]
    sums = {key: sum(node.get(key, 0) for node in own) for key in SUMS}
    planter = {"name": "planter", "address": f"({len(own)} keys)", "role": "worker", "state": "", **sums}
    return [node for node in nodes if node not in own] + ([planter] if own else [])


def _others_work(run: RunDir, join: str, workers: Sequence[Child]) -> bool:
    """Whether workers of other people are there, for whom the run goes on without its own."""
    own = {role_key(run.path, worker.name).address for worker in workers}
    with suppress(ShoalError), CoordinatorClient(join, Key.create(), wait_s=ASK_S) as link:
        nodes = link.get("/v1/status")["nodes"]
        return any(n["role"] == "worker" and n["state"] in AT_WORK and n["address"] not in own for n in nodes)
    return False


def _watch(
    run: RunDir,
    join: str,
    children: Sequence[Child],
    view: LiveView,
    metrics: MetricsWriter,
    beside: Sequence[SideProcess] = (),
) -> None:
    """Returns when every role has ended well, or when training has and the others were given `wait_s` after it."""
    finish_s = run.config.patience_s
    deaths: dict[str, list[tuple[float, int]]] = {child.name: [] for child in children}
    finish_by: float | None = None
    banned: list[Child] = []
    trainer = next(child for child in children if child.name == "trainer")
    while any(child.poll() != 0 for child in children if child not in banned and not child.is_service):
        time.sleep(LOOK_S)
        view.update()
        for process in beside:
            if said := process.look():
                view.note(said)
        for child in children:
            code = child.poll()
            if code is None or (code == 0 and not child.is_service) or child in banned:
                continue
            if code == EXIT_BANNED:
                banned.append(child)
                view.note(f"{child.name}: {child.last_words().strip() or 'gets no more leases'}")
                workers = [other for other in children if "worker" in other.arguments]
                if all(other in banned for other in workers) and not _others_work(run, join, workers):
                    raise ShoalError(f"every worker was banned, the last one: {_last_words(child)}")
                continue
            if code == EXIT_REFUSED:
                raise ShoalError(_last_words(child))
            if not (run.path / RUN_FILE).exists():
                raise run_removed(run.path)
            deaths[child.name].append((time.monotonic(), code))
            if reason := _hopeless(deaths[child.name], time.monotonic()):
                raise ShoalError(f"{child.name} {reason}; its log ends:\n{_tail(child.log)}")
            how = f"was killed by signal {-code}" if code < 0 else f"crashed with code {code} (see {child.log})"
            view.note(f"{child.last_words().strip() or f'{child.name} {how}'}; starting it again")
            metrics.write("restart", role=child.name, code=code)
            child.restart()
        if trainer.poll() == 0:
            finish_by = finish_by or time.monotonic() + finish_s
            if time.monotonic() > finish_by:
                late = ", ".join(c.name for c in children if c.poll() != 0 and c not in banned and not c.is_service)
                view.note(f"training is done; {late} did not end within {finish_s:.0f} s and is stopped")
                return


def _hopeless(deaths: Sequence[tuple[float, int]], now: float) -> str | None:
    """Why a role that died at these times with these codes should not be started again, if so."""
    crashes = sum(code > 0 for at, code in deaths if now - at < CRASH_WINDOW_S)
    if crashes >= MAX_CRASHES:
        return f"crashed {crashes} times within {CRASH_WINDOW_S:.0f} s"
    recent = sum(now - at < RESTART_WINDOW_S for at, _ in deaths)
    return f"died {recent} times within {RESTART_WINDOW_S:.0f} s" if recent > MAX_RESTARTS else None


def _last_words(child: Child) -> str:
    return child.last_words() or f"{child.name} gave up; its log ends:\n{_tail(child.log)}"


def _tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
    except OSError as error:
        return f"{log}: {error.strerror}"


@contextmanager
def _interruptible() -> Iterator[None]:
    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(f"stopped by {signal.Signals(number).name}; the same command continues from the last step")

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
