"""A grid maze: the policy says n, s, e or w, sees where it is and which ways are open, and looks for the exit."""

import random
from typing import Any

WAYS = {"n": (0, -1), "s": (0, 1), "e": (1, 0), "w": (-1, 0)}
BACK = {"n": "s", "s": "n", "e": "w", "w": "e"}
MAX_SIZE = 100


def reset(seed: int, size: int = 3) -> dict[str, Any]:
    if not 2 <= size <= MAX_SIZE:
        raise ValueError(f"options.size = {size}; must be 2 to {MAX_SIZE}")
    rng, open_ = random.Random(seed), {(x, y): set[str]() for x in range(size) for y in range(size)}
    path, seen = [(0, 0)], {(0, 0)}
    while path:  # a random spanning tree, by depth first
        x, y = path[-1]
        free = [w for w, (dx, dy) in WAYS.items() if (x + dx, y + dy) in open_ and (x + dx, y + dy) not in seen]
        if not free:
            path.pop()
            continue
        way = rng.choice(free)
        there = (x + WAYS[way][0], y + WAYS[way][1])
        open_[x, y].add(way)
        open_[there].add(BACK[way])
        seen.add(there)
        path.append(there)
    state = {"open": open_, "at": (0, 0), "exit": (size - 1, size - 1)}
    return state | {"prompt": f"maze {seed % 100000}: exit {size - 1},{size - 1}; {_seen(state)}"}


def step(state: dict[str, Any], action: str) -> str | None:
    way = action.strip()
    if way not in state["open"][state["at"]]:
        return "wall"
    state["at"] = tuple(a + b for a, b in zip(state["at"], WAYS[way], strict=True))
    return None if state["at"] == state["exit"] else _seen(state)


def score(state: dict[str, Any]) -> float:
    return float(state["at"] == state["exit"])


def solve(state: dict[str, Any]) -> str:
    ways, todo = {state["at"]: ""}, [state["at"]]
    for x, y in todo:
        for way in sorted(state["open"][x, y]):
            there = (x + WAYS[way][0], y + WAYS[way][1])
            if there not in ways:
                ways[there] = ways[x, y] + way
                todo.append(there)
    return ways[state["exit"]][0]


def _seen(state: dict[str, Any]) -> str:
    x, y = state["at"]
    return f"at {x},{y} open {''.join(sorted(state['open'][state['at']]))}"
