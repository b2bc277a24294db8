"""Verdicts on answers to exams, by the rules of their reference scorers; `python -m benchmarks evals` compares more."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.config import CodeConfig, TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import build_source, pinned
from shoal.tasks.source import score, size_of
from shoal.tasks.sources.exams import aime, gpqa, ifeval
from shoal.tasks.sources.exams.ifeval_rules import RULES
from shoal.tasks.sources.exams.source import read_exam

CHOICES = {"Correct Answer": "4.2 eV", **{f"Incorrect Answer {n}": f"{n}.1 keV [title] " for n in (1, 2, 3)}}

FREQUENCY = {"keyword": "sea", "frequency": 2, "relation": "at least"}


def exam(folder: Path, kind: str, rows: list[dict[str, Any]]) -> TaskConfig:
    path = folder / f"{kind}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TaskConfig(source=f"{kind}/{path}")


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("25", True),
        ("so $25$", True),
        ("with $a=1$ it is $25$", False),  # all between the first sign and the last
        ("\\boxed{24}, no: \\boxed{25}", True),
        ("\\boxed{25}, no: \\boxed{24}", False),
        ("\\boxed 25$.", True),
        ("$25$ \\fbox{24}", True),
        ("\\boxed{25", False),
        ("\\boxed{25^\\circ}", True),
        ("\\boxed{25\\text{ cm}}", True),
        ("\\boxed{25.0}", False),
        ("\\boxed{n=25}", True),
        ("\\boxed{025}", False),
        ("\\boxed{a/b}", False),
        ("", False),
    ],
)
def test_an_answer_to_aime_is_what_the_last_box_holds_in_one_notation(answer: str, right: bool) -> None:
    assert aime.is_right("25", answer) is right


def test_notation_that_cannot_be_read_is_compared_as_it_stands() -> None:
    assert aime.is_right("a/b", "\\boxed{a/b}")
    assert aime.is_right("\\frac{1}{2}", "\\boxed{1/2}")
    assert aime.is_right("\\frac{1}{2}", "\\boxed{\\dfrac12}")
    assert not aime.is_right("\\frac", "\\boxed{\\frac }")


def test_copies_of_aime_name_their_columns_in_capitals_or_write_zeros_before_a_number(tmp_path: Path) -> None:
    for row in ({"Problem": "5 * 5?", "Answer": 25}, {"problem": "5 * 5?", "answer": "025"}):
        source = build_source([exam(tmp_path, "aime", [row])])
        task = source.task("heldout", 0)
        assert task.prompt.startswith("5 * 5?")
        assert task.answer == "\\boxed{25}"
        assert score(source, task, str(task.answer)).reward == 1.0
    with pytest.raises(TaskError, match="row 0 has no problem and answer; it has question"):
        build_source([exam(tmp_path, "aime", [{"question": "?"}])])


def test_an_exam_is_held_out_as_a_whole_and_known_by_its_content(tmp_path: Path) -> None:
    rows = [{"problem": f"{n}?", "answer": n} for n in range(20)]
    line = pinned([exam(tmp_path, "aime", rows)])[0]
    source = build_source([line])
    assert (size_of(source, "heldout"), size_of(source, "train")) == (20, 0)
    with pytest.raises(TaskError, match="aime: is an exam, which nobody trains on"):
        source.task("train", 0)
    exam(tmp_path, "aime", rows[:19])
    assert size_of(build_source([line]), "heldout") == 20, "what was pinned is what is asked"
    changed = pinned([exam(tmp_path, "aime", rows[:19])])[0]
    with pytest.raises(TaskError, match="its content has the hash"):
        build_source([changed.model_copy(update={"sha256": line.sha256})])


@pytest.mark.parametrize(
    ("answer", "flexible", "strict"),
    [
        ("The answer is {r}.", 1, 1),
        ("{w} or {r}", 1, 0),
        ("{r} or {w}", 0, 0),
        ("It is 4.2 EV!", 1, 0),
        ("Answer: {letter}", 1, 0),
        ("{letter}", 0, 0),
        ("the answer is {r}.", 1, 0),
        ("The answer is {r}", 1, 1),
        ("The answer is {letter}", 0, 0),
        ("No idea", 0, 0),
    ],
)
def test_an_answer_to_gpqa_is_a_letter_in_brackets_else_a_choices_text(
    answer: str, flexible: float, strict: float
) -> None:
    entry = gpqa.entries([{"Question": "How much?", **CHOICES}], "here")[0]
    right = entry["target"]
    wrong = next(f"({letter})" for letter in "ABCD" if letter not in right)
    given = answer.format(r=right, w=wrong, letter=right[1])
    assert gpqa.score(entry, given).parts == {"flexible": flexible, "strict": strict}


def test_gpqas_choices_stand_in_an_order_that_the_question_decides() -> None:
    rows = [{"Question": f"How much, {n}?", **CHOICES} for n in range(40)]
    entries = gpqa.entries(rows, "here")
    assert entries == gpqa.entries(rows, "here")
    assert {entry["target"] for entry in entries} == {"(A)", "(B)", "(C)", "(D)"}
    assert "1.1 keV. " in entries[0]["choices"]
    with pytest.raises(TaskError, match="here: row 1 has no 'Incorrect Answer 2'; it has Question, Correct Answer"):
        gpqa.entries([rows[0], {k: v for k, v in rows[1].items() if k != "Incorrect Answer 2"}], "here")


@pytest.mark.parametrize(
    ("name", "said", "follows", "does_not"),
    [
        ("keywords:existence", {"keywords": ["riv", "sea"]}, "Rivers reach the SEA", "a river"),
        ("keywords:forbidden_words", {"forbidden_words": ["sea"]}, "seaside", "the Sea."),
        ("keywords:frequency", {"keyword": "a", "frequency": 2, "relation": "less than"}, "a", "aa"),
        ("keywords:letter_frequency", {"letter": "E", "let_frequency": 2, "let_relation": "at least"}, "eE", "e"),
        ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n***\n***\nb"),
        ("length_constraints:number_words", {"num_words": 2, "relation": "at least"}, "a-b", "ab"),
        (
            "length_constraints:nth_paragraph_first_word",
            {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
            'a\n\n"then, b"',
            "a\n\n\n\nthen b",
        ),
        ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [b]", "[a [b]"),
        ("detectable_content:postscript", {"postscript_marker": "P.S."}, "a\np. s. b", "a\nps b"),
        ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n** b"),
        ("detectable_format:constrained_response", {}, "My answer is no.", "My answer is no"),
        ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* **b**", "**a**"),
        (
            "detectable_format:multiple_sections",
            {"section_spliter": "Section", "num_sections": 2},
            "Section 1 a Section 2 b",
            "SECTION 1 a Section 2 b",
        ),
        ("detectable_format:json_format", {}, "```json\n[1]\n```", "[1"),
        ("detectable_format:title", {}, "<<a>>", "<<\n>>"),
        ("combination:two_responses", {}, "a******b", "a******a"),
        ("combination:repeat_prompt", {"prompt_to_repeat": "Say A."}, " say a. Yes", "Yes. Say A."),
        ("startend:end_checker", {"end_phrase": "The end."}, 'x "the end."', "The end. x"),
        ("startend:quotation", {}, ' "a" ', '"'),
        ("punctuation:no_comma", {}, "a; b", "a, b"),
    ],
)
def test_an_instruction_of_ifeval_is_followed_or_not(
    name: str, said: dict[str, Any], follows: str, does_not: str
) -> None:
    rule, needed = RULES[name]
    assert set(said) == set(needed)
    assert rule(follows, said)
    assert not rule(does_not, said)


def test_a_prompt_of_ifeval_is_followed_as_a_whole_and_loosely_without_what_stands_around() -> None:
    told: list[tuple[str, dict[str, Any]]] = [("startend:quotation", {}), ("punctuation:no_comma", {})]
    entry = {"question": "?", "instructions": told}
    assert ifeval.score(entry, '"a"').parts["prompt_strict"] == 1.0
    found = ifeval.score(entry, 'Sure, here it is:\n"*a*"')
    assert found.reward == 0.0
    assert found.parts == {
        "prompt_strict": 0.0,
        "prompt_loose": 1.0,
        "instructions_strict": 0.0,
        "instructions_loose": 1.0,
    }
    assert ifeval.score(entry, " \n").parts["prompt_loose"] == 0.0, "nothing follows no instruction"


def test_instructions_that_nobody_can_judge_are_named() -> None:
    row = {"prompt": "?", "instruction_id_list": ["keywords:rhymes"], "kwargs": [{}]}
    with pytest.raises(TaskError, match="here: row 0: instruction 'keywords:rhymes' is not one of IFEval's"):
        ifeval.entries([row], "here")
    row = {"prompt": "?", "instruction_id_list": ["startend:end_checker"], "kwargs": [{"end_phrase": None}]}
    with pytest.raises(TaskError, match="startend:end_checker has no end_phrase; the reference scorer would draw one"):
        ifeval.entries([row], "here")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"instruction_id_list": 5}, "instruction_id_list 5 is not a list"),
        ({"instruction_id_list": "punctuation:no_comma"}, "instruction_id_list 'punctuation:no_comma' is not a list"),
        ({"instruction_id_list": [["x"]]}, r"instruction \['x'\] is not one of IFEval's"),
        ({"kwargs": "[{}]"}, r"kwargs '\[{}\]' is not a list"),
        ({"kwargs": ["x"]}, "keywords:frequency has the arguments 'x', which are not a JSON object"),
        ({"kwargs": [FREQUENCY | {"keyword": 5}]}, "keywords:frequency: keyword 5 is not a text"),
        ({"kwargs": [FREQUENCY | {"keyword": "("}]}, r"keywords:frequency: keyword '\(' is not a pattern"),
        ({"kwargs": [FREQUENCY | {"frequency": "3"}]}, "keywords:frequency: frequency '3' is not a whole number"),
        ({"kwargs": [FREQUENCY | {"frequency": float("inf")}]}, "frequency inf is not a whole number"),
        ({"kwargs": [FREQUENCY | {"frequency": 2.5}]}, "frequency 2.5 is not a whole number"),
        ({"kwargs": [FREQUENCY | {"relation": "about"}]}, "relation 'about' is neither 'less than' nor 'at least'"),
    ],
)
def test_a_row_of_ifeval_whose_form_nobody_can_judge_is_named_when_it_is_read(
    changes: dict[str, Any], said: str
) -> None:
    row = {"prompt": "?", "instruction_id_list": ["keywords:frequency"], "kwargs": [FREQUENCY]}
    assert ifeval.entries([row], "here")
    with pytest.raises(TaskError, match=f"here: row 0: {said}|here: row 0: keywords:frequency: {said}"):
        ifeval.entries([row | changes], "here")


def test_keywords_of_ifeval_are_a_list_and_numbers_of_parquet_may_be_floats() -> None:
    row = {"prompt": "?", "instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": "abc"}]}
    with pytest.raises(TaskError, match="keywords:existence: keywords 'abc' is not a list of texts"):
        ifeval.entries([row], "here")
    row = {"prompt": "?", "instruction_id_list": ["keywords:frequency"], "kwargs": [FREQUENCY | {"frequency": 2.0}]}
    (entry,) = ifeval.entries([row], "here")
    assert entry["instructions"] == [("keywords:frequency", FREQUENCY)]


@pytest.mark.parametrize("answer", ["", " ", [5], {"a": 5}, 2.5, True])
def test_an_answer_of_aime_that_is_neither_number_nor_text_is_named(answer: object) -> None:
    with pytest.raises(TaskError, match=r"here: row 0: answer .* is neither a whole number nor text; correct it"):
        aime.entries([{"problem": "?", "answer": answer}], "here")


def test_a_target_of_aime_may_have_more_digits_than_python_reads() -> None:
    (entry,) = aime.entries([{"problem": "?", "answer": "00" + "1" * 5000}], "here")
    assert entry["target"] == "1" * 5000


def test_a_choice_of_gpqa_that_is_no_text_is_named() -> None:
    row: dict[str, object] = {"Question": "?", "Correct Answer": ["a"], **dict.fromkeys(gpqa.WRONG, "b")}
    with pytest.raises(TaskError, match=r"here: row 0: 'Correct Answer' is \['a'\], which is not text; correct it"):
        gpqa.entries([row], "here")


def test_languages_sentences_and_words_are_counted_as_the_reference_counts_them() -> None:
    """nltk's model of sentences is not on PyPI: `shoal suites --fetch ifeval` installs it."""
    pytest.importorskip("langdetect")
    pytest.importorskip("nltk")
    english = "The river runs through the old town and past the mill."
    assert RULES["change_case:english_lowercase"][0](english.lower(), {})
    assert not RULES["change_case:english_capital"][0](english, {})
    assert RULES["language:response_language"][0]("12345", {"language": "de"}), "digits are of every language"
    try:
        sentences = RULES["length_constraints:number_sentences"][0](
            "Dr. Smith left at 5 p.m. He ran.", {"num_sentences": 3, "relation": "less than"}
        )
    except TaskError as error:
        pytest.skip(str(error))
    assert sentences
    said = {"capital_frequency": 2, "capital_relation": "at least"}
    assert RULES["change_case:capital_word_frequency"][0]("NASA met ESA.", said)


@pytest.mark.parametrize("kind", ["file", "aime", "gpqa", "ifeval"])
def test_a_file_that_is_kept_by_its_hash_is_refused_by_its_own_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(TaskError, match=f"task source {kind}/{path}: row 0 has no "):
        pinned([TaskConfig(source=f"{kind}/{path}")])
    path.write_text("[")
    with pytest.raises(TaskError, match=f"task source file/{path}: line 1 is not valid JSON"):
        pinned([TaskConfig(source=f"{kind}/{path}")])


def test_a_file_of_another_exam_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "?"}\n')
    with pytest.raises(TaskError, match=r"gpqa/.*: row 0 has no 'Question'; it has prompt"):
        read_exam("gpqa", path, None, "{question}", CodeConfig())
    path.write_text("")
    with pytest.raises(TaskError, match="task source rows: holds no questions"):
        read_exam("aime", path, None, "{question}", CodeConfig())
