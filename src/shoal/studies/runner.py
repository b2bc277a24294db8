"""Runs a study: says first what it will cost, does what is not done yet, and writes what all runs show.

The budget is measured, not guessed: two short runs of different lengths say what a start and a step take. From the
first finished run on, finished runs say it.
"""

import json
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from shoal.errors import ConfigError
from shoal.extras import require
from shoal.files import locked, make_directory, write_whole
from shoal.studies.claims import overall
from shoal.studies.store import StudyStore
from shoal.studies.study import Found, Job, Outcome, Setting, Size, Study

PROBE_STEPS = (1, 4)
PROBE_SEED = 0
PROBE_WAIT_S = 3600.0
SAY_S = 15.0


def run_study(study: Study, out: Path, console: Console, *, quick: bool, seeds: int | None = None) -> Path:
    """Does what is left of a study and gives the file with its result."""
    require("plot", f"the figure of study {study.name}")
    size = study.quick if quick else study.full
    if seeds is not None:
        size = replace(size, seeds=seeds)
    store = StudyStore.open(out, study, size)
    _say_budget(study, store, size, console)
    wanted = store.wanted()
    for number, (setting, seed) in enumerate(wanted, 1):
        with store.claim(setting, seed) as mine:
            if mine:
                say = _Progress(console, f"run {number} of {len(wanted)}, {setting.name}, seed {seed}")
                outcome = _run(study, store, setting, seed, size, say)
                store.keep(setting, seed, outcome)
                say.done(outcome["seconds"])
    return _conclude(study, store, size, console, quick=quick)


def _run(
    study: Study, store: StudyStore, setting: Setting, seed: int, size: Size, said: Callable[[str], None]
) -> Outcome:
    """One run in an empty directory of its own, which a run that fails leaves behind to be looked at."""
    scratch = store.path / "scratch" / f"{setting.name}.{seed}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    make_directory(store.path / "shared")
    began = time.monotonic()
    outcome = study.run(Job(setting, seed, size, scratch, store.path / "shared", said))
    shutil.rmtree(scratch, ignore_errors=True)
    return {"setting": setting.name, "seed": seed, "seconds": time.monotonic() - began, **outcome}


@dataclass(frozen=True, slots=True)
class Budget:
    """What is left to do, and for how long."""

    runs: int
    done: int
    run_s: float

    @property
    def left_s(self) -> float:
        return (self.runs - self.done) * self.run_s


def budget(store: StudyStore, size: Size) -> Budget | None:
    """From the finished runs, or else from the probe; None before both."""
    done = [found["seconds"] for setting, seed in store.wanted() if (found := store.outcome(setting, seed))]
    probe = store.probe()
    if done:
        run_s = statistics.fmean(done)
    elif probe is not None:
        run_s = probe["start_s"] + probe["step_s"] * size.steps
    else:
        return None
    return Budget(len(store.wanted()), len(done), run_s)


def _say_budget(study: Study, store: StudyStore, size: Size, console: Console) -> None:
    count = f"{len(store.settings)} settings x {len(store.seeds)} seeds, {size.steps} steps each"
    console.print(f"study {study.name}: {count}; loop: {study.loop}", soft_wrap=True, highlight=False)
    if budget(store, size) is None:
        console.print(f"measuring what a run takes, with runs of {PROBE_STEPS[0]} and {PROBE_STEPS[1]} steps")
        with locked(store.path / "locks" / "probe", f"study {study.name}: another process measures it", PROBE_WAIT_S):
            if store.probe() is None:
                store.keep_probe(measure(study, store, size))
    costs = budget(store, size)
    assert costs is not None
    console.print(
        f"budget: {costs.runs - costs.done} of {costs.runs} runs left, about {_clock(costs.run_s)} each: "
        f"{_clock(costs.left_s)}. Stop it whenever you like, even with SIGKILL: the same command goes on. "
        "Started twice at once, it shares the runs.",
        soft_wrap=True,
        highlight=False,
    )


def measure(study: Study, store: StudyStore, size: Size) -> dict[str, float]:
    """Seconds of a start and of a step, from two short runs of the first setting, after one that makes what is cached,
    such as the base model."""
    took = []
    for steps in (PROBE_STEPS[0], *PROBE_STEPS):
        short = replace(size, steps=steps, every=steps)
        took.append(_run(study, store, store.settings[0], PROBE_SEED, short, lambda _: None)["seconds"])
    took = took[1:]
    step_s = max(0.0, (took[1] - took[0]) / (PROBE_STEPS[1] - PROBE_STEPS[0]))
    return {"start_s": max(0.0, took[1] - PROBE_STEPS[1] * step_s), "step_s": step_s}


def _conclude(study: Study, store: StudyStore, size: Size, console: Console, *, quick: bool) -> Path:
    """Writes result.json and figure.png from the seeds that every setting has."""
    found = store.found()
    seeds = min(map(len, found.values()))
    if not seeds:
        raise ConfigError(
            f"study {study.name}: {store.path} has no seed that all settings have; another process does the rest, or "
            "the same command goes on"
        )
    conclusion = study.conclude(found)
    result = {
        "study": study.name,
        "quick": quick,
        "seeds": seeds,
        "first_seed": size.first_seed,
        "steps": size.steps,
        "command": _command(study, size, quick=quick),
        "paper": study.paper,
        "loop": study.loop,
        "seconds": sum(one["seconds"] for runs in found.values() for one in runs),
        "verdict": overall(conclusion.claims),
        "claims": [claim.to_json() for claim in conclusion.claims],
        "figures": dict(conclusion.figures),
    }
    file = store.path / "result.json"
    write_whole(file, json.dumps(result, indent=1, allow_nan=False).encode())
    note = " (a smoke test: its figures mean nothing)" if quick else ""
    console.print(f"study {study.name}: {result['verdict']}{note}", highlight=False)
    for claim in conclusion.claims:
        console.print(f"  {claim.sentence}", soft_wrap=True, highlight=False, markup=False)
    _draw(study, found, store.path / "figure.png")
    console.print(f"result: {file}", soft_wrap=True, highlight=False)
    return file


def _command(study: Study, size: Size, *, quick: bool) -> str:
    usual = study.quick if quick else study.full
    return f"shoal study {study.name}{' --quick' * quick}{f' --seeds {size.seeds}' * (size.seeds != usual.seeds)}"


def _draw(study: Study, found: Found, file: Path) -> None:
    from shoal.studies.drawing import draw_study

    file.unlink(missing_ok=True)  # one of other results must not stand beside these
    draw_study(study, found, file)


class _Progress:
    """One line per run and now and then one within it: where it is, and what it took."""

    def __init__(self, console: Console, what: str) -> None:
        self._console, self._what = console, what
        self._spoke = time.monotonic()
        self._say("begins")

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._spoke >= SAY_S:
            self._say(text)

    def done(self, seconds: float) -> None:
        self._say(f"done in {_clock(seconds)}")

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        self._console.print(f"{self._what}: {text}", soft_wrap=True, highlight=False, markup=False)


def _clock(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
