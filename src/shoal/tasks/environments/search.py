"""A search over a local corpus: the policy looks words up, is shown the line that has most of them, and answers.

`corpus` is a JSONL file with `question`, `answer` and `text` per line; without one a small corpus is made from the
seed: who lives where, in which the answer stands two lines apart.
"""

import random
from functools import cache
from pathlib import Path
from typing import Any

from shoal.errors import TaskError
from shoal.files import parse_json

NAMES = ("ada", "bo", "cy", "dee", "eli", "fay", "gus", "hal", "ivy", "jo", "kit", "lou", "max", "ned", "ona", "pip")
TOWNS = ("rome", "oslo", "lima", "bern", "cork", "graz", "kiel", "nice")


def reset(seed: int, corpus: Path | None = None) -> dict[str, Any]:
    rng = random.Random(seed)
    if corpus is not None:
        rows = _rows(corpus)
        question, answer, _ = rows[seed % len(rows)]
        return {"prompt": question, "lines": [text for _, _, text in rows], "answer": answer, "said": None}
    friends = rng.sample(NAMES, len(NAMES))
    towns = {name: rng.choice(TOWNS) for name in friends}
    pairs = dict(zip(friends[::2], friends[1::2], strict=True))
    lines = [f"{a} visits {b}" for a, b in pairs.items()] + [f"{b} lives in {towns[b]}" for b in pairs.values()]
    who = friends[0]
    prompt = f"{seed % 9973}: where is the friend that {who} visits?"
    return {"prompt": prompt, "lines": lines, "answer": towns[pairs[who]], "who": who, "seen": "", "said": None}


def step(state: dict[str, Any], action: str) -> str | None:
    if action.startswith("="):
        state["said"] = action[1:].strip()
        return None
    words = set(action.lower().split()[:16])
    hits = [len(words & set(line.lower().split())) for line in state["lines"]]
    best = max(hits)
    state["seen"] = state["lines"][hits.index(best)] if best else "nothing"
    return str(state["seen"])


def score(state: dict[str, Any]) -> float:
    return float(state["said"] == state["answer"])


def solve(state: dict[str, Any]) -> str | None:
    if "who" not in state:
        return None
    match state["seen"].split():
        case [_, "visits", friend]:
            return f"{friend} lives"
        case [_, "lives", "in", town]:
            return f"={town}"
    return f"{state['who']} visits"


@cache
def _rows(corpus: Path) -> list[tuple[str, str, str]]:
    """Question, answer and text of each line of a corpus; TaskError names the first line that has other fields."""
    rows = list[tuple[str, str, str]]()
    for number, line in enumerate(corpus.read_text("utf-8").split("\n"), 1):  # strings may hold other line ends
        match _parsed(line) if line.strip() else "":
            case "":
                pass
            case {"question": str() as question, "answer": str() | int() | float() as answer, "text": str() as text}:
                rows.append((question, str(answer), text))
            case _:
                raise TaskError(
                    f"{corpus.name} line {number}: {line[:80]!r}; must be a JSON object with question, answer and text"
                )
    if not rows:
        raise TaskError(f"{corpus.name}: has no lines; a corpus of environment/search needs at least one")
    return rows


def _parsed(line: str) -> Any:
    try:
        return parse_json(line)
    except ValueError:
        return None
