import io
import re
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from rich.console import Console

from shoal.telemetry.metrics import MetricsWriter
from shoal.text import one_line
from shoal.watch.history import History, seconds_per_step
from shoal.watch.panels import NUMBERS, clock, numbers, sparkline
from shoal.watch.view import LiveView, Plan, plan

from .conftest import STEPS, put_status, step_values


def plain() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=80), out


def test_the_plain_view_prints_one_line_a_step_an_evaluation_and_a_note(tmp_path: Path) -> None:
    console, out = plain()
    rng = Random(0)
    with (
        LiveView(tmp_path, 3, console) as view,
        MetricsWriter(tmp_path / "metrics/trainer.jsonl") as trainer,
        MetricsWriter(tmp_path / "metrics/evaluator.jsonl") as evaluator,
    ):
        evaluator.write("eval", version=0, tasks=200, pass_at_1=0.31, low=0.25, high=0.37, greedy=0.4)
        for step in range(3):
            trainer.write("step", **step_values(step, rng))
            view.update()
            view.update()
        view.note("worker-0 ended with code -9\nand was restarted")
        trainer.write("refused", file="x.parquet", reason="no footer")
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "eval version 0",
        "step 0 (1/3)",
        "step 1 (2/3)",
        "step 2 (3/3)",
        "note: worker-0 ended with code -9 and was restarted",
        "note: trainer refused x.parquet: no footer",
    ]
    assert out.getvalue().isascii()
    assert "\x1b" not in out.getvalue()
    assert "pass@1 0.310 [0.25, 0.37]" in lines[0]


def test_a_step_without_a_single_number_still_has_its_line(tmp_path: Path) -> None:
    console, out = plain()
    with LiveView(tmp_path, 9, console), MetricsWriter(tmp_path / "metrics/trainer.jsonl") as trainer:
        trainer.write("step", step=4, skipped=True)
    [line] = out.getvalue().splitlines()
    assert line.startswith("step 4 (5/9)  reward -")


def test_the_plain_view_of_a_run_that_goes_on_repeats_nothing_of_the_past(run_dir: Path) -> None:
    time.sleep(0.01)
    console, out = plain()
    with LiveView(run_dir, STEPS, console) as view:
        view.update()
    assert out.getvalue() == ""


def test_a_silent_run_says_what_it_waits_for_and_not_more_often_than_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_status(tmp_path, "trainer", state="waiting", doing="rollouts of step 0", on="worker")
    put_status(tmp_path, "worker-0", doing="loading the model")
    console, out = plain()
    now = time.time()
    monkeypatch.setattr("shoal.watch.view.time", SimpleNamespace(time=lambda: now, strftime=time.strftime))
    with LiveView(tmp_path, 3, console, quiet_s=1.0) as view:
        view.update()
        assert out.getvalue() == ""
        now += 1.01
        view.update()
        view.update()
    (line,) = out.getvalue().splitlines()
    assert re.fullmatch(
        r"trainer waits on worker-0: rollouts of step 0 \(\d\.\d s\); worker-0 working: loading the model", line
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_page_shows_progress_numbers_curves_roles_and_notes(run_dir: Path, width: int, height: int) -> None:
    put_status(run_dir, "trainer", state="waiting", doing="rollouts of step 40", on="worker")
    put_status(run_dir, "worker-0", doing="[bold]generating")
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    with LiveView(run_dir, 60, console) as view:
        view.note("worker-1 was restarted")
    page = out.getvalue().rpartition("╭")[2]
    for part in (
        "chain-sum-async2",
        "step 40/60",
        "reward",
        "0.841",
        "0.333 → 0.871",
        "▁▁▂",
        "waiting",
        "[bold]generating",
        "worker-1 was restarted",
    ):
        assert part in page
    assert len(page.splitlines()) <= height


def page_of(run_dir: Path, width: int, height: int, notes: int = 3) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    with LiveView(run_dir, 60, console) as view:
        for number in range(notes):
            view.note(f"note {number} " + "that is long " * 20)
    page = "╭" + out.getvalue().rpartition("╭")[2]
    return [line for line in page.splitlines() if line[0] in "╭│╰"]


@pytest.mark.parametrize("workers", [0, 1, 4, 40])
@pytest.mark.parametrize(("width", "height"), [(60, 20), (80, 24), (40, 10), (60, 6), (100, 24), (200, 60)])
def test_a_page_fits_its_terminal_and_wraps_nothing(run_dir: Path, width: int, height: int, workers: int) -> None:
    put_status(
        run_dir, "trainer", state="waiting", doing="rollouts of step 40: 20 of 32 groups with signal", on="worker"
    )
    for worker in range(workers):
        put_status(run_dir, f"worker-{worker}", doing="step 40 submission 3 with version 39 " * 3)
    page = page_of(run_dir, width, height)
    assert len(page) < height
    assert page[0].startswith("╭")
    assert page[-1].startswith("╰"), "nothing is cut off"
    assert {len(line) for line in page} == {width}
    text = "\n".join(page)
    assert "step 40/60" in text
    if height >= 10:
        assert [line for line in page if line.startswith("│ trainer ")], "who does what is on every page"
        assert "reward" in text
    starts = [line[2:].split()[0] for line in page[1:-1] if line[2:].strip() and not line.startswith("│ ──")]
    heads = {"step", "reward", "solve", "held-out", "length", "entropy", "gradient", "clip", "KL", "drift"}
    heads |= {
        "staleness",
        "trained",
        "all",
        "mismatch",
        "per",
        "to",
        "verdict",
        "warning",
        "generate",
        "role",
        "trainer",
        *(f"worker-{n}" for n in range(workers)),
    }
    assert [start for start in starts if start not in heads and not re.fullmatch(r"\d\d:\d\d:\d\d", start)] == []


def test_a_small_page_keeps_what_is_missed_most() -> None:
    assert plan(100, numbers=4, roles=3, notes=3) == Plan(True, 4, 2, 3, 3)
    assert plan(16, numbers=6, roles=3, notes=3) == Plan(False, 6, 2, 3, 3)
    assert plan(11, numbers=12, roles=3, notes=3) == Plan(False, 3, 2, 3, 1)
    assert plan(6, numbers=12, roles=3, notes=3) == Plan(False, 1, 0, 3, 0)
    assert plan(3, numbers=12, roles=30, notes=3) == Plan(False, 0, 0, 1, 0)
    assert plan(0, numbers=12, roles=30, notes=3) == Plan(False, 0, 0, 0, 0)


def test_a_page_of_a_run_that_has_not_begun_is_drawn(tmp_path: Path) -> None:
    out = io.StringIO()
    with LiveView(tmp_path, 60, Console(file=out, width=100, force_terminal=True, color_system=None)):
        pass
    assert "step 0/60" in out.getvalue()


def test_text_from_strangers_cannot_steer_the_terminal() -> None:
    assert one_line("a\x1b[2Jb\r\nc\u202ed") == "a [2Jb c d"


def test_a_history_takes_a_step_done_again_for_the_lost_one(run_dir: Path) -> None:
    with MetricsWriter(run_dir / "metrics/trainer.jsonl") as trainer:
        trainer.write("step", step=STEPS - 1, reward=0.123)
    history = History(run_dir)
    history.refresh()
    assert (history.steps_done, history.last_step["reward"]) == (STEPS, 0.123)
    assert history.refresh() == []


def test_a_sparkline_runs_from_lowest_to_highest_in_the_room_it_has() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([float(value // 100) for value in range(800)], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.5, 0.5], 8) == "▁▁"
    assert sparkline([], 8) == ""


def test_the_pace_is_that_of_the_last_steps() -> None:
    assert seconds_per_step([0.0, 100.0, 102.0, 104.0], last=2) == 2.0
    assert seconds_per_step([5.0]) is None


def test_clocks_read_like_clocks() -> None:
    assert [clock(value) for value in (None, -1, 59.9, 61, 3661)] == ["–", "0:00", "0:59", "1:01", "1:01:01"]


def test_the_numbers_show_utilisation_mismatch_and_latencies_of_the_last_step_and_version(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "metrics/trainer.jsonl") as trainer:
        trainer.write("step", step=0, tokens_per_s_per_device=1234.0, mfu=0.41, mismatch_kl=2e-5)
    with MetricsWriter(tmp_path / "metrics/coordinator.jsonl") as coordinator:
        for version, seconds in ((0, 99.0), (1, 3.0)):
            coordinator.write(
                "latency",
                version=version,
                first_rollout_s=seconds,
                full_batch_s=None,
                verdict_p50_s=0.5,
                verdict_p95_s=4.0,
            )
    history = History(tmp_path)
    history.refresh()
    console, out = plain()
    console.width = 160
    console.print(numbers(history, 160))
    shown = " ".join(out.getvalue().split())
    assert "per device 1,234 tokens/s, MFU 41%" in shown
    assert "mismatch KL 2e-05" in shown
    assert "to rollout / batch 3.0 s / –" in shown
    assert "verdict p50 / p95 0.5 s / 4.0 s" in shown


def test_every_number_has_its_place_on_a_page(tmp_path: Path) -> None:
    assert numbers(History(tmp_path), 60).row_count == NUMBERS
