"""A text game: doors and keys. A door opens with the key of its colour, and behind the last one is the treasure."""

import random
from typing import Any

COLOURS = ("red", "blue", "green", "gold")


def reset(seed: int, doors: int = 2) -> dict[str, Any]:
    if doors < 1:
        raise ValueError(f"options.doors = {doors}; must be at least 1")
    rng = random.Random(seed)
    order = [rng.choice(COLOURS) for _ in range(doors)]
    keys = {room: rng.sample(COLOURS, 2) for room in range(doors)}
    for room, colour in enumerate(order):
        keys[room] = list(dict.fromkeys([colour, *keys[room]]))[:2]
        rng.shuffle(keys[room])
    return {
        "prompt": f"room {seed % 997}: {_seen(order, keys, 0)}",
        "order": order,
        "keys": keys,
        "room": 0,
        "held": "",
    }


def step(state: dict[str, Any], action: str) -> str | None:
    verb, _, what = action.strip().partition(" ")
    order, keys, room = state["order"], state["keys"], state["room"]
    if verb == "take" and what in keys[room]:
        state["held"] = what
        return f"you hold {what}"
    if verb != "open":
        return "nothing happens"
    if state["held"] != order[room]:
        return "it is locked"
    state["room"], state["held"] = room + 1, ""
    return None if room + 1 == len(order) else _seen(order, keys, room + 1)


def score(state: dict[str, Any]) -> float:
    return float(state["room"] == len(state["order"]))


def solve(state: dict[str, Any]) -> str:
    wanted = state["order"][state["room"]]
    return "open" if state["held"] == wanted else f"take {wanted}"


def _seen(order: list[str], keys: dict[int, list[str]], room: int) -> str:
    return f"a {order[room]} door, keys {' '.join(keys[room])}"
