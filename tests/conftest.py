"""A tiny model that opens like any other, and makers of leases and submissions with one thing changed."""

import os

# Before torch is imported: two idle OpenMP threads that spin slow a shared machine down.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from shoal.config import TinyConfig
from shoal.errors import BenchError, RolloutError
from shoal.models.load import Policy, load
from shoal.models.tiny import build_tiny
from shoal.protocol.lease import Lease
from shoal.protocol.stores import RolloutStore
from shoal.protocol.submission import Limits, Rollout, Submission
from shoal.protocol.verdict import Finding, Verdict
from shoal.tasks.sources.gym.source import ReasoningGym
from tests.runs import CONFIG, Runs
from tests.support.anvil import Anvil, anvil

# A busy machine is no failure: pytest-timeout ends what hangs.
settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")

WORDS = {"min_word_len": 3, "max_word_len": 5}
LIMITS = Limits(group_size=4, vocab=260, max_prompt_tokens=16, max_new_tokens=8)
ROOT = "ab" * 32
# Tests that use both cores, or measure time.
ALONE = (
    "tests/benchmarks/",
    "tests/faults/",
    "tests/attacks/test_programs.py",
    "tests/attacks/test_run_under_attack.py",
    "tests/coordinator/test_joining.py",
    "tests/tasks/test_scorer.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(ALONE):
            item.add_marker("alone")


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
    """A chain that is started for a test, which is skipped where there is none to be had."""
    with ExitStack() as stack:
        try:
            chain = stack.enter_context(anvil())
        except BenchError as error:
            pytest.skip(f"no anvil here, and none to be had: {error}")
        yield chain


def make_lease(**changes: Any) -> Lease:
    """Lease for two groups of step 3, made with a version in 1..3."""
    lease = Lease(
        run="test",
        node="worker-0",
        step=3,
        submission=0,
        oldest=1,
        newest=3,
        groups=2,
        beacon=7,
        deadline=time.time() + 600,
    )
    return replace(lease, **changes)


def make_rollout(group: int = 0, sample: int = 0, **changes: Any) -> Rollout:
    """A sample within LIMITS; every second one of a group is right."""
    rollout = Rollout(
        group=group,
        sample=sample,
        source="spell_backward",
        task=11 + group,
        prompt=[5, 6, 7 + group],
        completion=[20 + sample, 30, 1],
        logprobs=[-0.5, -1.25, -0.125],
        finish="eos",
        reward=float(sample % 2),
        advantage=1.0 if sample % 2 else -1.0,
        error="",
        proof=bytes(258),
    )
    return replace(rollout, **changes)


def make_submission(
    lease: Lease, *, version: int | None = None, weights: str = ROOT, group_size: int = LIMITS.group_size
) -> Submission:
    """What an honest worker would hand in under `lease`: every group has signal."""
    rollouts = [make_rollout(group, sample) for group in range(lease.groups) for sample in range(group_size)]
    return Submission(lease, lease.newest if version is None else version, weights, rollouts)


def judge_formats(store: RolloutStore, first: int, last: int) -> None:
    """Judges what waits as a validator would that looks at formats alone."""
    for upload in store.waiting(first, last):
        try:
            _, sha256 = store.read(upload)
        except RolloutError as error:
            finding = Finding("format", "a file is what its lease asks for", upload.path.name, str(error))
            store.judge(upload, Verdict(False, "", False, finding))
        else:
            store.judge(upload, Verdict(True, sha256, False))


def run_on_small_disk(mount: Path, kib: int, code: str, *arguments: str) -> str:
    """What Python code prints while `mount` is a disk of `kib` KiB; a name space keeps the mount from everyone else."""
    prefix = own_mounts()
    if prefix is None:
        pytest.skip("this machine lets nobody mount a tmpfs, not even in a name space of its own")
    mount.mkdir(exist_ok=True)
    command = f'mount -t tmpfs -o size={kib}k tmpfs "$0" && exec "$@"'
    result = subprocess.run(
        [*prefix, "sh", "-c", command, str(mount), sys.executable, "-c", code, str(mount), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@lru_cache(maxsize=1)
def own_mounts() -> list[str] | None:
    for prefix in (["unshare", "-m"], ["unshare", "-rm"]):
        probe = [*prefix, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        try:
            if subprocess.run(probe, capture_output=True, timeout=10).returncode == 0:
                return prefix
        except FileNotFoundError:
            return None
    return None


@contextmanager
def answering(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server of this kind at work in threads; gives its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
