"""How busy the engine is while tools take 200 ms, against tools that take nothing.

Measured twice: with all episodes open, so that those whose tools are at work leave their places to others, as a worker
has it that holds more leases than its batch; and with 64 episodes open, a new one only when another has ended.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from shoal.config import TaskConfig, TurnsConfig
from shoal.generate.engine import Completion, Engine, Request
from shoal.generate.environment_calls import WAIT_S, EnvironmentCalls
from shoal.generate.episodes import Episode
from shoal.generate.flights import Answer, Flight
from shoal.generate.torch_engine import TorchEngine
from shoal.models.chat import Turns
from shoal.models.load import Policy
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import Host

TOOL = """
import time

def reset(seed, seconds):
    return {"prompt": f"{seed % 90 + 10}*{seed % 89 + 10}?", "seconds": seconds, "steps": 0}

def step(state, action):
    time.sleep(state["seconds"])
    state["steps"] += 1
    return None if state["steps"] == 4 else str(state["steps"])

def score(state):
    return 1.0
"""
LATENCY_S = 0.2
AT_ONCE = 64
LIMITS = TurnsConfig(max=4, tokens=16)
LONGEST = 96


class TimedEngine(TorchEngine):
    """Counts the seconds in which it computes."""

    busy_s = 0.0

    def step(self) -> list[Completion]:
        began = time.monotonic()
        try:
            return super().step()
        finally:
            self.busy_s += time.monotonic() - began


def busy_shares(policy: Policy, folder: Path, episodes: int) -> dict[str, float]:
    """Shares of the wall time in which the engine computes, with tools that take 200 ms and with such that take none:
    with all episodes open, and with 64, of which a quarter as many are played. The engine's batch is 64."""
    path = folder / "tool.py"
    path.write_text(TOOL)
    _share(policy, path, 0.0, AT_ONCE, AT_ONCE)  # first calls are slow
    few = max(AT_ONCE, episodes // 4)
    return {
        "idle_free": _share(policy, path, 0.0, episodes, episodes),
        "busy": _share(policy, path, LATENCY_S, episodes, episodes),
        "idle_free_64_open": _share(policy, path, 0.0, few, AT_ONCE),
        "busy_64_open": _share(policy, path, LATENCY_S, few, AT_ONCE),
    }


def _share(policy: Policy, path: Path, seconds: float, episodes: int, most_open: int) -> float:
    engine = TimedEngine(policy, max_batch=AT_ONCE, max_len=LONGEST + 32, temperature=1.0)
    turns, line = Turns.of(policy), TaskConfig(source=f"environment/{path}", options={"seconds": seconds})
    with Scorer([line], turns=LIMITS) as judge:
        tasks = [judge.tasks.task("train", index) for index in range(episodes)]
        judge.play("train", tasks[0], ["a"]).result()  # starts the process
        answers: list[Answer] = [
            Episode.of(Request(tuple(policy.encode_task(task)), 1, number, LONGEST), task, LIMITS, policy, turns)
            for number, task in enumerate(tasks)
        ]
        began = time.monotonic()
        play(engine, answers, judge, most_open)
        return engine.busy_s / (time.monotonic() - began)


def play(engine: Engine, answers: Sequence[Answer], host: Host, most_open: int) -> None:
    """Plays all episodes to their end, at most so many of them begun and not ended at a time."""
    lease, version = Lease("", "", 0, 0, 0, 0, 0, 0.0), Version(0, "")
    flight, calls, begun = Flight.of(lease, version, list(answers), LONGEST), EnvironmentCalls(host), set[int]()
    while flight.unfinished:
        ended = len(answers) - flight.unfinished
        for number in flight.due(version):  # those that have begun come first: they begin in order
            if number in begun or len(begun) - ended < most_open:
                begun.add(number)
                engine.submit(number, flight.ask(number))
        for piece in engine.step():
            calls.add(flight, piece.key, piece)
        calls.hear(0.0 if engine.running else WAIT_S)
