r"""Answers to questions of AIME's kind: the right number and others, in the notations that models write."""

from random import Random

from benchmarks.evals.cases import Case, plain

ROWS = 16
# {t} is the target, {w} another number.
FORMS = (
    *("{t}", " {t} ", "{w}", "${t}$", "${w}$", "$x={t}$", "$n = {t}$", "$xyz={t}$", "$a={t}=b$", "The answer is {t}."),
    *("\\boxed{{{t}}}", "\\boxed{{ {t} }}", "\\boxed{{{w}}}", "so \\boxed{{{w}}}, no: \\boxed{{{t}}}", "\\boxed {t}$."),
    *(
        "\\boxed{{{t}}} or rather \\boxed{{{w}}}",
        "\\fbox{{{t}}}",
        "${t}$ \\fbox{{{t}}}",
        "\\boxed{{{t}",
        "$\\boxed{{{t}}}$",
    ),
    *("\\boxed{{{t}.0}}", "\\boxed{{0{t}}}", "\\boxed{{{t}^\\circ}}", "\\boxed{{{t}^{{\\circ}}}}", "\\boxed{{{t}\\%}}"),
    *("\\boxed{{{t}\\text{{ cm}}}}", "\\boxed{{{t}\\text{{cm}}}}", "\\boxed{{\\text{{ is }}{t}\\text{{ cm}}}}"),
    *(
        "\\boxed{{\\frac{{{t}}}{{1}}}}",
        "\\boxed{{{t}/1}}",
        "\\boxed{{\\dfrac{t}1}}",
        "\\boxed{{\\frac}}",
        "\\boxed{{\\sqrt}}",
    ),
    *(
        "\\boxed{{m={t}}}",
        "\\boxed{{\\left({t}\\right)}}",
        "\\boxed{{{t}\\!}}",
        "\\boxed{{\\$ {t}}}",
        "\\boxed{{+{t}}}",
    ),
    *(
        "With $a=1$ and $b=2$ the sum is ${t}$",
        "$1$ then {t}",
        "",
        "$",
        "$$",
        "\\boxed{{}}",
        "\\boxed{{\\boxed{{{t}}}}}",
    ),
    *(
        "<think>\\boxed{{{w}}}</think> \\boxed{{{t}}}",
        "\\boxed{{{t}}}\n\n",
        "\\boxed{{\n{t}\n}}",
        "answer: {t}\n",
        "{t}\\\\",
    ),
    *(
        "\\boxed{{{t}{{,}}000}}",
        "\\boxed{{1/2/3}}",
        "\\boxed{{a/b}}",
        "\\boxed}} {{{t}",
        "\\boxed{{\\sqrt{t}}}",
        "0.5",
        "1/2",
    ),
)


def aime_cases(quick: bool, year: int) -> list[Case]:
    """Copies of the exam name their columns in two ways."""
    rng = Random(year)
    problem, answer = ("Problem", "Answer") if year == 2024 else ("problem", "answer")
    cases = []
    for number in range(2 if quick else ROWS):
        target, other = rng.sample(range(1000), 2)
        row = {"id": str(number), problem: f"What is {target} + 0, for the {number}th time?", answer: str(target)}
        cases.append(Case(row, plain(*(form.format(t=target, w=other) for form in FORMS))))
    return cases
