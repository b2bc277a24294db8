"""Tasks that need memory over time, each with the accuracy that shortcuts reach without it."""

from collections.abc import Callable

from shoal.errors import FbamError
from shoal.fbam.tasks.frjt import Frjt
from shoal.fbam.tasks.frjt_live import FrjtLive
from shoal.fbam.tasks.interface import Source, Task
from shoal.fbam.tasks.maze import Maze
from shoal.fbam.tasks.s5 import S5
from shoal.fbam.tasks.window import equivalent_window

__all__ = ["S5", "TASKS", "Frjt", "FrjtLive", "Maze", "Source", "Task", "build_task", "equivalent_window"]

TASKS: dict[str, Callable[[], Task]] = {"frjt": Frjt, "frjt-live": FrjtLive, "s5": S5, "maze": Maze}


def build_task(name: str) -> Task:
    if name not in TASKS:
        raise FbamError(f"task {name}: unknown; give one of {', '.join(TASKS)}")
    return TASKS[name]()
