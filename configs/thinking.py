"""Spelling letters backward after some thinking, which counts its own letters and can stop at any of them."""

from random import Random
from string import ascii_lowercase, ascii_uppercase


def task(index):
    rng = Random(index)
    word = "".join(rng.sample(ascii_lowercase, k=rng.randint(3, 4)))
    thought = ascii_uppercase[: rng.randint(0, 26)]
    return {"question": f"Word: {word}\nSpell it backward.", "answer": f"{thought}</think>{word[::-1]}"}


def score(entry, answer):
    """The thinking part of an answer is cut off before it comes here."""
    return float(answer.strip() == entry["answer"].rpartition("</think>")[2])
