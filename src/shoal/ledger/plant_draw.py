"""Where honeypots go: pseudorandom positions among submissions that only the coordinator can compute."""

from typing import Literal

from shoal.ledger.merkle import keccak_words

# A validator that accepts everything is out after 3 or 4 bad samples, which come within 50 submissions.
EVERY = 10


def planted(secret: bytes, number: int, every: int = EVERY) -> Literal["a", "r", "."]:
    """Whether the run's submission of this number is to be a planted good one, a bad one, or neither.

    Of each `every` in a row exactly one is good and one is bad, so that no chance lets a liar through.
    """
    block, place = divmod(number, every)
    draw = int.from_bytes(keccak_words(secret, block))
    good, bad = draw % every, (draw // every) % (every - 1)
    if place == good:
        return "a"
    return "r" if place == (bad if bad < good else bad + 1) else "."
