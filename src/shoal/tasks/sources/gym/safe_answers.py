"""Allow-list of answer forms for reasoning-gym's scorers that would otherwise evaluate an answer as code.

Some scorers give the answer to `eval`, or to sympy's `parse_expr`, which is the same thing. The author of an answer
then writes the program, and with it the reward. Such an answer is scored only if it is made of nothing but what these
forms allow: numbers, operators and brackets, and names that stand for nothing but themselves.

The same goes for a generator's options, which come with the config of somebody else's run. Text is taken only where it
is known what a generator does with it (`TEXT_OPTIONS`), and never as the name of a file: one that a generator reads on
this machine would go into the prompts, and with them to the author of the options. Where a generator evaluates what it
makes of its options, they must be names and operators.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_ARITHMETIC = r"(?:(?!\*\*)[0-9\s+*/()-])*"
# No Integral among the names: the question itself would be a right answer.
# A name is a word of its own: neither an attribute nor a part of a longer one. A dot stands only behind a digit.
_NAME = r"(?<![\w.])(?:[A-Za-z]|sin|cos|tan|asin|acos|atan|sinh|cosh|tanh|exp|log|ln|sqrt|Abs|pi)(?!\w)"
# Possessive: digits have one reading, or a long number before a sign that is not allowed takes time without end.
_ALGEBRA = rf"(?:[0-9]++(?:\.[0-9]*+)?|{_NAME}|[\s+*/()-])*+"
_NUMBERS = r"[0-9\s\[\],-]*"

FORMS = {
    generator: re.compile(form, re.ASCII)
    for generator, form in {
        "binary_matrix": _NUMBERS,
        "spiral_matrix": _NUMBERS,
        "string_insertion": r"[A-E\s\[\],'\"]*",
        "n_queens": r"[Q_\s\[\],'\"]*",
        "countdown": _ARITHMETIC,
        "puzzle24": _ARITHMETIC,
        "polynomial_multiplication": _ALGEBRA,
        "simple_integration": _ALGEBRA,
        "intermediate_integration": _ALGEBRA,
    }.items()
}


def in_form(generator: str, answer: str) -> bool:
    """Whether a generator's scorer may see the answer. Most scorers only compare, and may see anything."""
    return generator not in FORMS or FORMS[generator].fullmatch(answer) is not None


# Generators that evaluate text of their own making, which their options may find a way into.
EVALUATING = {*FORMS, "basic_arithmetic", "bitwise_arithmetic", "codeio", "gsm_symbolic", "number_sorting"}
_WORD = re.compile(r"[A-Za-z0-9_ +*/-]{0,64}", re.ASCII)


# Options that may be text, and what generators do with it. Any other option is a number, a switch or refused: a new
# release of reasoning-gym may have one that names a file, as spell_backward's data_file does.
TEXT_OPTIONS = {
    "colour_list": "colours of boxes, shown in the prompt",
    "delimiter": "what a text of the library's own is split at",
    "female_names": "shown in the prompt",
    "format_style": "compared with a list",
    "male_names": "shown in the prompt",
    "mirrors": "compared with a list",
    "operations": "compared with a list",
    "operators": "compared with a list, or evaluated, and then of the form below",
    "problem_types": "names of weights, compared with a list",
    "rotations": "compared with a list",
    "static_font": "compared with a list of fonts that come with the library",
    "static_word": "shown in the prompt",
    "styles": "compared with a list",
    "symbols": "names of variables, of the form below",
    "task_types": "compared with a list",
    "tasks": "compared with a list",
    "variables": "names of variables, of the form below",
    "whitespace": "compared with a list",
}
# What no option is: a path. A single sign is an operator.
_PATH = re.compile(r".*([/\\\0]|\.\.).*", re.DOTALL)


def foreign_option(generator: str, options: Mapping[str, Any]) -> str | None:
    """Why an option of a generator is refused; None if all may be given to it."""
    for option, value in options.items():
        for text in _texts(value):
            if option not in TEXT_OPTIONS:
                return f"option {option} = {text[:80]!r} is refused: it may not be text, which could name a file"
            if len(text) > 1 and _PATH.fullmatch(text):
                return f"option {option} = {text[:80]!r} is refused: it reads as the name of a file"
            if generator in EVALUATING and not _WORD.fullmatch(text):
                return (
                    f"option {option} = {text[:80]!r} is refused, for this generator evaluates what it makes of its "
                    "options; give letters, digits and operators"
                )
    return None


def _texts(value: Any) -> Iterator[str]:
    """All texts of an option, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in (*value.keys(), *value.values()):
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
