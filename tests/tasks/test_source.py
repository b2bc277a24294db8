"""Tasks as pure functions, and scorers that may do anything without ever costing more than their sample."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import build_source
from shoal.tasks.source import Mixture, Score, Split, Task, draw, score, split_of
from shoal.tasks.sources.gym.source import ReasoningGym


@dataclass
class Numbers:
    """A source that asks for its index; `judge` is its scorer."""

    name: str
    judge: Callable[[Task, str], float] = lambda task, answer: float(answer == task.answer)

    def task(self, split: Split, index: int) -> Task:
        return Task(self.name, index, f"{self.name} {split} {index}?", str(index), {})

    def score(self, task: Task, answer: str) -> float:
        return self.judge(task, answer)


def judged_by(judge: Callable[[Task, str], float]) -> Score:
    source = Numbers("numbers", judge)
    return score(source, source.task("train", 7), "7")


def fails(_task: Task, _answer: str) -> float:
    raise RuntimeError("out of luck")


def overflows(_task: Task, _answer: str) -> float:
    raise RecursionError


def test_a_score_is_the_scorers_own_number() -> None:
    assert judged_by(lambda task, answer: 0.25) == Score(0.25, "")


def test_a_scorer_that_raises_is_an_error_and_never_a_reward() -> None:
    assert judged_by(fails) == Score(None, "numbers task 7: scorer raised RuntimeError: out of luck")


def test_a_scorer_that_raises_without_a_word_still_leaves_a_reason() -> None:
    result = judged_by(overflows)
    assert result.reward is None
    assert "RecursionError" in result.error


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e6, -1e6, 1e308])
def test_a_number_nobody_can_learn_from_is_an_error_and_never_a_reward(value: float) -> None:
    result = judged_by(lambda task, answer: value)
    assert result.reward is None
    assert str(value) in result.error


@pytest.mark.parametrize("value", [None, "much", [], object()])
def test_what_is_not_a_number_is_an_error_and_never_a_reward(value: object) -> None:
    result = judged_by(lambda task, answer: value)  # type: ignore[arg-type,return-value]
    assert result.reward is None
    assert "scorer raised TypeError" in result.error or "scorer raised ValueError" in result.error


def test_a_scorers_endless_complaint_is_cut() -> None:
    def complain(_task: Task, _answer: str) -> float:
        raise ValueError("no " * 10_000)

    assert len(judged_by(complain).error) == 500


def test_the_users_ctrl_c_is_not_taken_for_a_failed_scorer() -> None:
    def interrupt(_task: Task, _answer: str) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judged_by(interrupt)


def test_about_one_text_in_ten_is_held_out() -> None:
    held = sum(split_of(f"question {i}") == "heldout" for i in range(20_000))
    assert 0.09 < held / 20_000 < 0.11


def test_the_split_of_a_text_is_the_same_on_every_machine() -> None:
    # printf 9 | sha256sum begins with 1958, below 6553 = 0x1999; those of 0 to 8 begin with 2c62 and more.
    assert [text for text in "0123456789" if split_of(text) == "heldout"] == ["9"]


def test_a_draw_is_the_same_on_every_machine() -> None:
    # printf 'lease\x1f1\x1fnode' | sha256sum
    assert draw("lease", 1, "node") == 0xD95868725A6967C7


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x1f")), min_size=1, max_size=4))
def test_parts_are_drawn_apart(parts: list[str]) -> None:
    assert draw(*parts) != draw(*parts, "")
    assert len(parts) == 1 or draw(*parts) != draw("".join(parts))


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (0.1, 0.9), (1e-3, 1e3)])
def test_a_mixture_respects_its_weights(weights: tuple[float, float]) -> None:
    mixture = Mixture([Numbers("a"), Numbers("b")], weights)
    drawn = Counter(mixture.task("train", index).source for index in range(10_000))
    assert drawn["a"] / 10_000 == pytest.approx(weights[0] / sum(weights), abs=0.02)


def test_a_mixture_is_a_pure_function_too() -> None:
    first, second = (Mixture([Numbers("a"), Numbers("b"), Numbers("c")], [1, 2, 3]) for _ in range(2))
    assert all(first.task(split, i) == second.task(split, i) for i in range(200) for split in ("train", "heldout"))


def test_a_mixtures_task_is_scored_by_the_source_it_came_from() -> None:
    mixture = Mixture([Numbers("a", lambda task, answer: 0.1), Numbers("b", lambda task, answer: 0.9)], [1, 1])
    tasks = [mixture.task("train", index) for index in range(50)]
    assert {(task.source, mixture.score(task, "")) for task in tasks} == {("a", 0.1), ("b", 0.9)}


def test_two_sources_of_one_name_are_refused() -> None:
    with pytest.raises(TaskError, match=r"\['a', 'a'\]: names must differ; set name on one of them"):
        Mixture([Numbers("a"), Numbers("a")], [1, 1])


def test_one_line_of_config_is_one_source_and_several_are_a_mixture() -> None:
    line = TaskConfig(source="reasoning-gym/spell_backward")
    assert isinstance(build_source([line]), ReasoningGym)
    other = TaskConfig(source="reasoning-gym/spell_backward", name="again")
    assert build_source([line, other]).name == "spell_backward+again"


@pytest.mark.parametrize("source", ["", "spell_backward", "reasoning-gym", "reasoning-gym/", "hub/x"])
def test_a_source_of_unknown_kind_is_named_with_what_to_write(source: str) -> None:
    with pytest.raises(TaskError, match=r"task source .*: .*; write reasoning-gym/GENERATOR, file/PATH"):
        build_source([TaskConfig(source=source)])
