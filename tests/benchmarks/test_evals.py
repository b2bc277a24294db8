"""The benchmark `evals`: what it counts, and that there is enough of it."""

from benchmarks.evals.bench import EXAMS, cases_of, named
from benchmarks.evals.cases import Answer, Case, count, plain
from benchmarks.evals.gpqa_cases import gpqa_answers


def test_a_verdict_that_differs_is_explained_only_where_its_answer_was_marked_before() -> None:
    cases = [Case({"id": 1}, (*plain("a", "b"), Answer("c", differs="known")))]
    ours = [[{"x": 1.0, "y": 0.0}, {"x": 0.0, "y": 0.0}, {"x": 1.0, "y": 1.0}]]
    theirs = [[{"x": 1.0, "y": 1.0}, {"x": 0.0, "y": 0.0}, {"x": 0.0, "y": 1.0}]]
    found = count(cases, ours, theirs)
    assert (found.answers, found.right, found.verdicts, found.equal) == (3, 1, 6, 4)
    assert (found.explained, found.unexplained) == (1, 1)
    assert "'a' on {'id': 1}" in found.unlike[0]
    assert "unlike" not in found.figures("exam")


def test_verdicts_of_the_reference_go_by_our_names() -> None:
    gpqa = {"exact_match:strict-match": 0.0, "exact_match:flexible-extract": 1.0}
    assert named("gpqa", gpqa) == {"flexible": 1.0, "strict": 0.0}
    whole = {f"prompt_level_{how}_acc": 1.0 for how in ("strict", "loose")}
    ifeval = {**whole, **{f"inst_level_{how}_acc": [1.0, 0.0] for how in ("strict", "loose")}}
    assert named("ifeval", ifeval)["instructions_loose"] == 0.5
    assert named("aime24", {"exact_match": 1}) == {"right": 1.0}


def test_each_exam_has_at_least_200_answers() -> None:
    for exam in EXAMS:
        cases = cases_of(exam, quick=False)
        if exam == "gpqa":
            doc = {"answer": "(B)", "choices": ["a", "b", "c", "d"]}
            assert len(cases) * len(gpqa_answers(doc)) >= 200
        else:
            assert sum(len(case.answers) for case in cases) >= 200, exam
