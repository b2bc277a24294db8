"""Environments of `verifiers` (0.4 and later, `verifiers.v1`): a taskset, its environment and a harness for each seat.

The package runs its own episode, with its interception server, limits, tools and rewards, and finds the policy at our
endpoint. One event loop in a thread of its own runs all episodes of this process.
"""

import asyncio
import itertools
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any

from shoal.errors import TaskError
from shoal.extras import require
from shoal.tasks.environments.harness.harness_environment import Address
from shoal.tasks.source import Score

# Of a taskset without end.
TASKS = 1000
START_S = 60.0


class VerifiersPlayer:
    """Plays the tasks of a taskset; a seed stands for one of them."""

    def __init__(self, name: str, options: Mapping[str, Any], where: str) -> None:
        require("verifiers", where, TaskError)
        if not _has_v1():
            raise TaskError(f"{where}: needs verifiers 0.4 or later; run: pip install 'shoal-rl[verifiers]'")
        import verifiers.v1 as vf

        self._vf, self._where = vf, where
        options = dict(options)
        count = options.pop("tasks", TASKS)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise TaskError(f"{where}: options.tasks = {count!r}; must be a whole number of at least 1")
        try:
            self._environment = vf.load_environment(_config(vf, name, options, where))
            taskset = self._environment.taskset
            self._tasks = list(taskset if taskset.bounded else itertools.islice(iter(taskset), count))
        except TaskError:
            raise
        except Exception as error:  # an environment is foreign code
            raise TaskError(f"{where}: cannot be loaded: {type(error).__name__}: {error}"[:500]) from error
        if not self._tasks:
            raise TaskError(f"{where}: its taskset has no tasks")
        _check_programs(vf, self._environment, where)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._serving = AsyncExitStack()

    def number(self, seed: int) -> int:
        return seed % len(self._tasks)

    def play(self, seed: int, at: Address) -> "Future[float | Score]":
        task = self._tasks[self.number(seed)]
        return asyncio.run_coroutine_threadsafe(self._episode(task, at), self._running())

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="verifiers", daemon=True).start()
                asyncio.run_coroutine_threadsafe(self._serve(), loop).result(START_S)
                self._loop = loop
            return self._loop

    def close(self) -> None:
        """Ends the tool servers and the loop; a process that ends takes them with it in any case."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(START_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    async def _end(self) -> None:
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._serving.aclose()

    async def _serve(self) -> None:
        """What all episodes share, the package's interception server and tools, as long as this process lives."""
        await self._serving.enter_async_context(self._environment.serving())

    async def _episode(self, task: Any, at: Address) -> Score:
        vf = self._vf
        # The package reads API keys from environment variables, and there is one key per episode.
        client = vf.EvalClientConfig(base_url=at.keyed_url, api_key_var="SHOAL_NO_KEY")
        episode = await self._environment.run_episode(task, vf.ModelContext(model=at.model, client=client))
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if not episode.ok:
            said = f"{errors[-1].type}: {errors[-1].message}" if errors else "its traces are not complete"
            raise TaskError(f"{self._where}: its episode failed: {said}"[:400])
        if late := next((trace for trace in episode.traces if trace.is_timeout), None):
            # The package scores what there is; on a faster machine, or with a faster policy, there would be more.
            raise TaskError(f"{self._where}: its time was over ({late.stop_condition})")
        played = [trace for trace in episode.traces if trace.agent.trainable]
        parts = {name: reward.score for trace in played for name, reward in trace.rewards.items() if reward is not None}
        return Score(float(sum(trace.reward for trace in played)), parts=parts)


def _has_v1() -> bool:
    import importlib.metadata

    major, minor = importlib.metadata.version("verifiers").split(".")[:2]
    return (int(major), int(minor)) >= (0, 4)


def _config(vf: Any, name: str, options: dict[str, Any], where: str) -> Any:
    """The environment's config: `options` are its fields. A seat without a harness gets the chat loop of this process,
    and one without a runtime runs on this machine."""
    if "id" in options.get("taskset", {}):
        raise TaskError(f"{where}: options.taskset.id is the source's name; leave it out")
    tree = {**options, "taskset": {**options.get("taskset", {}), "id": name}}
    kind = vf.env_config_type(name, str(options.get("id", "")))
    own_harness = vf.default_harness_id(name)
    for seat, field in kind.model_fields.items():
        if isinstance(field.default, vf.AgentConfig):
            tree[seat] = {**_pinned(field.default), **tree.get(seat, {})}
            tree[seat].setdefault("runtime", {"type": "subprocess"})
            if own_harness == "bash":
                from shoal.tasks.environments.harness.verifiers_chat import CHAT

                tree[seat].setdefault("harness", {"id": CHAT})
    return vf.resolve_env_config(tree)


def _pinned(default: Any) -> dict[str, Any]:
    """What an environment's author has set for a seat."""
    found: dict[str, Any] = default.model_dump(exclude_unset=True, exclude_none=True)
    return found


def _check_programs(vf: Any, environment: Any, where: str) -> None:
    """A policy must not run programs on this machine, outside any sandbox."""
    for seat, spec in environment.config:
        if not isinstance(spec, vf.AgentConfig) or not isinstance(spec.runtime, vf.SubprocessConfig):
            continue
        harness = vf.load_harness(
            spec.harness if spec.harness is not None else vf.default_agent_harness(environment.config.taskset.id)
        )
        if harness.EXECUTES_CODE:
            raise TaskError(
                f"{where}: harness {harness.config.id!r} of seat {seat!r} lets the policy run programs on this "
                f'machine; take a container, options.{seat}.runtime = {{ type = "docker" }}, or another harness'
            )
