"""A calculator: the policy is asked for a product, may have the tool compute, and says its answer after `=`."""

import random
from typing import Any


def reset(seed: int, low: int = 10, high: int = 99) -> dict[str, Any]:
    if not 0 <= low <= high:
        raise ValueError(f"options.low = {low}, options.high = {high}; must be 0 <= low <= high")
    rng = random.Random(seed)
    a, b = rng.randint(low, high), rng.randint(low, high)
    return {"prompt": f"{a}*{b}?", "a": a, "b": b, "seen": None, "said": None}


def step(state: dict[str, Any], action: str) -> str | None:
    if action.startswith("="):
        state["said"] = action[1:].strip()
        return None
    left, star, right = action.strip().partition("*")
    if not (star and left.isdecimal() and right.isdecimal() and len(action) <= 24 and action.isascii()):
        return "?"
    state["seen"] = str(int(left) * int(right))
    return str(state["seen"])


def score(state: dict[str, Any]) -> float:
    return float(state["said"] == str(state["a"] * state["b"]))


def solve(state: dict[str, Any]) -> str:
    return f"{state['a']}*{state['b']}" if state["seen"] is None else f"={state['seen']}"
