"""The page on episodes, followed as it is written: its environments are played, its configs are read."""

import re
from pathlib import Path

import pytest

from shoal.config import TaskConfig, TurnsConfig
from shoal.config_io import load_config
from shoal.tasks.environments.resets import check_resets
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import Score

PAGE = (Path(__file__).parents[2] / "docs" / "turns.md").read_text()
OWN, HARNESS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TABLES: list[str] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
MAX_LINES = 30


def test_an_environment_of_ones_own_takes_few_lines() -> None:
    assert 5 < len(OWN.splitlines()) <= MAX_LINES


def test_the_environment_on_the_page_is_played(tmp_path: Path) -> None:
    path = tmp_path / "guessing.py"
    path.write_text(OWN)
    line = TaskConfig(source=f"environment/{path}", options={"most": 20})
    check_resets([line])
    with Scorer([line], turns=TurnsConfig(seconds=60.0)) as scorer:
        task = scorer.tasks.task("train", 0)
        assert task.prompt.endswith("a number up to 20")
        guesses = [str(number) for number in range(21)]
        played = scorer.play("train", task, ["five", *guesses], score=True).result(120)
        *said, last = played.observations
        assert [one.text for one in said] == ["a number, please", *["higher"] * (len(said) - 1)]
        assert (last.over, played.score) == (True, Score(1.0))
        lost = scorer.play("train", task, ["20"] if len(said) < 20 else ["0"], score=True).result(120)
        assert lost.score == Score(0.0)


def test_the_harness_on_the_page_drives_an_episode(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    path = tmp_path / "guess.py"
    path.write_text(HARNESS)
    with Scorer([TaskConfig(source=f"environment/harness/{path}")], turns=TurnsConfig(seconds=60.0)) as scorer:
        task = scorer.tasks.task("train", 0)
        found = [scorer.play("train", task, [str(digit)] * 5, score=True).result(240) for digit in range(1, 10)]
        assert not any(one.error for one in found)
        assert sorted(one.score.reward or 0.0 for one in found if one.score) == [0.0] * 8 + [1.0], "one digit is right"
        wrong = next(one for one in found if one.score == Score(0.0))
        assert [seen.text for seen in wrong.observations[:4]] == ["no"] * 4


@pytest.mark.parametrize("table", TABLES)
def test_every_config_on_the_page_can_be_read(tmp_path: Path, table: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'name = "x"\nsteps = 1\n{table}')
    assert load_config(path).has_environments


def test_all_examples_of_the_page_are_tried() -> None:
    assert (len(TABLES), PAGE.count("```python"), PAGE.count("```toml")) == (3, 2, 3)
