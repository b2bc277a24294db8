"""Fixtures for all tests: a tiny model that opens like any other, a coordinator, a calm run, and a chain."""

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
from shoal.models.load import Policy, load
from shoal.models.tiny import build_tiny
from shoal.tasks.sources.gym.source import ReasoningGym
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
# Whole runs for minutes, in which most processes wait most of the time. A group goes through one process: the first two
# are compared with one calm run, which is made once.
WHOLE_RUNS = {
    "tests/attacks/test_run_under_attack.py": "calm",
    "tests/faults/test_kills.py": "calm",
    "tests/client/test_joining.py": "others",
    "tests/faults/test_several_validators.py": "others",
    "tests/faults/test_storm.py": "others",
    "tests/page/test_real_run.py": "pages",
}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks tests as they are found: xdist reads groups when all are."""
    if item.nodeid.startswith(ALONE):
        item.add_marker("alone")
    elif group := WHOLE_RUNS.get(item.nodeid.partition("::")[0]):
        item.add_marker("whole_run")
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session", autouse=True)
def full_priority() -> Iterator[None]:
    """Code that gives way to training would slow down all tests after it in this process: it cannot be taken back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "nice", lambda _: 0)
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
    """A run that nobody disturbed, to compare others with; its config and its cache of models are beside it."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "config.toml").write_text(CONFIG)
    with Runs(folder / "cache") as runs:
        ended = runs.start(folder / "config.toml", folder / "calm").wait(400)
    assert ended == 0, (folder / "calm.log").read_text()[-3000:]
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
