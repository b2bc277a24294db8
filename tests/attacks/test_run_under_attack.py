"""A run with as many cheaters as honest workers trains on the honest ones' samples alone, and learns as it would."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import select

from shoal.coordinator.archive import reading
from shoal.coordinator.db.schema import nodes, submissions
from shoal.crypto.keys import Key
from shoal.ledger.export import verify_file
from shoal.rundir import key_path, open_run
from shoal.telemetry.metrics import read_metrics, read_steps
from shoal.telemetry.status import ENDED, read_status
from tests.support.browser import Browser, opened
from tests.support.page_in_process import serving_pages
from tests.support.real_pages import open_all
from tests.support.run_processes import CONFIG, STEPS, Runs, reward_at
from tests.support.until import until

# Three strikes rather than two keep the cheaters at work a little longer.
CHEATERS = """
[[cheaters]]
attack = "int8"

[[cheaters]]
attack = "best_of_n"

[audit]
strikes = 3
"""
CAUGHT = ("cheater-0", "cheater-1")


def trained(out: Path) -> int:
    return len(read_steps(out / "metrics" / "trainer.jsonl", "step"))


def is_caught(out: Path) -> bool:
    """Whether enough files of the cheaters were rejected, and one of them has been blamed often enough for its ban."""
    cheaters = [Key.load(key_path(out, name)).address for name in CAUGHT if key_path(out, name).exists()]
    verdicts = [e for e in read_metrics(out / "metrics" / "validator.jsonl") if e["event"] == "verdict"]
    files = [entry for entry in verdicts if entry["node"] in cheaters]
    blamed = Counter(entry["node"] for entry in files if entry["blamed"])
    return len(cheaters) == len(CAUGHT) and len(files) >= 6 and blamed[cheaters[0]] > 0 and blamed[cheaters[1]] >= 3


@contextmanager
def stopped(out: Path, role: str) -> Iterator[None]:
    for status in read_status(out):
        if status.role == role and status.state not in ENDED:
            os.kill(status.pid, signal.SIGSTOP)
            try:
                yield
            finally:
                with suppress(ProcessLookupError):
                    os.kill(status.pid, signal.SIGCONT)
            return
    yield


@pytest.fixture(scope="module")
def attacked(calm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended, with all that its cheaters left."""
    folder = tmp_path_factory.mktemp("attacked")
    config, out = folder / "attacked.toml", folder / "attacked"
    config.write_text(CONFIG + CHEATERS)
    with Runs(calm.parent / "cache") as runs:
        run = runs.start(config, out)
        until(lambda: run.poll() is not None or is_caught(out) or trained(out) >= STEPS * 2 // 3, 400)
        if run.poll() is None and not is_caught(out):
            # Without the honest ones nothing is trained, and the run does not end before the cheaters are found out.
            with ExitStack() as stack:
                for worker in ("worker-0", "worker-1"):
                    stack.enter_context(stopped(out, worker))
                until(lambda: run.poll() is not None or is_caught(out), 400)
        ended = run.wait(400)
    assert ended == 0, (folder / "attacked.log").read_text()[-3000:]
    return out


@pytest.mark.timeout(1800)
def test_the_trainer_sees_not_one_sample_of_the_cheaters_and_learns_as_without_them(calm: Path, attacked: Path) -> None:
    out = attacked
    trained: Counter[str] = Counter()
    used = json.loads((max((out / "checkpoints").glob("step-*")) / "state.json").read_text())["used"]
    with reading(open_run(out)) as db:
        names = {row.address: row.name for row in db.execute(select(nodes))}
        banned = {row.name for row in db.execute(select(nodes).where(nodes.c.state == "banned"))}
        makers = {(row.step, row.submission): names[row.node] for row in db.execute(select(submissions))}
    for step, numbers in used.items():
        trained.update(makers[int(step), int(number)] for number in numbers)
    assert trained
    assert set(trained) <= {"worker-0", "worker-1"}
    judged = [entry for entry in read_metrics(out / "metrics" / "validator.jsonl") if entry["event"] == "verdict"]
    verdicts = Counter((names[entry["node"]].split("-")[0], entry["accept"]) for entry in judged)
    assert verdicts["cheater", True] == 0
    assert verdicts["cheater", False] >= 6
    assert verdicts["worker", False] == 0
    # Some files of the int8 one are too near to a threshold for blame: it is banned by its third file that is not.
    blamed = Counter(names[entry["node"]] for entry in judged if entry["blamed"])
    assert banned == {name for name, count in blamed.items() if count >= 3}
    assert banned >= {"cheater-1"}
    assert blamed["cheater-0"] > 0
    assert len(list((out / "evidence").glob("*.json"))) == verdicts["cheater", False]
    # On the ledger every file has the outcome of its verdict: no file of theirs is accepted, each is rejected, or void
    # where it is too near to a threshold for blame. They have no account: not one credit, not even welcome ones.
    state = verify_file(out / "ledger.db").state
    outcomes = {
        (batch.step, leaf.submission): outcome
        for batch in state.batches
        for leaf, outcome in zip(batch.leaves, batch.outcomes, strict=True)
    }
    for entry in judged:
        place = int(entry["step"]), int(entry["submission"])
        expected = "av" if entry["accept"] else "r" if entry["blamed"] else "v"  # the trainer may turn a file down
        if place not in outcomes:  # judged after the last step was full, when the ledger was closed
            assert place[0] >= STEPS - 1, entry
            assert str(place[1]) not in used.get(str(place[0]), {}), entry
            continue
        assert outcomes[place] in expected, entry
    assert {names[address] for address in state.accounts} == {"worker-0", "worker-1", "validator"}
    assert abs(reward_at(out, STEPS) - reward_at(calm, STEPS)) < 0.12


def test_every_page_of_a_run_that_has_ended_comes_from_its_files(attacked: Path, browser: Browser, axe: str) -> None:
    with serving_pages(attacked) as url, opened(browser) as page:
        open_all(page, url, "finished", axe)
