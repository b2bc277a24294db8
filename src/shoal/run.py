"""The local swarm: starts the roles of a run, watches over them, and leaves nothing behind.

A role that was killed or crashed is started again and goes on from what is on disk. A role that says why it cannot go
on (exit code EXIT_REFUSED) stops the run with its own words. The supervisor computes nothing.
"""

import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from rich.console import Console

from shoal.config import load_config
from shoal.errors import ShoalError, StorageError
from shoal.process import EXIT_BANNED, EXIT_REFUSED, Child, stop_all
from shoal.rundir import RUN_FILE, RunDir, claimed, default_path, locate_run, prepare_run, run_removed
from shoal.watch.metrics import MetricsWriter
from shoal.watch.plot import plot_run
from shoal.watch.summary import print_summary, summarise
from shoal.watch.view import LiveView

LOOK_S = 0.25
# A role that is killed this often within the window is not worth restarting, and neither is one that crashes by itself
# a few times: a restart does not heal a fault of its own.
MOST_RESTARTS = 10
RESTART_WINDOW_S = 60.0
MOST_CRASHES = 3
CRASH_WINDOW_S = 600.0
LOG_LINES = 12
SERVICES = ("origin", "relay")


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
    with run.metrics("supervisor") as metrics, _interruptible():
        metrics.write("start", total_steps=run.config.steps, workers=run.config.workers.count)
        children: list[Child] = []
        try:
            with LiveView(run.path, run.config.steps, console) as view:
                children += start_roles(run)
                _watch(run, children, view, metrics)
        finally:
            stop_all(children)
            with suppress(StorageError):  # a full disk must not hide why the run ends
                metrics.write("end")
    plot_run(run.path, run.path / "curves.png")
    print_summary(summarise(run.path), console)
    console.print(
        f"curves: {run.path / 'curves.png'}   model: {run.path / 'model'}   rollouts: shoal rollouts {run.path}",
        soft_wrap=True,
    )


def start_roles(run: RunDir) -> list[Child]:
    """A process for each role."""
    config, path = run.config, str(run.path)
    origin, relay = free_ports(2)
    through = ["--relay", f"http://127.0.0.1:{relay}"]
    names = [f"worker-{i}" for i in range(config.workers.count)]
    workers = [(name, ["worker", path, "--name", name, *through], config.workers.threads) for name in names]
    cheaters = [
        (name, ["worker", path, "--name", name, "--attack", cheater.attack, *through], config.workers.threads)
        for name, cheater in ((f"cheater-{i}", cheater) for i, cheater in enumerate(config.cheaters))
    ]
    roles = [
        ("trainer", ["trainer", path], config.train.threads),
        ("origin", ["origin", path, "--port", str(origin)], 1),
        ("relay", ["relay", path, "--from", f"http://127.0.0.1:{origin}", "--port", str(relay)], 1),
        ("validator", ["validator", path, *through], config.audit.threads),
        *workers,
        *cheaters,
        ("evaluator", ["eval", path, "--follow"], config.eval.threads),
    ]
    children: list[Child] = []
    try:
        for name, arguments, threads in roles:
            log, service = run.path / "logs" / f"{name}.log", name in SERVICES
            children.append(Child(name, arguments, threads, log, is_service=service))
    except BaseException:
        stop_all(children)
        raise
    return children


def free_ports(count: int) -> list[int]:
    """Ports on the loopback that nobody has, all different. A role that is started again takes its own again."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]


def _watch(run: RunDir, children: Sequence[Child], view: LiveView, metrics: MetricsWriter) -> None:
    """Returns when every role has ended well, or when training has and the others were given `wait_s` after it."""
    finish_s = run.config.wait_s
    deaths: dict[str, list[tuple[float, int]]] = {child.name: [] for child in children}
    finish_by: float | None = None
    banned: list[Child] = []
    while any(child.poll() != 0 for child in children if child not in banned and not child.is_service):
        time.sleep(LOOK_S)
        view.update()
        for child in children:
            code = child.poll()
            if code is None or (code == 0 and not child.is_service) or child in banned:
                continue
            if code == EXIT_BANNED:
                banned.append(child)
                view.note(child.last_words().strip() or f"{child.name} gets no more leases")
                if all(other in banned for other in children if "worker" in other.arguments):
                    raise ShoalError(f"every worker was put out, the last one: {_last_words(child)}")
                continue
            if code == EXIT_REFUSED:
                raise ShoalError(_last_words(child))
            if not (run.path / RUN_FILE).exists():
                raise run_removed(run.path)
            deaths[child.name].append((time.monotonic(), code))
            if reason := _hopeless(deaths[child.name], time.monotonic()):
                raise ShoalError(f"{child.name} {reason}; its log ends:\n{_tail(child.log)}")
            how = f"was killed by signal {-code}" if code < 0 else f"crashed with code {code} (see {child.log})"
            view.note(f"{child.name} {how}; starting it again")
            metrics.write("restart", role=child.name, code=code)
            child.restart()
        if children[0].poll() == 0:
            finish_by = finish_by or time.monotonic() + finish_s
            if time.monotonic() > finish_by:
                late = ", ".join(c.name for c in children if c.poll() != 0 and c not in banned and not c.is_service)
                view.note(f"training is done; {late} did not end within {finish_s:.0f} s and is stopped")
                return


def _hopeless(deaths: Sequence[tuple[float, int]], now: float) -> str | None:
    """Why a role that died at these times with these codes should not be started again, if so."""
    crashes = sum(code > 0 for at, code in deaths if now - at < CRASH_WINDOW_S)
    if crashes >= MOST_CRASHES:
        return f"crashed {crashes} times within {CRASH_WINDOW_S:.0f} s"
    recent = sum(now - at < RESTART_WINDOW_S for at, _ in deaths)
    return f"died {recent} times within {RESTART_WINDOW_S:.0f} s" if recent > MOST_RESTARTS else None


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
        raise Interrupted(f"stopped by {signal.Signals(number).name}; the same command goes on from the last step")

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
