r"""Math reward: whether two answers are equal, by math-verify, which tolerates LaTeX, fractions, units and order.

Two things are added to it. An answer to a question whose answer is a number must be a number: `12 \cdot 13` equals
156, and so does the question. Words are compared as words: math-verify reads `Monday` as a product of its letters,
which `dynamo` is as well.
"""

import logging
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

from shoal.errors import TaskError

# Seconds of processor time, which a busy machine does not use up. What a single long multiplication takes no notice of
# is ended by the owner of the process.
LIMIT_S = 1.0
# No right answer is longer; the parser's time grows faster than its input.
MAX_CHARS = 400
MAX_DEPTH = 30

_WRITTEN = r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*"
_TEXT = re.compile(_WRITTEN + r"\{([^{}]*)\}")
_WORDS = re.compile(r"[^\W\d_]+(?:[\s'-]+[^\W\d_]+)*")
_UNIT = re.compile(_WRITTEN + r"\{(?:[^{}]|\{[^{}]*\})*\}(?:\s*\^\s*\{?\s*\d\s*\}?)?")
_THOUSANDS = re.compile(r"(?<=\d)(?:\\[,!;]|,\\!|\{,\})\s*(?=\d{3}(?!\d))")
_SPACING = re.compile(r"(?<!\\)\\[,;:!>\s]|\\(?:quad|qquad|left|right|displaystyle)(?![A-Za-z])|~|(?<!\\)\$")
_NAMED = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?\s*=\s*([^=<>,;]+|[-+−]?\d{1,3}(?:,\d{3})+)")
_BASED = re.compile(r"([0-9A-Za-z]+)_\{?(\d+)\}?")
_POWER_OF_TEN = r"10\s*(?:\^|\*\*)\s*(?:\{\s*[-+]?\d+\s*\}|[-+]?\d+)"
_SCIENTIFIC = re.compile(rf"(?<![\^{{\d.])(\d[\d.,]*)\s*(?:\\times|\\cdot|\*|×|x)\s*{_POWER_OF_TEN}")
_NUMERAL = r"(?:\d|\.\d)"
_FRACTION = re.compile(rf"\\[dtc]?frac|{_NUMERAL}[\s}})]*(?:/|÷|\\div|\\over)")
# Work left undone: a named operation, or one between two numbers. A power of ten is notation, other powers are work.
_UNDONE = re.compile(
    r"\\(?:sum|prod|int|iint|oint|lim|binom|dbinom|tbinom|gcd|lcm|det|max|min|sqrt|log|ln|lg|exp|sin|cos|tan|cot|sec|csc"
    r"|arcsin|arccos|arctan|lfloor|lceil|floor|ceil|[lr]?vert|begin|bmod|pmod|mod|over(?!line)|choose)(?![A-Za-z])|\|"
    rf"|{_NUMERAL}[\s)}}]*(?:!|\^(?!\s*\{{?\s*\\circ)|\*\*)"
    rf"|{_NUMERAL}[\s)}}]*(?:[-+−–*×·∗⋅∙•⁎÷]|\\times|\\cdot|\\div)[\s({{]*[-+]?(?:{_NUMERAL}|\\[dtc]?frac)"
    rf"|\)\s*\(|\)\s*{_NUMERAL}|{_NUMERAL}\s*\([\s-]*{_NUMERAL}"
)
_WORK = re.compile(r"[-+−–*×·∗⋅∙•⁎÷/^]|\\(?:times|cdot|div|[dtc]?frac)(?![A-Za-z])")
_DIVIDED = re.compile(r"/|÷|\\(?:div|[dtc]?frac)(?![A-Za-z])")
_VARIABLE = re.compile(r"\\(?!(?:[dtc]?frac|times|cdot|div|circ|boxed)(?![A-Za-z]))[A-Za-z]+|(?<![\\A-Za-z])[A-Za-z]")
# Behind it stands what something is said to be; in the bounds of a sum it says nothing.
_SAID = re.compile(r"=(?![^{}]*\})|≈|\\approx(?![A-Za-z])|^\s*[A-Za-z]\s*\\in(?![A-Za-z])")
# A sign, degrees and a bare unit do not count as work.
_AROUND = re.compile(r"^\s*[-+−–]|\s*\^\s*\{?\s*\\circ\s*\}?(?:\s*[CF]\s*$)?|(?<=[\d})])(?:\s+[A-Za-z]+)+\s*$")
_UNEQUAL = re.compile(r"\\neq?(?![A-Za-z])|≠|!=|<>")
_CALCULATION = re.compile(r"[\d\s.,(){}+*/^−–-]*")
_NUMBER = re.compile(r"[-+−]?\s*(?:\d[\d,\s]*(?:\.\d+)?|\.\d+|\\[dtc]?frac\{-?\d+\}\{\d+\}|\\[dtc]?frac\d\d|\d+/\d+)")
_INTEGER = re.compile(r"[-+−]?\s*\d[\d,\s]*")
# Numbers that nobody can write out: towers of powers, and powers and factorials of large ones.
_HUGE = re.compile(
    r"\d[\s)}]*(?:\^|\*\*)[\s({]*-?\d+[\s)}]*(?:\^|\*\*|!)|\d[\s)}]*(?:\^|\*\*)[\s({]*-?\d{5,}|\d{5,}[\s)}]*!|![\s)}]*!"
)


class _OutOfTime(BaseException):
    """Not an Exception: parsers and simplifiers catch those."""


def same(right: str, answer: str) -> bool:
    """Whether an answer is the right one. TaskError if that takes too long to tell."""
    right, answer = _bare(right), _bare(answer)
    if not answer or len(answer) > MAX_CHARS or _depth(answer) > MAX_DEPTH:
        return False
    if answer == right:
        return True
    if (word := _as_words(right)) is not None:
        return _as_words(answer, also_bare=True) == word
    if "=" not in right and (named := _NAMED.fullmatch(answer)):
        answer = named[1].strip()
    if _HUGE.search(answer) and not _HUGE.search(right):
        return False
    if _UNEQUAL.search(answer) and not _UNEQUAL.search(right):
        return False
    if "=" not in right and any(_CALCULATION.fullmatch(side) for side in answer.split("=")[:-1]):
        return answer.startswith("=") and same(right, answer[1:])  # `3 = 2` says nothing of 2
    right = _in_order(right, answer)
    if not _same_base(right, answer) or _is_undone(right, answer):
        return False
    load_parser()
    with _limited():
        return _verified(right, answer)


def _bare(text: str) -> str:
    text = _SPACING.sub(" ", _THOUSANDS.sub("", text.strip())).strip()
    text = re.sub(r"(?<=\d)\s+i(?![A-Za-z])", "i", text)
    return text.rstrip(".").strip() if not text.endswith("..") else text


def _depth(text: str) -> int:
    depth = most = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        most = max(most, depth)
    return most


def _as_words(text: str, *, also_bare: bool = False) -> str | None:
    """A text that is made of words, in small letters; None for mathematics, which a few bare letters are too."""
    plain = _TEXT.sub(r" \1 ", text)
    plain = plain.strip().strip("()").strip()
    if not _WORDS.fullmatch(plain):
        return None
    letters = max(len(word) for word in plain.split())
    if plain != text.strip().strip("()").strip() or letters >= 4 or also_bare or plain.lower() in _SHORT_WORDS:
        return " ".join(plain.lower().split())
    return None


_SHORT_WORDS = frozenset(
    {"yes", "no", "odd", "one", "two", "six", "ten", "mon", "tue", "wed", "thu", "fri", "sat", "sun"}
)


def _same_base(right: str, answer: str) -> bool:
    """Whether digits stand in the same base: math-verify reads them and not the base. One that is not said is right."""
    known, given = _BASED.fullmatch(right), _BASED.fullmatch(answer)
    return given is None or not given[1][0].isdigit() or given[2] == (known[2] if known else "10")


def _in_order(right: str, answer: str) -> str:
    """Values of different names as a tuple, where the answer has no names: math-verify takes both for sets."""
    named = [_NAMED.fullmatch(part.strip()) for part in right.split(",")]
    names = {part.partition("=")[0].strip() for part in right.split(",")}
    if "=" in answer or len(named) < 2 or not all(named) or len(names) < len(named):
        return right
    return f"({', '.join(found[1].strip() for found in named if found)})"


def _is_undone(right: str, answer: str) -> bool:
    """Whether the answer is a calculation where the right one is a number."""
    plain = _UNIT.sub("", right).strip()
    if not _NUMBER.fullmatch(plain):
        return False
    answer = _SAID.split(answer)[-1]
    if "\\operatorname" in answer or len(re.findall(_POWER_OF_TEN, answer)) > 1:
        return True
    if re.search(rf"\0\s*(?:{_WORK.pattern})[^\0]*\d", _UNIT.sub("\0", answer)):
        return True
    answer = _SCIENTIFIC.sub(r"\1", _UNIT.sub("", answer))
    answer = re.sub(rf"(?<![\d.]){_POWER_OF_TEN}", "1", answer)
    if _UNDONE.search(answer) is not None:
        return True
    value = _AROUND.sub("", answer)
    if len(_DIVIDED.findall(value)) > 1 or (_VARIABLE.search(value) and _WORK.search(value)):
        return True
    return _INTEGER.fullmatch(plain) is not None and _FRACTION.search(answer) is not None


@cache
def load_parser() -> None:
    """Imports the parser and parses once, before any limit: that takes seconds, and is not the first answer's fault."""
    _verified("x^2", "\\frac{x}{2}")


@contextmanager
def _limited() -> Iterator[None]:
    """Ends what takes too much processor time, where signals can: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGVTALRM, stop)
    # Again and again: sympy's caches and destructors may swallow one.
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S, 0.1)
    try:
        yield
    except _OutOfTime:
        raise TaskError(f"takes more than {LIMIT_S:g} s to compare with the right one") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _verified(right: str, answer: str) -> bool:
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    known, given = (_parsed(text) for text in (right, answer))
    return bool(math_verify.verify(known, given, allow_set_relation_comp=True, timeout_seconds=None))


def _parsed(text: str) -> list[Any]:
    """What math-verify reads, with i for the imaginary unit. Its own time limit is off: it is this process's alarm."""
    import math_verify
    import sympy

    found = math_verify.parse(f"\\boxed{{{text}}}", parsing_timeout=None)
    return [item.subs(_units_in(item)) if isinstance(item, sympy.Expr) else item for item in found]


def _units_in(expression: Any) -> dict[Any, Any]:
    import sympy

    return {symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i"}
