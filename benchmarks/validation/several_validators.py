"""`python -m benchmarks validators`: files judged per second by two validators of a run, against one.

Real workers hand in files for one step, and no validator is there. The run's directory is then copied, and its
coordinator started again with one validator beside it, and with two; each is a process with one thread, judges every
file whole, and takes the files that the coordinator deals it. What is timed begins when all validators have given their
first verdict, so that loading models counts for neither side, and ends with the last verdict.

Two validators need two cores that nothing else uses. Where there is other work, `ratios.on_own_cores` says what wall
time does not: CPU time of the one validator over that of the busier of the two, by their own measurement per file.
"""

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.configs import base_model, changed, checkout_config, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Op
from shoal.client.client import CoordinatorClient
from shoal.config import RunConfig
from shoal.crypto.keys import Key
from shoal.errors import BenchError
from shoal.process import Child, stop_all
from shoal.roles.supervisor import forking, join_line, ports_of, start_roles
from shoal.rundir import RunDir, prepare_run, role_key, validator_names
from shoal.telemetry.metrics import read_metrics

VALIDATORS = 2
LOOK_S = 0.5
ASK_S = 60.0
DEADLINE_S = 1800.0


@dataclass(frozen=True, slots=True)
class Given:
    """One verdict: when it was given, and the CPU seconds that its file took."""

    place: tuple[int, int]
    time: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Judged:
    """What the validators of one side did, each of them in the order of its verdicts."""

    verdicts: Sequence[Sequence[Given]]

    @property
    def files_per_s(self) -> float:
        """From the moment at which each had given its first verdict to the last one of all."""
        begin = max(given[0].time for given in self.verdicts)
        later = [one.time for given in self.verdicts for one in given if one.time > begin]
        if not later:
            raise BenchError("validators: all files were judged before the last validator began; give more files")
        return len(later) / (max(later) - begin)

    @property
    def cpu_s(self) -> list[float]:
        return [sum(one.cpu_s for one in given) for given in self.verdicts]

    def twice(self) -> int:
        """Verdicts beyond the first on each file."""
        return sum(Counter(one.place for given in self.verdicts for one in given).values()) - self.files

    @property
    def files(self) -> int:
        return len({one.place for given in self.verdicts for one in given})


def bench_validators(quick: bool, progress: Progress) -> BenchResult:
    """The result of `python -m benchmarks validators`."""
    ratios, values = measure_validators(quick, progress)
    bars: dict[str, tuple[Op, float]] = {"validators_2_vs_1": (">=", 1.7), "judged_twice": ("<=", 0.0)}
    return BenchResult("validators", ratios, values, {} if quick else bars)


def measure_validators(quick: bool, progress: Progress) -> tuple[dict[str, float], dict[str, float | int | str]]:
    """Ratios and values of two validators against one; `quick` takes the tiny model and few files."""
    files = 12 if quick else 48
    config = _config(quick, files)
    base_model(config, progress)
    with tempfile.TemporaryDirectory(prefix="shoal-validators-") as scratch:
        progress.stage(f"making {files} files of {config.model.source}")
        with progress.aside() as console:
            run = prepare_run(config, Path(scratch) / "made", console)
        _hand_in(run, files)
        sides = {}
        for count in (1, VALIDATORS):
            progress.stage(f"judging them with {count} validator{'s' if count > 1 else ''}")
            target = Path(scratch) / f"by-{count}"
            shutil.copytree(run.path, target)
            sides[count] = _judge(RunDir(target, run.config), count)
    one, two = sides[1], sides[VALIDATORS]
    if one.files != two.files:
        raise BenchError(f"validators: one judged {one.files} files, two judged {two.files}")
    ratios = {
        "validators_2_vs_1": two.files_per_s / one.files_per_s,
        "on_own_cores": sum(one.cpu_s) / max(two.cpu_s),
    }
    return ratios, {
        "model": config.model.source,
        "files": two.files,
        "judged_twice": one.twice() + two.twice(),
        "files_per_s_1": one.files_per_s,
        "files_per_s_2": two.files_per_s,
        "files_of_the_busier": max(len(given) for given in two.verdicts),
        "cpu_s_per_file": sum(one.cpu_s) / one.files,
    }


def _config(quick: bool, files: int) -> RunConfig:
    """A run of one step with room for so many files, each of which is computed again whole."""
    config = laptop_config() if quick else checkout_config("smollm2.toml")
    groups = 4 if quick else 1
    return changed(
        config,
        {
            "steps": 2,
            "async_level": 0,
            "audit.count": VALIDATORS,
            "audit.rate": 1.0,
            "train.groups_per_step": groups * files,
            "train.online_filter": False,
            "workers.groups_per_submission": groups,
            "workers.count": 2,
            "swarm.probation_files": files,
        },
    )


@contextmanager
def _at_work(run: RunDir, without: Sequence[str]) -> Iterator[CoordinatorClient]:
    """The run's roles but for some, and a line to the coordinator."""
    with forking(run) as server:
        children: list[Child] = []
        try:
            ports = ports_of(run)
            children += start_roles(run, ports, without=("trainer", "evaluator", *without), fork_server=server)
            with CoordinatorClient(join_line(run, ports), Key.create(), wait_s=ASK_S) as link:
                yield link
        finally:
            stop_all(children)


def _hand_in(run: RunDir, files: int) -> None:
    """Has the run's workers hand in so many files, which wait for a verdict from then on."""
    with _at_work(run, validator_names(run.config)) as link:
        version = run.channel().version(0)
        if version is None:
            raise BenchError(f"{run.path}: has no version 0")
        with CoordinatorClient(link.join_at, role_key(run.path, "trainer"), wait_s=ASK_S) as trainer:
            trainer.join("trainer")
            trainer.announce(0, version.root, None)
        _wait(link, lambda waiting: waiting >= files, f"{files} files")


def _judge(run: RunDir, count: int) -> Judged:
    """What so many validators make of the files that wait."""
    workers = [f"worker-{number}" for number in range(run.config.workers.count)]
    names = validator_names(run.config)
    with _at_work(run, [*workers, *names[count:]]) as link:
        _wait(link, lambda waiting: waiting == 0, "a verdict on every file")
        time.sleep(LOOK_S)  # a verdict is given before it is in the metrics
    return Judged([_given(run.path / "metrics" / f"{name}.jsonl") for name in names[:count]])


def _given(path: Path) -> list[Given]:
    entries = [entry for entry in read_metrics(path) if entry["event"] == "verdict"]
    if not entries:
        raise BenchError(f"{path}: this validator gave no verdict")
    for entry in entries:
        if not entry["accept"]:
            raise BenchError(f"validators: an honest file was rejected: {entry['reason']}")
    return [Given((e["step"], e["submission"]), float(e["time"]), float(e["cpu_s"])) for e in entries]


def _wait(link: CoordinatorClient, done: Callable[[int], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done(int(link.get("/v1/status")["waiting"])):
        if time.monotonic() > deadline:
            raise BenchError(f"validators: waited {DEADLINE_S:.0f} s for {what}")
        time.sleep(LOOK_S)
