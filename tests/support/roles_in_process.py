"""Roles of a run in this process, with tasks that a random model answers right about half the time."""

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from shoal.config import RunConfig
from shoal.config_io import check_config
from shoal.files import locked
from shoal.generate.submission_builder import Maker
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import load
from shoal.models.version_reader import VersionReader
from shoal.protocol.stores import LeaseStore, Version
from shoal.roles.trainer import build_trainer
from shoal.roles.worker import Worker
from shoal.rundir import RunDir, limits_of, prepare_run
from shoal.tasks.source import InProcess, Judge, Split, Task, TaskSource
from shoal.telemetry.metrics import Entry, read_metrics
from tests.support.memory_store import MemoryStore, memory_store
from tests.support.submissions import judge_formats

TREE: dict[str, Any] = {
    "name": "test",
    "steps": 3,
    "async_level": 1,
    "wait_s": 60.0,
    "tasks": [{"source": "reasoning-gym/spell_backward", "options": {"min_word_len": 3, "max_word_len": 5}}],
    "sampling": {"group_size": 4, "max_new_tokens": 5, "max_prompt_tokens": 24},
    "train": {"groups_per_step": 4, "token_budget": 256, "lr": 1e-3, "warmup_steps": 0},
    "workers": {"groups_per_submission": 2, "max_batch": 16},
}


class Coin:
    """A question is a number, an answer is right if its first character's code is odd."""

    name = "coin"

    def task(self, split: Split, index: int) -> Task:
        return Task(self.name, index, f"{index % 97}?", None, {})

    def score(self, task: Task, answer: str) -> float:
        return float(ord(answer[0]) % 2) if answer else 0.0


# A loaded machine scores and sends the last files in a while.
ENDS_IN_S = 240
JUDGE = """
def score(entry, answer):
    return {"n": 0.0, "a": 1.0}.get(entry["question"][0], float(len(answer) % 2))
"""


def mixed_tasks(path: Path) -> list[dict[str, Any]]:
    """A table of tasks that are solved never, always and sometimes, a third each, and words without end."""
    lines = [{"question": f"{kind} {n}", "split": "train"} for n in range(10) for kind in ("never", "always", "some")]
    (path / "mix.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"question": "some x", "split": "heldout"}])))
    (path / "judge.py").write_text(JUDGE)
    mix = {"source": f"file/{path / 'mix.jsonl'}", "reward": f"python/{path / 'judge.py'}:score", "weight": 3.0}
    words = {"source": "reasoning-gym/spell_backward", "options": {"min_word_len": 3, "max_word_len": 5}}
    return [mix, words]


def make_config(source: Path | str, **changes: Any) -> RunConfig:
    """TREE with this base model; `train={...}` and the like change single keys of a table."""
    tree = {key: dict(value) if isinstance(value, dict) else value for key, value in TREE.items()}
    tree["model"] = {"source": str(source)}
    for key, value in changes.items():
        tree[key] = tree.get(key, {}) | value if isinstance(value, dict) else value
    return check_config(tree, "test")


def make_run(path: Path, config: RunConfig) -> RunDir:
    return prepare_run(config, path, Console(file=io.StringIO()))


def base_version(run: RunDir) -> Version:
    version = run.channel().version(0)
    assert version is not None
    return version


def make_worker(
    run: RunDir,
    name: str = "worker-0",
    tasks: TaskSource | None = None,
    max_batch: int | None = None,
    store: LeaseStore | None = None,
    node: str | None = None,
    judge: Judge | None = None,
) -> Worker:
    """`judge` scores answers and plays episodes; in this process at once, if it is None."""
    config = run.config
    policy = load(run.base_model, config.model.dtype)
    engine = TorchEngine(
        policy,
        max_batch=max_batch or config.workers.max_batch,
        max_len=config.max_len,
        temperature=config.sampling.temperature,
        reader=VersionReader(channel := run.channel(), config.model.dtype).read,
    )
    status, metrics = run.status(name), run.metrics(name)
    store = store or memory_store(run)
    tasks = tasks or Coin()
    maker = Maker(config, policy, engine, tasks, judge or InProcess(tasks), store.table)
    return Worker(node or name, config, channel, store, maker, status, metrics, base_version(run))


def work_until_sent(run: RunDir, worker: Worker, files: int = 1, name: str = "worker-0") -> None:
    """Has a worker work in this thread until it has handed in so many files; a test's own timeout ends one that never
    does."""
    while len(entries(run, name, "submission")) < files:
        assert worker.turn()


def train(run: RunDir) -> None:
    """The run's trainer in this thread, from its last checkpoint to the last step."""
    with locked(run.path / "locks" / "trainer", "taken"), run.role("trainer") as (status, metrics):
        build_trainer(run, run.channel(), lambda *asked: memory_store(run, *asked), status, metrics).run()


def judging_store(run: RunDir, worker: Worker) -> MemoryStore:
    return memory_store(run, limits_of(run.config, worker.maker.policy.vocab))


@contextmanager
def working(run_dir: RunDir, worker: Worker) -> Iterator[None]:
    """The worker at work in a thread, and its files judged by their formats; it ends with the run."""
    failed: list[BaseException] = []
    store = judging_store(run_dir, worker)
    over = threading.Event()

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failed.append(error)

    def judge() -> None:
        while not over.wait(0.01):
            judge_formats(store, 0, run_dir.config.steps)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    threading.Thread(target=judge, daemon=True).start()
    try:
        yield
    finally:
        thread.join(timeout=ENDS_IN_S)
        over.set()
    assert not thread.is_alive(), "the worker did not end with the run"
    if failed:
        raise failed[0]


def entries(run: RunDir, role: str, event: str) -> list[Entry]:
    return [entry for entry in read_metrics(run.path / "metrics" / f"{role}.jsonl") if entry["event"] == event]


def notes(run: RunDir, role: str = "trainer") -> str:
    return "\n".join(str(entry["text"]) for entry in entries(run, role, "note"))
