"""Stricter scorers for reasoning-gym's generators that pay for wrong answers.

`game_of_life_halting` takes any text for true, `puzzle24` takes the solution of any other puzzle, and `coin_flip` takes
every probability that begins as the right one does, which 0 does.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

# As in coin_flip's own first comparison.
PROBABILITY_TOLERANCE = 1e-4


def _same_word(answer: str, entry: Mapping[str, Any]) -> bool:
    return answer.strip().lower() == str(entry["answer"]).strip().lower()


def _uses_the_numbers(answer: str, entry: Mapping[str, Any]) -> bool:
    used = sorted(int(number) for number in re.findall(r"\d+", answer))
    return used == sorted(entry["metadata"]["numbers"])


def _close(answer: str, entry: Mapping[str, Any]) -> bool:
    try:
        off = Fraction(answer.replace(",", "")) - Fraction(str(entry["answer"]).replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return False
    return abs(off) <= PROBABILITY_TOLERANCE


FIXES: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "game_of_life_halting": _same_word,
    "puzzle24": _uses_the_numbers,
    "coin_flip": _close,
}


def may_be_right(generator: str, answer: str, entry: Mapping[str, Any]) -> bool:
    """Whether the generator's own scorer may be believed about the answer."""
    return generator not in FIXES or FIXES[generator](answer, entry)
