"""A study goes on after a SIGKILL, never does a run twice, and says what it will cost before it starts."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from shoal.errors import ConfigError, StorageError
from shoal.studies.catalogue import STUDIES, find_study
from shoal.studies.claims import Claim
from shoal.studies.findings import fill_findings
from shoal.studies.intervals import paired
from shoal.studies.runner import budget, run_study
from shoal.studies.store import StudyStore
from shoal.studies.study import Conclusion, Found, Job, Outcome, Setting, Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FULL = Size(steps=10, seeds=3, groups=1, heldout=4, every=5)


class Coins:
    """A study without training: side b has about 0.1 more than side a, whatever the seed."""

    name = "clip"  # one that the page of findings knows
    summary = "coins"
    paper = "b is better"
    loop = "none"
    full = FULL
    quick = replace(FULL, steps=2, seeds=2)

    def __init__(self, kill_at: int | None = None, config: str = "one") -> None:
        self.done: list[tuple[str, int, int]] = []
        self._kill_at, self._config = kill_at, config

    def settings(self) -> Sequence[Setting]:
        return [Setting("a"), Setting("b", {"train.lr": 1.0})]

    def run(self, job: Job) -> Outcome:
        assert not list(job.scratch.iterdir())
        (job.scratch / "half").write_text("a run that was killed leaves this")
        if len(self.done) == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.done.append((job.setting.name, job.seed, job.size.steps))
        final = job.seed + (0.1 + 0.001 * (job.seed - 2)) * (job.setting.name == "b")
        return {"final": final, "curve": [{"step": 0, "reward": 0.5}], "config": self._config}

    def conclude(self, found: Found) -> Conclusion:
        first, second = ([run["final"] for run in found[side]] for side in ("a", "b"))
        return Conclusion([Claim("b is better", "difference", paired(first, second), lower=0.0)], {"runs": len(first)})

    def draw(self, found: Found, figure: "Figure") -> None:
        figure.subplots().plot([run["final"] for run in found["a"]])


def said(study: Coins, out: Path, *, quick: bool = False, seeds: int | None = None) -> str:
    console = Console(file=io.StringIO(), width=400)
    run_study(study, out, console, quick=quick, seeds=seeds)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_study_says_its_budget_first_and_its_verdict_last(tmp_path: Path) -> None:
    text = said(Coins(), tmp_path)
    assert text.index("budget: 6 of 6 runs left") < text.index("run 1 of 6")
    assert "study clip: held" in text
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["verdict"] == "held"
    assert result["claims"][0]["mean"] == pytest.approx(0.1)
    assert result["seeds"] == 3
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_a_study_that_is_killed_goes_on_with_the_run_that_it_was_in(tmp_path: Path) -> None:
    # Three runs measure the budget, so this is the third run of the study.
    killed = f"from tests.studies.test_runner import *; said(Coins(kill_at=5), Path({str(tmp_path)!r}))"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", killed], cwd=root, check=False).returncode == -signal.SIGKILL
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a.1.json", "b.1.json"]
    resumed = Coins()
    assert "budget: 4 of 6 runs left" in said(resumed, tmp_path)
    assert resumed.done == [(side, seed, 10) for seed in (2, 3) for side in "ab"]
    again = Coins()
    said(again, tmp_path)
    assert again.done == []


def test_more_seeds_are_added_to_those_that_are_done(tmp_path: Path) -> None:
    said(Coins(), tmp_path)
    more = Coins()
    text = said(more, tmp_path, seeds=4)
    assert more.done == [("a", 4, 10), ("b", 4, 10)]
    assert "budget: 2 of 8 runs left" in text
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["seeds"] == 4
    assert result["command"] == "shoal study clip --seeds 4"


def test_a_study_that_was_widened_leaves_out_the_seeds_that_were_looked_at(tmp_path: Path) -> None:
    wider = Coins()
    wider.full = replace(FULL, seeds=4, first_seed=4)
    said(wider, tmp_path / "coins")
    assert sorted({seed for _, seed, steps in wider.done if steps == FULL.steps}) == [4, 5, 6, 7]
    file = page(tmp_path)
    fill_findings(file, [tmp_path / "coins"])
    assert "x 4 seeds (4 .. 7) = " in file.read_text()


def test_another_size_or_study_is_not_mixed_into_a_directory(tmp_path: Path) -> None:
    said(Coins(), tmp_path)
    with pytest.raises(ConfigError, match="another size or other settings"):
        said(Coins(), tmp_path, quick=True)


def test_seeds_that_were_run_with_different_configs_are_not_averaged(tmp_path: Path) -> None:
    said(Coins(), tmp_path)
    with pytest.raises(ConfigError, match=r"run a, seed 4: its config two is not one, that of seed 1"):
        said(Coins(config="two"), tmp_path, seeds=4)
    assert not (tmp_path / "runs" / "a.4.json").exists()


def test_a_disk_that_refuses_a_lock_is_not_another_process(tmp_path: Path) -> None:
    store = StudyStore.open(tmp_path, Coins(), FULL)
    with pytest.raises(StorageError, match="too long"), store.claim(Setting("a" * 300), 1):
        pass


def test_a_run_that_another_process_does_is_left_to_it(tmp_path: Path) -> None:
    study = Coins()
    store = StudyStore.open(tmp_path, study, FULL)
    store.keep_probe({"start_s": 1.0, "step_s": 2.0})
    first = store.settings[0]
    with store.claim(first, 1) as mine, store.claim(first, 1) as also:
        assert (mine, also) == (True, False)
        said(study, tmp_path)
    assert ("a", 1, 10) not in study.done
    assert len(study.done) == 5
    assert json.loads((tmp_path / "result.json").read_text())["seeds"] == 2


def test_before_the_first_run_the_budget_is_that_of_the_measured_short_runs(tmp_path: Path) -> None:
    store = StudyStore.open(tmp_path, Coins(), FULL)
    assert budget(store, FULL) is None
    store.keep_probe({"start_s": 5.0, "step_s": 2.0})
    found = budget(store, FULL)
    assert found is not None
    assert found.left_s == 6 * 25.0


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    said(Coins(), tmp_path)
    (tmp_path / "runs" / "a.1.json").write_text("{")
    with pytest.raises(StorageError, match=r"a\.1\.json: not readable"):
        said(Coins(), tmp_path)


def page(path: Path) -> Path:
    blocks = "".join(f"## {name}\n<!-- study:{name} -->\nwritten by hand\n<!-- end -->\n" for name in STUDIES)
    (path / "findings.md").write_text(f"# Findings\n{blocks}")
    return path / "findings.md"


def test_the_page_of_findings_holds_what_the_json_says_and_no_more(tmp_path: Path) -> None:
    said(Coins(), tmp_path / "coins")
    file = page(tmp_path)
    assert fill_findings(file, [tmp_path / "coins"]) == ["clip"]
    text = file.read_text()
    assert "written by hand" not in text
    assert text.count("Not run yet.") == len(STUDIES) - 1
    assert "| b is better | held | +0.100 [+0.098, +0.102] | 95 % | 3 | at least 0 | difference |" in text
    fill_findings(file, [])
    assert file.read_text() == text


def test_a_smoke_test_never_becomes_a_finding(tmp_path: Path) -> None:
    said(Coins(), tmp_path / "coins", quick=True)
    with pytest.raises(ConfigError, match="smoke test"):
        fill_findings(page(tmp_path), [tmp_path / "coins"])


def test_the_page_in_the_repository_says_what_the_code_says(tmp_path: Path) -> None:
    docs = Path(__file__).parents[2] / "docs"
    (tmp_path / "findings").mkdir()
    for file in (docs / "findings").glob("*.json"):
        (tmp_path / "findings" / file.name).write_bytes(file.read_bytes())
    copy = tmp_path / "findings.md"
    copy.write_text((docs / "findings.md").read_text())
    fill_findings(copy, [])
    assert copy.read_text() == (docs / "findings.md").read_text(), "run: shoal findings docs/findings.md"


def test_an_unknown_study_is_answered_with_the_known_ones() -> None:
    known = "async, boundary, speed, clip, stability, filters, length, cheaters, staleness"
    with pytest.raises(ConfigError, match=known):
        find_study("asink")


@pytest.mark.parametrize("name", STUDIES)
def test_a_studys_settings_have_names_of_their_own_that_files_can_have(name: str) -> None:
    names = [setting.name for setting in STUDIES[name].settings()]
    assert len(set(names)) == len(names) > 1
    assert all(one.replace("-", "").replace(".", "").isalnum() for one in names)
