"""A harness of one's own: a Python file with `play`, which asks the policy as it would ask any server.

`play(seed, base_url, api_key, model, **options)` plays the episode of a seed and returns what it earns. It may be a
coroutine function. Each episode is played in a thread of its own.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import ModuleType
from typing import Any

from shoal.errors import TaskError
from shoal.tasks.environments.harness.harness_environment import Address
from shoal.tasks.source import Score


class PythonPlayer:
    """Plays with a module's `play`."""

    def __init__(self, module: ModuleType, options: Mapping[str, Any], where: str) -> None:
        found = getattr(module, "play", None)
        if not callable(found):
            raise TaskError(f"{where}: has no function play; a harness has play(seed, base_url, api_key, model)")
        self._play: Callable[..., Any] = found
        self._options = dict(options)

    def number(self, seed: int) -> int:
        return seed

    def play(self, seed: int, at: Address) -> "Future[float | Score]":
        score: Future[float | Score] = Future()
        threading.Thread(target=self._run, args=(seed, at, score), name=f"harness {seed}", daemon=True).start()
        return score

    def close(self) -> None:
        """Nothing is shared by its episodes."""

    def _run(self, seed: int, at: Address, score: "Future[float | Score]") -> None:
        try:
            found = self._play(seed, base_url=at.url, api_key=at.key, model=at.model, **self._options)
            if inspect.iscoroutine(found):
                found = asyncio.run(found)
            score.set_result(found if isinstance(found, Score) else float(found))
        except BaseException as error:  # a harness is foreign code, and its episode has to end with it
            score.set_exception(error)
