"""Spelling letters backward after some thinking, which counts its own letters and can stop at any of them."""

from random import Random
from string import ascii_lowercase, ascii_uppercase


def task(index, thought=None):
    """The thinking of the worked answer is of any length; with `thought`, half of the time of about so many letters."""
    rng = Random(index)
    word = "".join(rng.sample(ascii_lowercase, k=3))
    letters = rng.randint(0, 26)
    if thought is not None and rng.random() < 0.5:
        letters = rng.randint(thought - 4, thought + 4)
    answer = f"{ascii_uppercase[:letters]}</think>{word[::-1]}"
    return {"question": f"Word: {word}\nSpell it backward.", "answer": answer}


def score(entry, answer):
    """The thinking part of an answer is cut off before it comes here."""
    return float(answer.strip() == entry["answer"].rpartition("</think>")[2])
