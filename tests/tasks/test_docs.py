"""The page on tasks, followed as it is written: own tasks, trained on."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.config_io import load_config, to_toml
from shoal.tasks.build import build_source

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
BLOCKS: dict[str, str] = dict(re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
MAX_LINES = 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in BLOCKS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_task_of_ones_own_takes_few_lines() -> None:
    assert set(BLOCKS) == {"sorting.py", "own.toml"}
    code = [line for line in BLOCKS["sorting.py"].splitlines() if line.strip()]
    assert 5 < len(code) <= MAX_LINES


def test_what_the_page_shows_is_a_source(folder: Path) -> None:
    source = build_source(load_config(folder / "own.toml").tasks)
    task = source.task("heldout", 3)
    assert task.answer == "".join(sorted(task.prompt.removeprefix("Sort: ")))
    assert source.score(task, f" {task.answer}\n") == 1.0
    assert source.score(task, task.prompt) == 0.0


def test_every_config_on_the_page_can_be_read(tmp_path: Path) -> None:
    found = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    tables = [text for text in found if "[[tasks]]" in text or "[length]" in text]
    assert len(tables) == 5
    for number, text in enumerate(tables):
        whole = text if "steps" in text else f'name = "x"\nsteps = 1\n{text}'
        if "[[tasks]]" not in whole:
            whole += '\n[[tasks]]\nsource = "python/sorting.py"\n'
        path = tmp_path / f"{number}.toml"
        path.write_text(whole)
        config = load_config(path)
        path.write_text(to_toml(config))
        assert load_config(path) == config


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("folder")
def test_training_on_it_works() -> None:
    """As on the page, but for two small steps in the place of forty."""
    smaller = ["steps=2", "train.groups_per_step=4", "workers.groups_per_submission=4", "eval.tasks=8"]
    command = [sys.executable, "-m", "shoal", "run", "own.toml", *(f"--set={setting}" for setting in smaller)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 in 0:" in done.stdout
    assert (Path("runs/sorting/model") / "config.json").is_file()
