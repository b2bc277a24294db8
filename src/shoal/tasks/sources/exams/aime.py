r"""AIME: whether an answer gives the right number, by the rules of lm-eval's tasks `aime24` and `aime25`.

The answer is what stands in the last box; without a box what stands between the first dollar sign and the last;
without those all of it. Answer and target are then brought to one notation and compared as text, so `27.0` is not 27.
Where the notation of one of them cannot be read, they are compared as they stand.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.errors import TaskError

ASK = "\nReason step by step, and put the final answer, a whole number from 0 to 999, in \\boxed{}."
BARE_BOX, BOX, FRAMED_BOX = "\\boxed ", "\\boxed", "\\fbox"
UNIT = "\\text{ "
# Notation that says nothing, in the order in which it is replaced.
NOTHING = (
    *(("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac")),
    *(("\\left", ""), ("\\right", ""), ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", "")),
)
ONE_FRACTION = re.compile(r"[^/]*/[^/]*")


class Unreadable(ValueError):
    """Notation that has no normal form."""


def entries(rows: Iterable[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    """Rows with a problem and a number. Copies of the exams differ in capitals and in zeros before the number."""
    found = []
    for number, row in enumerate(rows):
        small = {str(name).lower(): value for name, value in row.items()}
        if small.get("problem") is None or small.get("answer") is None:
            raise TaskError(f"{where}: row {number} has no problem and answer; it has {', '.join(map(str, row))}")
        answer = small["answer"]
        target = str(answer).strip()
        if not target or not isinstance(answer, str | int) or isinstance(answer, bool):
            raise TaskError(
                f"{where}: row {number}: answer {answer!r:.40} is neither a whole number nor text; correct it"
            )
        if target.isascii() and target.isdigit():
            target = target.lstrip("0") or "0"
        found.append({"question": str(small["problem"]) + ASK, "answer": f"\\boxed{{{target}}}", "target": target})
    return found


def score(entry: Mapping[str, Any], answer: str) -> float:
    return float(is_right(str(entry["target"]), answer))


def is_right(target: str, answer: str) -> bool:
    given = final(answer)
    try:
        return normal(given) == normal(target)
    except Unreadable:
        return given == target


def final(answer: str) -> str:
    """The part of an answer that is compared."""
    boxed = _last_box(answer)
    if boxed is not None:
        return boxed
    first, last = answer.find("$"), answer.rfind("$")
    return answer[first + 1 : last] if first < last else answer


def _last_box(text: str) -> str | None:
    r"""What the last box holds. `\boxed 5` without braces holds all up to the next dollar sign, and wins."""
    if BARE_BOX in text:
        return text.rpartition(BARE_BOX)[2].partition("$")[0]
    start = text.rfind(BOX)
    start = text.rfind(FRAMED_BOX) if start < 0 else start
    if start < 0:
        return None
    depth = 0
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0 and brace[0] == "}":
            box = text[start : start + brace.end()]
            # Another command than this one, such as \fbox, has no content here.
            return box[len(BOX) + 1 : -1] if box.startswith(BOX + "{") and box.endswith("}") else None
    return None


def normal(text: str) -> str:
    """One notation for what is written in several; Unreadable where a command or fraction is cut short."""
    for written, plain in NOTHING:
        text = text.replace(written, plain)
    if text.count(UNIT) > 1:
        raise Unreadable(text)
    text = text.partition(UNIT)[0].replace("\\%", "")
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    text = "0" + text if text[0] == "." else text
    name, equals, value = text.partition("=")
    if equals and "=" not in value and len(name) <= 2:
        text = value
    text = _braced_fractions(_braced_roots(text).replace(" ", ""))
    return _slashed("\\frac{1}{2}" if text == "0.5" else text)


def _braced_roots(text: str) -> str:
    r"""`\sqrt3` as `\sqrt{3}`."""
    first, *others = text.split("\\sqrt")
    if not all(others):
        raise Unreadable(text)
    return first + "".join("\\sqrt" + (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}") for part in others)


def _braced_fractions(text: str) -> str:
    r"""`\frac12` and `\frac1{2}` as `\frac{1}{2}`; all as it is where one of them has only one digit."""
    first, *others = text.split("\\frac")
    if not all(others):
        raise Unreadable(text)
    found = first
    for part in others:
        if part[0] == "{":
            found += "\\frac" + part
        elif len(part) < 2:
            return text
        else:
            below = part[1:] if part[1] == "{" else f"{{{part[1]}}}{part[2:]}"
            found += f"\\frac{{{part[0]}}}{below}"
    return found


def _slashed(text: str) -> str:
    r"""`1/2` as `\frac{1}{2}`. What stands around a single slash must be whole numbers."""
    if not ONE_FRACTION.fullmatch(text):
        return text
    above, _, below = text.partition("/")
    try:
        numbers = int(above), int(below)
    except ValueError:
        raise Unreadable(text) from None
    return f"\\frac{{{numbers[0]}}}{{{numbers[1]}}}" if text == f"{numbers[0]}/{numbers[1]}" else text
