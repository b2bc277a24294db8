"""reasoning-gym behind the protocol: seeded, split by text, scored by code."""

import inspect
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import build_source
from shoal.tasks.source import Score, Split, Task, score
from shoal.tasks.sources.gym.determinism import SIZES, UNSTEADY
from shoal.tasks.sources.gym.package import import_gym
from shoal.tasks.sources.gym.source import ReasoningGym
from shoal.tasks.sources.gym.strict_scorers import FIXES

GENERATORS = ["spell_backward", "chain_sum", "basic_arithmetic", "letter_counting", "countdown"]
WORDS = {"min_word_len": 3, "max_word_len": 8}
SPLITS: tuple[Split, ...] = ("train", "heldout")

TELL = """
from shoal.tasks.sources.gym.package import import_gym
from shoal.tasks.sources.gym.source import ReasoningGym
for generator in {generators}:
    source = ReasoningGym(generator, {{}})
    for split in ("train", "heldout"):
        print([(source.task(split, i).prompt, source.task(split, i).answer) for i in (12345, 0, 7, 2**31)])
"""
ASK = """
from shoal.tasks.sources.gym.package import import_gym
from shoal.tasks.sources.gym.source import ReasoningGym
for generator in {generators}:
    source = ReasoningGym(generator, {{}})
    print([source.task("train", i).prompt for i in range(8)])
"""


def partial_and_binary(generator: str, options: dict[str, Any]) -> tuple[ReasoningGym, ReasoningGym]:
    return ReasoningGym(generator, options, binary=False), ReasoningGym(generator, options)


@pytest.mark.parametrize("generator", GENERATORS)
def test_two_fresh_sources_agree_in_any_order(generator: str) -> None:
    first, second = ReasoningGym(generator, {}), ReasoningGym(generator, {})
    asked = [(split, index) for split in SPLITS for index in (0, 1, 2, 999, 2**31 - 1)]
    forward = [first.task(split, index) for split, index in asked]
    backward = [second.task(split, index) for split, index in reversed(asked)]
    assert forward == backward[::-1]


def test_another_process_draws_the_same_tasks() -> None:
    code = TELL.format(generators=GENERATORS)
    command = [sys.executable, "-c", code]
    # With another order of Python's own hashes.
    told = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "1"}).stdout
    here = []
    for source in (ReasoningGym(generator, {}) for generator in GENERATORS):
        for split in SPLITS:
            tasks = [source.task(split, index) for index in (12345, 0, 7, 2**31)]
            here.append(str([(task.prompt, task.answer) for task in tasks]))
    assert told.splitlines() == here


def test_generators_that_draw_by_the_order_of_a_set_ask_the_same_everywhere() -> None:
    generators = ["isomorphic_strings", "polynomial_multiplication", "ransom_note", *SIZES]
    command = [sys.executable, "-c", ASK.format(generators=generators)]
    told = []
    for seed in ("1", "2"):
        own = {**os.environ, "PYTHONHASHSEED": seed}
        told.append(subprocess.run(command, capture_output=True, text=True, check=True, env=own).stdout)
    assert told[0] == told[1]
    assert len(told[0].splitlines()) == len(generators)


@pytest.mark.parametrize("generator", sorted(UNSTEADY))
def test_a_generator_that_asks_other_tasks_in_every_process_is_refused(generator: str) -> None:
    with pytest.raises(TaskError, match="asks other tasks in every process"):
        ReasoningGym(generator, {})


def test_no_generator_writes_down_all_that_it_will_ever_ask() -> None:
    """A name alone, in a stranger's run card, would fill the memory of every node that joins."""
    holding = set()
    for generator, (kind, _) in reasoning_gym.factory.DATASETS.items():
        code = inspect.getsource(kind)
        if re.search(r"(?:k=|range\(|\* )\s*(?:self|config|self\.config)\.size\b|\d \* self\.config\.size", code):
            holding.add(generator)
    assert holding >= {"list_functions", "gsm_symbolic", "acre"}
    assert holding <= set(SIZES)


def test_different_indices_are_different_draws() -> None:
    source = ReasoningGym("chain_sum", {"min_terms": 4, "max_terms": 6})
    assert len({source.task("train", index).prompt for index in range(500)}) > 490


@pytest.mark.parametrize(
    ("generator", "options"),
    [("spell_backward", {"min_word_len": 3, "max_word_len": 3}), ("spell_backward", WORDS), ("chain_sum", {})],
)
def test_train_and_held_out_texts_never_meet(generator: str, options: dict[str, Any]) -> None:
    source = ReasoningGym(generator, options)
    train = {source.task("train", index).prompt for index in range(3000)}
    heldout = {source.task("heldout", index).prompt for index in range(1000)}
    assert len(train) > 100
    assert len(heldout) > 50
    assert train & heldout == set()


def test_two_sources_of_one_generator_agree_on_what_is_held_out() -> None:
    # As in a mixture, or in a warm start whose tasks have another name than the run's.
    short = ReasoningGym("spell_backward", {"min_word_len": 3, "max_word_len": 4}, name="short")
    tagged = ReasoningGym("spell_backward", {"min_word_len": 3, "max_word_len": 4}, answer="tagged")
    train = {short.task("train", index).entry["question"] for index in range(1000)}
    heldout = {tagged.task("heldout", index).entry["question"] for index in range(1000)}
    assert train & heldout == set()


def test_a_generator_with_a_single_text_cannot_fill_both_splits() -> None:
    source = ReasoningGym("prime_factorization", {"min_value": 4, "max_value": 4})
    assert len({source.task("train", index).prompt for index in range(20)}) == 1
    with pytest.raises(TaskError, match="1000 draws for heldout task 0 gave none; widen its options"):
        source.task("heldout", 0)


def test_options_that_leave_a_generator_nothing_to_ask_are_named() -> None:
    source = ReasoningGym("spell_backward", {"min_word_len": 40, "max_word_len": 40})
    with pytest.raises(TaskError, match=r"spell_backward: its generator raised IndexError\(.*change its options"):
        source.task("train", 0)


@pytest.mark.parametrize("generator", GENERATORS)
def test_the_answer_that_is_shown_to_a_warm_start_earns_the_full_reward(generator: str) -> None:
    source = ReasoningGym(generator, {})
    for index in range(20):
        task = source.task("train", index)
        assert task.answer is not None
        assert source.score(task, task.answer) == 1.0
        assert source.score(task, f"  {task.answer}\n") == 1.0


def test_partial_credit_is_given_only_where_it_is_asked_for() -> None:
    partial, binary = partial_and_binary("spell_backward", WORDS)
    task = partial.task("train", 0)
    credit = partial.score(task, "quite wrong")
    assert 0 < credit < 1
    assert binary.score(task, "quite wrong") == 0.0


@pytest.mark.parametrize("answer", ["", " ", "\x00", "�", "9" * 10_000, "<answer></answer>"])
@pytest.mark.parametrize("generator", GENERATORS)
def test_a_foolish_answer_earns_nothing_and_breaks_nothing(generator: str, answer: str) -> None:
    source = ReasoningGym(generator, {})
    assert score(source, source.task("train", 3), answer).reward in (0.0, None)


def tagged_task() -> tuple[ReasoningGym, Task]:
    source = ReasoningGym("spell_backward", WORDS, answer="tagged")
    return source, source.task("train", 5)


def test_a_tagged_task_asks_for_tags_and_shows_them() -> None:
    source, task = tagged_task()
    assert task.prompt.endswith("Give the final answer between <answer> and </answer>.")
    assert task.answer == f"<answer>{task.entry['answer']}</answer>"
    assert source.score(task, task.answer) == 1.0


def test_outside_its_tags_a_right_answer_earns_nothing() -> None:
    source, task = tagged_task()
    assert source.score(task, str(task.entry["answer"])) == 0.0
    assert source.score(task, f"<answer>{task.entry['answer']}") == 0.0


def test_the_last_tagged_answer_is_the_final_one() -> None:
    source, task = tagged_task()
    right = f"<answer>\n{task.entry['answer']} </answer>"
    assert source.score(task, f"First <answer>no</answer>, then {right}.") == 1.0
    assert source.score(task, f"First {right}, then <answer>no</answer>.") == 0.0


def test_a_template_is_the_prompt_around_the_question_and_changes_no_split() -> None:
    plain = ReasoningGym("spell_backward", WORDS)
    framed = ReasoningGym("spell_backward", WORDS, template="{braces} stay.\n{question}\nGo:")
    for split in SPLITS:
        for index in range(50):
            bare, task = plain.task(split, index), framed.task(split, index)
            assert task.prompt == f"{{braces}} stay.\n{bare.prompt}\nGo:"
            assert (task.answer, task.entry) == (bare.answer, bare.entry)


def test_a_template_of_the_config_reaches_the_prompt() -> None:
    line = TaskConfig(source="reasoning-gym/spell_backward", template="Q: {question}", answer="tagged")
    prompt = build_source([line]).task("train", 0).prompt
    assert prompt.startswith("Q: Spell this word backward")
    assert prompt.endswith("</answer>.")


def test_an_unknown_generator_is_named_with_the_known_ones() -> None:
    with pytest.raises(TaskError, match=r"reasoning-gym/spell_backwards: no such generator; known: .*spell_backward,"):
        ReasoningGym("spell_backwards", {})


@pytest.mark.parametrize(
    "options",
    [{"min_word_len": -1}, {"min_word_len": 5, "max_word_len": 3}, {"wordlen": 3}, {"seed": 1}],
)
def test_options_that_the_generator_refuses_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match=r"reasoning-gym/spell_backward: options \{.*\} refused: "):
        ReasoningGym("spell_backward", options)


@pytest.mark.parametrize("answer", ["", "no", "[1,", "-", "1/0", "2 x 3"])
def test_an_answer_that_the_scorer_cannot_parse_earns_nothing(answer: str) -> None:
    source = ReasoningGym("prime_factorization", {})
    assert score(source, source.task("train", 0), answer) == Score(0.0)


def test_a_scorer_that_cannot_score_the_right_answer_either_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ReasoningGym("spell_backward", WORDS)

    def broken(answer: str, entry: dict[str, Any]) -> float:
        raise LookupError("no table")

    monkeypatch.setattr(source._dataset, "score_answer", broken)
    result = score(source, source.task("train", 3), "x")
    assert result == Score(None, "spell_backward task 3: scorer raised LookupError: no table")


def test_a_scorer_out_of_memory_says_nothing_about_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ReasoningGym("spell_backward", WORDS)

    def hungry(answer: str, entry: dict[str, Any]) -> float:
        if answer == entry["answer"]:
            return 1.0
        raise MemoryError

    monkeypatch.setattr(source._dataset, "score_answer", hungry)
    assert "MemoryError" in score(source, source.task("train", 3), "x").error


@pytest.mark.parametrize(
    ("generator", "options"),
    [
        ("simple_integration", {"symbols": ["__import__('os')._exit(1)"]}),
        ("polynomial_multiplication", {"variables": ["x", "__import__('os')._exit(1)"]}),
        ("polynomial_multiplication", {"variables": "exit()"}),
        ("puzzle24", {"operators": ["+", "x.y"]}),
    ],
)
def test_an_option_that_would_be_run_as_code_is_refused(generator: str, options: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match="is refused"):
        build_source([TaskConfig(source=f"reasoning-gym/{generator}", options=options)])


def test_names_of_variables_are_still_the_configs_to_choose() -> None:
    options: dict[str, Any] = {"variables": ["u", "v1"]}
    source = build_source([TaskConfig(source="reasoning-gym/polynomial_multiplication", options=options)])
    assert "u" in source.task("train", 1).prompt + source.task("train", 2).prompt


JUNK = ["x", "0", "1", "no", "yes", "[]", "the quick brown fox", "4*6*2/2", "3.5"]


@pytest.mark.parametrize("generator", sorted(FIXES))
def test_a_scorer_that_pays_for_wrong_answers_is_mended(generator: str) -> None:
    source = ReasoningGym(generator, {}, binary=False)
    paid = 0
    for index in range(12):
        task = source.task("train", index)
        assert task.answer is not None
        assert source.score(task, task.answer) == 1.0
        others = {source.task("train", 100 + n).answer for n in range(3)} - {task.answer}
        wrong = [answer for answer in [*JUNK, *others] if answer and answer.lower() != task.answer.lower()]
        found = [answer for answer in wrong if source.score(task, answer) >= 1.0]
        # Another puzzle may have the same numbers, and another coin the same chance.
        assert len(found) <= 1, (task.answer, found)
        paid += sum(source._dataset.score_answer(answer, task.entry) >= 1.0 for answer in wrong)
    assert paid >= 12, "reasoning-gym's own scorer no longer pays for these; nothing is left to fix"


def test_a_level_of_a_curriculum_makes_tasks_harder_and_options_still_count() -> None:
    easy, hard = (ReasoningGym("chain_sum", {}, difficulty=level) for level in (0, 4))
    lengths = [sum(len(source.task("train", i).prompt) for i in range(30)) for source in (easy, hard)]
    assert lengths[0] < lengths[1]
    odd = ReasoningGym("chain_sum", {"max_terms": 9, "min_terms": 9}, difficulty=0)
    assert sum(odd.task("train", 0).prompt.count(sign) for sign in "+-") >= 8


def test_several_levels_are_several_sources() -> None:
    source = build_source([TaskConfig(source="reasoning-gym/chain_sum", difficulty=[0, 2])])
    assert {source.task("train", index).source for index in range(40)} == {"chain_sum@0", "chain_sum@2"}


def test_a_composite_is_its_members_by_their_weights() -> None:
    members: list[Any] = [{"name": "chain_sum", "weight": 3, "config": {"max_terms": 2}}, {"name": "spell_backward"}]
    line = TaskConfig(source="reasoning-gym/composite", options={"datasets": members}, answer="tagged")
    source = build_source([line])
    tasks = [source.task("train", index) for index in range(400)]
    share = sum(task.source == "chain_sum" for task in tasks) / len(tasks)
    assert 0.65 < share < 0.85
    assert all(task.answer is not None and source.score(task, task.answer) == 1.0 for task in tasks[:20])


@pytest.mark.parametrize("options", [{}, {"datasets": []}, {"datasets": [{"weight": 1}]}, {"datasets": 3}])
def test_a_composite_without_members_says_how_to_write_them(options: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match=r"must be datasets = \[\{ name = GENERATOR"):
        build_source([TaskConfig(source="reasoning-gym/composite", options=options)])


def test_only_generators_with_a_curriculum_have_levels() -> None:
    with pytest.raises(TaskError, match="has no difficulty; only reasoning-gym's generators do"):
        build_source([TaskConfig(source="file/x.jsonl", difficulty=1)])


def test_a_generator_that_knows_no_answer_shows_none() -> None:
    assert ReasoningGym("rush_hour", {}).task("train", 0).answer is None


def test_what_its_packages_are_written_like_is_not_said_to_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reasoning_gym.py").write_text('known = "a" is "b"\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reasoning_gym", raising=False)
    with pytest.warns(SyntaxWarning):
        compile((tmp_path / "reasoning_gym.py").read_text(), "reasoning_gym.py", "exec")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert import_gym().known is False
