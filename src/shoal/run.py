"""The local swarm: starts the roles of a run, watches over them, and leaves nothing behind.

A role that was killed or crashed is started again and goes on from what is on disk. A role that says why it cannot go
on (exit code EXIT_REFUSED) stops the run with its own words. The supervisor imports no torch and computes nothing.
"""

import fcntl
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from shoal.errors import ConfigError, ShoalError, WaitError
from shoal.process import EXIT_REFUSED, Child, stop_all
from shoal.rundir import RunDir
from shoal.watch.metrics import MetricsWriter
from shoal.watch.plot import plot_run
from shoal.watch.summary import print_summary, summarise
from shoal.watch.view import LiveView

LOOK_S = 0.25
# A role that dies this often within the window has a fault of its own that a restart does not heal.
MOST_RESTARTS = 10
RESTART_WINDOW_S = 60.0
# After the last step the others finish what they are at.
FINISH_S = 300.0
LOG_LINES = 12


class Interrupted(ShoalError):
    """Ctrl-C or SIGTERM: stop cleanly; the run can be continued."""


def run_swarm(run: RunDir, console: Console) -> None:
    """Runs trainer, workers and evaluator to the end of the run, or until interrupted."""
    with _only_supervisor(run.path), run.metrics("supervisor") as metrics, _interruptible():
        metrics.write("start", total_steps=run.config.steps, workers=run.config.workers.count)
        children: list[Child] = []
        try:
            with LiveView(run.path, run.config.steps, console) as view:
                children += start_roles(run)
                _watch(children, view, metrics)
        finally:
            stop_all(children)
            metrics.write("end")
    plot_run(run.path, run.path / "curves.png")
    print_summary(summarise(run.path), console)
    console.print(
        f"curves: {run.path / 'curves.png'}   model: {run.path / 'model'}   rollouts: shoal rollouts {run.path}"
    )


def start_roles(run: RunDir) -> list[Child]:
    """A process for each role."""
    config, path = run.config, str(run.path)
    workers = [
        (f"worker-{i}", ["worker", path, "--name", f"worker-{i}"], config.workers.threads)
        for i in range(config.workers.count)
    ]
    roles = [
        ("trainer", ["trainer", path], config.train.threads),
        *workers,
        ("evaluator", ["eval", path, "--follow"], config.eval.threads),
    ]
    children: list[Child] = []
    try:
        for name, arguments, threads in roles:
            children.append(Child(name, arguments, threads, run.path / "logs" / f"{name}.log"))
    except BaseException:
        stop_all(children)
        raise
    return children


def _watch(children: Sequence[Child], view: LiveView, metrics: MetricsWriter) -> None:
    """Returns when every role has ended well."""
    deaths: dict[str, deque[float]] = {child.name: deque(maxlen=MOST_RESTARTS) for child in children}
    finish_by: float | None = None
    while any(child.poll() != 0 for child in children):
        time.sleep(LOOK_S)
        view.update()
        for child in children:
            code = child.poll()
            if code is None or code == 0:
                continue
            if code == EXIT_REFUSED:
                raise ShoalError(_last_words(child))
            recent = deaths[child.name]
            if len(recent) == MOST_RESTARTS and time.monotonic() - recent[0] < RESTART_WINDOW_S:
                raise ShoalError(
                    f"{child.name} died {MOST_RESTARTS + 1} times within {RESTART_WINDOW_S:.0f} s; its log ends:\n"
                    f"{_tail(child.log)}"
                )
            recent.append(time.monotonic())
            how = f"was killed by signal {-code}" if code < 0 else f"crashed with code {code} (see {child.log})"
            view.note(f"{child.name} {how}; starting it again")
            metrics.write("restart", role=child.name, code=code)
            child.restart()
        if children[0].poll() == 0:
            finish_by = finish_by or time.monotonic() + FINISH_S
            if time.monotonic() > finish_by:
                late = [child.name for child in children if child.poll() != 0]
                raise WaitError(f"training is done, but {', '.join(late)} did not end within {FINISH_S:.0f} s")


def _last_words(child: Child) -> str:
    lines = _tail(child.log).splitlines()
    said = [line for line in lines if line.startswith("error: ")]
    return said[-1].removeprefix("error: ") if said else f"{child.name} gave up; its log ends:\n" + "\n".join(lines)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])


@contextmanager
def _only_supervisor(path: Path) -> Iterator[None]:
    """One supervisor a run: two would train the same steps twice."""
    with (path / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"run {path}: another shoal run is at work there; stop it, or give --out") from None
        yield


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
