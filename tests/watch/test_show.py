import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from shoal.errors import ShoalError
from shoal.telemetry.status import RoleStatus, State
from shoal.watch.show import condition, print_status
from shoal.watch.summary import print_summary, summarise

from .conftest import append, put_status


def shown(run_dir: Path) -> str:
    out = io.StringIO()
    print_status(run_dir, Console(file=out, width=120))
    return out.getvalue()


def role(name: str, state: State) -> RoleStatus:
    return RoleStatus(name, 1, state, "", "", 0.0, None, 0.0)


def test_status_shows_progress_roles_waits_numbers_and_what_happened(run_dir: Path) -> None:
    put_status(run_dir, "trainer", state="waiting", doing="rollouts of step 40", on="worker", deadline=time.time() + 60)
    put_status(run_dir, "worker-0", doing="submission 3 of step 40")
    put_status(run_dir, "worker-1", alive=False)
    text = shown(run_dir)
    assert text.startswith("chain-sum-async2: 40 of 40 steps done, the last one ")
    assert "; running\n" in text
    assert "trainer waits on worker-0, worker-1 (dead): rollouts of step 40 (" in text
    for part in ("submission 3 of step 40", "dead", "0.333 → 0.871", "worker-1 ended with code -9 and was restarted"):
        assert part in text


def test_what_a_sampler_weighs_is_in_the_status_and_in_the_summary(tmp_path: Path) -> None:
    weighed = {"words": {"share": 0.75, "rate": 0.5, "weight": 1.0}, "sums": {"share": 0.25, "rate": 0.01}, "bad": 1}
    append(tmp_path / "metrics/trainer.jsonl", {"event": "step", "step": 0, "sampler": weighed})
    out = io.StringIO()
    print_summary(summarise(tmp_path), Console(file=out, width=120))
    for text in (shown(tmp_path), out.getvalue()):
        for part in ("tasks of words", "75% of those asked, solved 0.500, weight 1.000", "solved 0.010, weight –"):
            assert part in text
        assert "bad" not in text


def test_status_of_a_run_that_has_only_begun_is_shown(tmp_path: Path) -> None:
    put_status(tmp_path, "trainer", state="starting")
    assert "0 steps done; running" in shown(tmp_path)


@pytest.mark.parametrize(("name", "why"), [("empty", "neither metrics/ nor status/"), ("nowhere", "does not exist")])
def test_what_is_no_run_is_named_with_the_reason(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ShoalError, match=rf"{name}: not a run: it .*{why}"):
        shown(tmp_path / name)


def test_the_condition_of_a_run_follows_from_its_roles() -> None:
    assert condition([]) == "no role has started"
    assert condition([role("trainer", "done"), role("worker-0", "done")]) == "finished"
    assert condition([role("trainer", "waiting"), role("worker-0", "dead")]) == "running"
    assert condition([role("trainer", "failed"), role("worker-0", "working")]) == "failed (trainer)"
    assert condition([role("trainer", "working"), role("cheater-0", "failed")]) == "running; failed: cheater-0"
    assert condition([role("trainer", "done"), role("cheater-0", "failed")]) == "finished; failed: cheater-0"
    assert condition([role("trainer", "dead"), role("validator", "failed")]) == "failed (validator)"
    assert condition([role("trainer", "dead"), role("worker-0", "dead")]).startswith("stopped; `shoal run` resumes")
