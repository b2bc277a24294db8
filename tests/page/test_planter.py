"""No figure on a run's pages shows that there is a planter."""

from pathlib import Path

from shoal.page.run import Document, run_document
from shoal.page.source import RunFiles
from shoal.telemetry.metrics import Entry
from tests.watch.conftest import append

MODEL: Entry = {"event": "model", "token_flops": 100.0, "head_flops": 10.0, "pair_flops": 1.0}
VERDICT: Entry = {"event": "verdict", "step": 0, "generated": {"fed": 50, "drawn": 20, "pairs": 100}}
STEP: Entry = {"event": "step", "step": 0, "version": 1, "train_flops": 2000.0, "train_s": 1.0, "reward": 0.5}


def handed_in(wait_share: float) -> Entry:
    return {"event": "submission", "step": 0, "tokens": 100, "tokens_per_s": 50.0, "wait_share": wait_share}


def page_of(run: Path, *, planted: bool) -> Document:
    """Five seconds, in two of which the one worker generated."""
    metrics = run / "metrics"
    append(metrics / "trainer.jsonl", {"time": 1.0, **MODEL}, {"time": 6.0, **STEP})
    append(metrics / "worker-0.jsonl", {"time": 2.0, **handed_in(0.25)})
    append(metrics / "validator.jsonl", {"time": 4.0, **VERDICT})
    if planted:
        append(metrics / "planter.jsonl", {"time": 3.0, **handed_in(0.75)})
    return run_document(RunFiles.open(run))


def test_no_figure_of_the_run_counts_the_planter(tmp_path: Path) -> None:
    without = page_of(tmp_path / "without", planted=False)
    planted = page_of(tmp_path / "planted", planted=True)
    assert planted["series"] == without["series"]
    assert planted["compute"] == without["compute"]
    assert "(40% of the time)" in str(dict(without["compute"])["generation"])  # type: ignore[call-overload]


def test_no_note_tells_that_the_planter_was_restarted(tmp_path: Path) -> None:
    """Somebody who knows when it was away knows its nodes: those that fell silent then."""
    restarts = [{"time": 1.0 + n, "event": "restart", "role": role} for n, role in enumerate(("planter", "worker-0"))]
    append(tmp_path / "metrics" / "supervisor.jsonl", *restarts)
    notes = run_document(RunFiles.open(tmp_path))["notes"]
    assert notes == [[2.0, "worker-0 ended with code ? and was restarted"]]
