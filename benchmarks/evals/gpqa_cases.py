"""Answers to questions of GPQA's kind: the right choice and others, by letter and by text."""

from typing import Any

from benchmarks.evals.cases import Answer, plain

# {r} is the right letter, {w} a wrong one, {right} and {wrong} are the texts of choices.
FORMS = (
    *("The answer is ({r}).", "The answer is ({w}).", "The answer is {r}.", "The answer is {right}.", "({r})", "({w})"),
    *("({w}) is tempting, but it is ({r})", "({r}) is tempting, but it is ({w})", "Answer: {r}", "Answer: {w}", "{r}"),
    *("It must be {right}", "It must be {wrong}", "first {wrong}, then {right}", "first {right}, then {wrong}"),
    *(
        "THE ANSWER IS ({r}).",
        "The answer is ({r})",
        "The answer is  ({r}) .",
        "The answer is (E).",
        "",
        "No idea",
        "(a)",
    ),
    *("The answer is ({r}).\nThe answer is ({w}).", "I choose: {r}", "I choose :\n{r}", "({w}) ({w}) {right}: {r}"),
    *("**({r})**", "\\boxed{{{r}}}", "$({r})$", "The correct option is {r})", "{right}!", "The answer is ({R})."),
)
CHOICES = (
    ("4.2 eV", "42 eV", "0.42 eV", "4.2 keV"),
    ("Benzene", "Benzene ring", "Cyclohexane", "cyclohexene"),
    ("A, B and C", "A and B", "B and C", "none of them"),
    ("10^-4 s", "10^-8 s", "10^-9 s", "10^-11 s"),
    ("the trans isomer [title] of it", "the cis isomer", "both  of them", "neither"),
    ("x > 0", "x < 0", "x = 0", "..."),
    ("Σ mass", "Δ mass", "mass", "mass!"),
    ("1:2", "2:1", "1:1", "3:1"),
)


def gpqa_rows(quick: bool) -> list[dict[str, Any]]:
    return [
        {
            "Question": f"Which is the {number}th?",
            "Correct Answer": choices[number % 4],
            **{f"Incorrect Answer {place}": choices[(number + place) % 4] for place in (1, 2, 3)},
        }
        for number, choices in enumerate(CHOICES[:2] if quick else CHOICES)
    ]


def gpqa_answers(doc: dict[str, Any]) -> tuple[Answer, ...]:
    """Answers to a row whose choices are in their order."""
    right = "ABCD".index(doc["answer"].strip("()"))
    wrong = (right + 1) % 4
    letters = {"r": "ABCD"[right], "w": "ABCD"[wrong], "R": "abcd"[right]}
    texts = {"right": doc["choices"][right], "wrong": doc["choices"][wrong]}
    return plain(*(form.format(**letters, **texts) for form in FORMS))
