"""A task source of one's own: sort the letters of a word. Training on it takes about a minute on two cores.

    python examples/sorting.py               # shows some tasks
    shoal run examples/sorting.toml          # trains on them

`task(index)` must return the same task each time: workers and validators draw it again on other machines. `score` says
what an answer earns. A name in the config's `options` is an argument of `task`.
"""

from random import Random
from typing import Any


def task(index: int, longest: int = 6) -> dict[str, Any]:
    rng = Random(index)
    text = "".join(rng.choices("abcdefgh", k=rng.randint(3, longest)))
    return {"question": f"Sort: {text}", "answer": "".join(sorted(text))}


def score(entry: dict[str, Any], answer: str) -> float:
    return float(answer.strip() == entry["answer"])


def main() -> None:
    for index in range(3):
        entry = task(index)
        earned = score(entry, entry["answer"]), score(entry, entry["question"])
        print(f"{entry['question']} -> {entry['answer']}: the right answer earns {earned[0]}, the question {earned[1]}")


if __name__ == "__main__":
    main()
