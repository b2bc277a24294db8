"""The forms of answers that reasoning-gym's scorers would otherwise run as code.

Some scorers give the answer to `eval`, or to sympy's `parse_expr`, which is the same thing. Whoever writes the answer
then writes the program, and with it the reward. Such an answer is scored only if it is made of nothing but what these
forms allow: numbers, operators and brackets, and names that stand for nothing but themselves.

The same goes for a generator's options, which come with the config of somebody else's run: the name of a variable
becomes part of what is evaluated, so it must be a name.
"""

import re
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


def foreign_option(generator: str, options: Any) -> str | None:
    """A text among a generator's options that may be more than a name or an operator where it is evaluated."""
    if generator not in EVALUATING:
        return None
    if isinstance(options, str):
        return None if _WORD.fullmatch(options) else options
    if isinstance(options, dict):
        options = [*options.keys(), *options.values()]
    inner = options if isinstance(options, list | tuple) else ()
    return next((found for option in inner if (found := foreign_option(generator, option)) is not None), None)
