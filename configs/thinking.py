"""Spelling letters backward after some thinking, whose length has nothing to do with the task."""

from random import Random
from string import ascii_lowercase

LONGEST_THOUGHT = 40


def task(index):
    rng = Random(index)
    word = "".join(rng.choices(ascii_lowercase, k=rng.randint(3, 5)))
    thought = (word * LONGEST_THOUGHT)[: rng.randint(0, LONGEST_THOUGHT)]
    return {"question": f"Backward: {word}", "answer": f"{thought}</think>{word[::-1]}"}


def score(entry, answer):
    """What is left of an answer here stands behind its thinking part."""
    return float(answer.strip() == entry["answer"].rpartition("</think>")[2])
