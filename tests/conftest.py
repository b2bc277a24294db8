"""Fixtures for all tests: a tiny model that opens like any other, a coordinator, a calm run, a browser, and a chain."""

import os

# Before torch is imported: two idle OpenMP threads that spin slow a shared machine down.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from shoal.config import TinyConfig
from shoal.errors import BenchError
from shoal.files import locked
from shoal.models.load import Policy, load
from shoal.models.tiny import build_tiny
from shoal.tasks.sources.gym.source import ReasoningGym
from tests.support.axe import axe_source
from tests.support.browser import Browser
from tests.support.coordinator_fixtures import database_url, postgres_url, small_world, world
from tests.support.run_processes import CONFIG, Runs
from tests.support.servers.anvil import Anvil, anvil
from tests.support.submissions import WORDS

__all__ = ["database_url", "postgres_url", "small_world", "world"]  # fixtures

# A busy machine is not a failure: pytest-timeout ends what hangs.
settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")

# Tests that measure time.
ALONE = (
    "tests/attacks/lender/test_programs.py",
    "tests/benchmarks/test_broadcast",
    "tests/benchmarks/test_delta_bench.py",
    "tests/benchmarks/test_generation.py",
    "tests/benchmarks/test_ledger_bench.py",
    "tests/benchmarks/test_loop.py",
    "tests/benchmarks/test_page_bench.py",
    "tests/benchmarks/test_peers",
    "tests/benchmarks/test_swarm_load.py",
    "tests/faults/test_shardcast.py",
    "tests/tasks/test_scorer.py",
)
# Whole runs for minutes, in which most processes wait most of the time. The longest come first, so that no core waits
# for the other one at the end.
WHOLE_RUNS = (
    "tests/faults/test_kills.py",
    "tests/faults/test_storm.py",
    "tests/page/test_real_run.py",
    "tests/attacks/test_run_under_attack.py",
    "tests/lend/test_lent_run.py",
    "tests/client/test_joining.py",
    "tests/faults/test_several_validators.py",
)
# Files of the other tests that take longest, for the same reason.
LONGEST = (
    "tests/page/test_browser.py",
    "tests/attacks/test_best_draw.py",
    "tests/lend/test_supervisor.py",
    "tests/doctor/test_report.py",
    "tests/attacks/test_attacks.py",
    "tests/attacks/test_free_sampling.py",
    "tests/ledger/test_conformance.py",
    "tests/tasks/test_docs.py",
    "tests/train/test_sharded.py",
    "tests/train/test_learning.py",
    "tests/toploc/test_first_use.py",
)
FIRST = {name: number for number, name in enumerate((*WHOLE_RUNS, *LONGEST))}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The two small parts read their own files alone: importing all tests takes a process 14 CPU seconds."""
    part = {"alone": ALONE, "whole_run": WHOLE_RUNS}.get(config.option.markexpr)
    if part is None or not collection_path.name.startswith("test_") or collection_path.is_dir():
        return None
    return None if collection_path.relative_to(config.rootpath).as_posix().startswith(part) else True


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.startswith(ALONE):
        item.add_marker("alone")
    elif item.nodeid.startswith(WHOLE_RUNS):
        item.add_marker("whole_run")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FIRST.get(item.nodeid.partition("::")[0], len(FIRST)))


@pytest.fixture(scope="session", autouse=True)
def full_priority() -> Iterator[None]:
    """Code that gives way to training would slow down all tests after it in this process: it cannot be taken back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.priority.NICE", 0)
        yield


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with random weights: hidden size 64, two layers, byte-level tokenizer."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("tiny")
    config = TinyConfig(hidden=64, layers=2, warm_steps=0)
    build_tiny(directory, config, ReasoningGym("spell_backward", dict(WORDS)), 0, lambda *_: None)
    return directory


@pytest.fixture
def tiny_policy(tiny_dir: Path) -> Policy:
    return load(tiny_dir)


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed, to compare others with; its config and its cache of models are beside it.

    It is made once: by the first of pytest-xdist's processes that asks for it, while the others wait.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "runs"
    folder.mkdir(exist_ok=True)
    with locked(folder / "lock", "another process has not ended the calm run", wait_s=500.0):
        if not (folder / "ended").exists():
            (folder / "config.toml").write_text(CONFIG)
            with Runs(folder / "cache") as runs:
                ended = runs.start(folder / "config.toml", folder / "calm").wait(400)
            (folder / "ended").write_text(str(ended))
    assert (folder / "ended").read_text() == "0", (folder / "calm.log").read_text()[-3000:]
    return folder / "calm"


@pytest.fixture
def runs(calm: Path) -> Iterator[Runs]:
    with Runs(calm.parent / "cache") as runs:
        yield runs


@contextmanager
def chain_or_skip() -> Iterator[Anvil]:
    """A chain that is started for a test; the test is skipped where anvil is not available."""
    with ExitStack() as stack:
        try:
            chain = stack.enter_context(anvil())
        except BenchError as error:
            pytest.skip(f"anvil is not available: {error}")
        yield chain


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    try:
        started = Browser()
    except BenchError as error:
        pytest.skip(str(error))
    with started:
        yield started


@pytest.fixture(scope="session")
def axe() -> str:
    """The accessibility audit as a script."""
    try:
        return axe_source()
    except BenchError as error:
        pytest.skip(str(error))
