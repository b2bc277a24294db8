"""Rewards by name, and several as one sum whose parts are kept."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from shoal.config import LengthConfig, RewardConfig, TaskConfig
from shoal.config_io import check_config
from shoal.errors import ConfigError, TaskError
from shoal.protocol.rollout import write_parts
from shoal.protocol.rollout_rules import MAX_TEXT
from shoal.tasks.build import build_source
from shoal.tasks.isolation.sandbox import find_bubblewrap
from shoal.tasks.length import with_length
from shoal.tasks.rewards.scorer import Scorer, seconds_to_score
from shoal.tasks.source import InProcess, Score, Task, TaskSource, score
from shoal.tasks.sources.filtered import Header, Rated

HEAVY = "(1+x)^{500}(1-y)^{500}"
POLITE = """
def polite(entry, answer):
    return float("please" in answer) + 0.5 * entry["level"]
"""


def source_of(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> tuple[TaskConfig, TaskSource, Task]:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(row | {"split": "train"}) + "\n" for row in rows))
    config = TaskConfig(source=f"file/{path}", **changes)
    source = build_source([config])
    return config, source, source.task("train", 0)


def test_several_rewards_are_one_sum_and_its_parts(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(POLITE)
    rewards = [
        RewardConfig(kind="math", weight=2.0),
        RewardConfig(kind="format", weight=0.5),
        RewardConfig(kind=f"python/{tmp_path}/own.py:polite", weight=-1.0, name="polite"),
    ]
    rows = [{"question": "1/2?", "answer": "1/2", "level": 1}]
    _, source, task = source_of(tmp_path, rows, rewards=rewards, answer="boxed")
    assert score(source, task, "\\boxed{0.5}") == Score(2.0, parts={"math": 1.0, "format": 1.0, "polite": 0.5})
    assert score(source, task, "please \\boxed{3}") == Score(-1.0, parts={"math": 0.0, "format": 1.0, "polite": 1.5})
    assert score(source, task, "<think>no end") == Score(0.0, parts={"math": 0.0, "format": 0.0, "polite": 0.0})


@pytest.mark.parametrize(
    ("answer", "earned"),
    [
        ("Abu Dhabi", 1.0),
        ("  Abu\n Dhabi ", 1.0),
        ("It is Abu Dhabi.", 1.0),
        ("AbuDhabi", 0.0),
        ("Abu Dhabian", 0.0),
        ("abu dhabi", 0.0),
        ("", 0.0),
    ],
)
def test_an_answer_that_holds_the_right_one_as_words_of_their_own_is_right(
    tmp_path: Path, answer: str, earned: float
) -> None:
    _, source, task = source_of(tmp_path, [{"question": "q", "answer": "Abu Dhabi"}], reward="contains")
    assert score(source, task, answer) == Score(earned)


def test_where_one_part_fails_the_whole_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def polite(entry, answer):\n    raise KeyError('tone')\n")
    rewards = [RewardConfig(kind="math"), RewardConfig(kind=f"python/{tmp_path}/own.py:polite", name="polite")]
    _, source, task = source_of(tmp_path, [{"question": "q", "answer": "1"}], rewards=rewards)
    assert score(source, task, "1") == Score(None, "tasks task 0: scorer raised KeyError: 'tone'")


def test_a_generators_own_score_can_be_one_of_several() -> None:
    rewards = [RewardConfig(kind="own"), RewardConfig(kind="format", weight=0.1)]
    source = build_source([TaskConfig(source="reasoning-gym/chain_sum", answer="tagged", rewards=rewards)])
    task = source.task("train", 0)
    assert task.answer is not None
    assert score(source, task, task.answer) == Score(1.1, parts={"own": 1.0, "format": 1.0})
    assert score(source, task, "7") == Score(0.0, parts={"own": 0.0, "format": 0.0})


def test_what_follows_the_thinking_counts_only_where_a_reward_or_thinking_is_configured() -> None:
    plain, thinking = (
        build_source([TaskConfig(source="reasoning-gym/spell_backward", thinking=closed)]) for closed in (False, True)
    )
    task = plain.task("train", 0)
    thought = f"<think>hm</think>{task.answer}"
    assert (score(plain, task, f"{task.answer}").reward, score(plain, task, thought).reward) == (1.0, 0.0)
    assert (score(thinking, task, f"{task.answer}").reward, score(thinking, task, thought).reward) == (0.0, 1.0)


def test_a_reward_over_what_was_filtered_of_a_mixture_reaches_its_scorers_beside_other_sources(tmp_path: Path) -> None:
    lines = [TaskConfig(source=f"reasoning-gym/{name}") for name in ("chain_sum", "spell_backward")]
    rated = [Rated(index, "kept", 4, 8, 0.5, 0.2, 0.8) for index in range(20)]
    kept = tmp_path / "kept.jsonl"
    header = Header(lines, "model", 8, (0.1, 0.9), 1.0, 0)
    kept.write_text("\n".join([header.to_json(), *(json.dumps(asdict(one)) for one in rated)]))
    other = TaskConfig(source="reasoning-gym/countdown")
    source = build_source([TaskConfig(source=f"filtered/{kept}", thinking=True), other])
    tasks = [task for index in range(40) if (task := source.task("train", index)).source != "countdown"]
    assert {task.source for task in tasks} == {"chain_sum", "spell_backward"}
    assert all(score(source, task, f"hm</think>{task.answer}").reward == 1.0 for task in tasks)


def test_programs_are_judged_in_the_scorers_process_as_in_this_one(tmp_path: Path) -> None:
    try:
        find_bubblewrap()
    except TaskError as error:
        pytest.skip(str(error))
    rows = [{"question": "Add.", "tests": ["assert add(1, 2) == 3"]}]
    config, source, task = source_of(tmp_path, rows, reward="code")
    good, bad = "```python\ndef add(a, b): return a + b\n```", "```python\nimport os; os._exit(0)\n```"
    answers = [(task, answer) for answer in (good, bad, "no program")]
    with Scorer([config]) as judge:
        found = judge.scores("train", answers)
    assert [s.reward for s in found] == [1.0, 0.0, 0.0]
    assert [s.reward for s in InProcess(source).scores("train", answers)] == [1.0, 0.0, 0.0]


def test_parts_and_doubt_come_back_from_the_scorers_process(tmp_path: Path) -> None:
    rewards = [RewardConfig(kind="math"), RewardConfig(kind="format", weight=0.5)]
    config, _, task = source_of(tmp_path, [{"question": "q", "answer": "7"}], rewards=rewards)
    with Scorer([config]) as judge:
        [found] = judge.scores("train", [(task, "7.0")])
    assert found == Score(1.5, parts={"math": 1.0, "format": 1.0})


def test_a_pathological_answer_costs_its_own_reward_and_little_time(tmp_path: Path) -> None:
    config, _, task = source_of(tmp_path, [{"question": "q", "answer": "x^2"}], reward="math")
    with Scorer([config]) as judge:
        first, late, last = judge.scores("train", [(task, "x^2"), (task, HEAVY), (task, "x*x")])
    assert (first, last) == (Score(1.0), Score(1.0))
    assert late.reward is None
    assert "takes more than 1 s to compare" in late.error or "took longer than 2 s" in late.error


def test_judging_programs_has_time_for_all_their_tests() -> None:
    assert seconds_to_score([TaskConfig(source="file/x.jsonl", reward="math")]) == 2.0
    assert seconds_to_score([TaskConfig(source="file/x.jsonl", reward="code")]) >= 4 * 2.0 + 2.0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"reward": "luck"},
            "reward 'luck': not one of own, exact, contains, math, code, format, row and python/FILE.py:FUNCTION",
        ),
        ({"reward": "python/none.py:f"}, "python/none.py: no such file"),
        ({"reward": "python/none.py"}, "name a function"),
        ({"rewards": [RewardConfig(kind="math"), RewardConfig(kind="math")]}, "two rewards have the same name"),
    ],
)
def test_a_reward_that_is_none_is_named(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=says):
        source_of(tmp_path, [{"question": "q", "answer": "1"}], **changes)


def test_a_table_without_a_reward_says_which_there_are(tmp_path: Path) -> None:
    _, source, task = source_of(tmp_path, [{"question": "q", "answer": "1"}])
    assert "set reward to math, code, exact, contains, row" in score(source, task, "1").error


def test_one_reward_or_several_but_not_both() -> None:
    tasks = [{"source": "file/x.jsonl", "reward": "math", "rewards": [{"kind": "code"}]}]
    with pytest.raises(ConfigError, match="reward = 'math' and rewards are both given"):
        check_config({"name": "x", "steps": 1, "tasks": tasks}, "x.toml")


def test_parts_for_which_a_rollout_file_has_no_room_are_an_error_and_no_workers_fault(tmp_path: Path) -> None:
    """Validators refuse a file with longer ones, and blame who handed it in."""
    rewards = [RewardConfig(kind="format", name=f"{'é' * 8}{n}") for n in range(12)]
    _, source, task = source_of(tmp_path, [{"question": "q", "answer": "1"}], rewards=rewards)
    found = score(source, task, "1")
    assert (found.reward, found.parts) == (None, {})
    assert "too many parts" in found.error
    _, source, task = source_of(tmp_path, [{"question": "q", "answer": "1"}], rewards=rewards[:11])
    config = LengthConfig(targets=[1], alpha=1 / 3)
    assert len(write_parts(with_length(score(source, task, "1"), 7, 1, config).parts)) <= MAX_TEXT


def test_scorers_of_two_machines_have_sets_in_the_same_order(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def order(entry, answer):\n    return hash(answer) % 1000\n")
    rewards = [RewardConfig(kind=f"python/{tmp_path}/own.py:order")]
    config, _, task = source_of(tmp_path, [{"question": "q", "answer": "1"}], rewards=rewards)
    found = []
    for _ in range(2):
        with Scorer([config]) as scorer:
            found.append(scorer.scores("train", [(task, "some text")])[0].reward)
    assert found[0] == found[1] is not None
