"""Environments written for `verifiers` 0.3: single-turn ones, loaded by name, with their rubric as the reward."""

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from shoal.errors import TaskError
from shoal.extras import require
from shoal.tasks.source import Score, Split, Task
from shoal.tasks.sources.table import Rows


class Environment(Rows):
    """A single-turn environment as a source. What it needs of a network it must have when it is loaded."""

    def __init__(
        self, environment: str, options: Mapping[str, Any], *, name: str, template: str = "{question}"
    ) -> None:
        self._environment = _load(environment, options)
        super().__init__(name, _rows(self._environment), template=template)
        self._loop = asyncio.new_event_loop()

    def task(self, split: Split, index: int) -> Task:
        """Without an answer to show: what a rubric compares with need not be one."""
        return replace(super().task(split, index), answer=None)

    def score(self, task: Task, answer: str) -> Score:
        """The rubric's weighted sum, with each of its functions as a part."""
        entry = task.entry
        state: dict[str, Any] = {
            "prompt": entry["messages"],
            "completion": [{"role": "assistant", "content": answer}],
            "answer": entry.get("answer", ""),
            "info": entry["info"],
            "task": entry.get("task", "default"),
            "trajectory": [],
            "timing": {},
        }
        state["input"] = {key: state[key] for key in ("prompt", "answer", "info", "task")}
        with _errors_of(self._environment.rubric) as errors:
            self._loop.run_until_complete(self._environment.rubric.score_rollout(state))
        if errors:
            raise TaskError(f"its rubric said: {errors[0]}"[:400])
        return Score(float(state["reward"]), parts={str(k): float(v) for k, v in state["metrics"].items()})


@contextmanager
def _errors_of(rubric: Any) -> Iterator[list[str]]:
    """A rubric whose function raises gives 0 and a line in its log; that line is all there is to know it by."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    loggers: set[Any] = {getattr(part, "logger", None) for part in (rubric, *getattr(rubric, "rubrics", ()))} - {None}
    listener = Listener(logging.ERROR)
    for logger in loggers:
        logger.addHandler(listener)
    try:
        yield said
    finally:
        for logger in loggers:
            logger.removeHandler(listener)


def _load(name: str, options: Mapping[str, Any]) -> Any:
    where = f"task source verifiers/{name}"
    require("verifiers", where, TaskError)
    import verifiers

    if not hasattr(verifiers, "load_environment"):
        raise TaskError(
            f"{where}: single-turn environments with load_environment are of verifiers 0.3, and here is "
            f"{verifiers.__version__}; for a taskset of verifiers.v1 write environment/verifiers/{name}, for the old "
            "one run: pip install 'verifiers>=0.3,<0.4'"
        )
    try:
        environment = verifiers.load_environment(name, **options)
    except Exception as error:  # an environment is foreign code
        raise TaskError(f"{where}: cannot be loaded: {type(error).__name__}: {error}"[:500]) from error
    if not isinstance(environment, verifiers.SingleTurnEnv):
        raise TaskError(
            f"{where}: is a {type(environment).__name__}; of verifiers 0.3 only single-turn environments are "
            f"supported; write one with turns or tools for verifiers.v1 and name it environment/verifiers/{name}"
        )
    return environment


def _rows(environment: Any) -> list[dict[str, Any]]:
    """Its train and eval sets, each row with the prompt as one text."""
    rows = [_row(row, "train") for row in environment.get_dataset()]
    if getattr(environment, "eval_dataset", None) is not None:
        rows += [_row(row, "heldout") for row in environment.get_eval_dataset()]
    else:
        for row in rows:
            del row["split"]
    return rows


def _row(row: Mapping[str, Any], split: Split) -> dict[str, Any]:
    info = row.get("info") or {}
    messages: Sequence[Mapping[str, Any]] = row["prompt"]
    return {
        "question": "\n\n".join(str(message["content"]) for message in messages),
        "messages": [dict(message) for message in messages],
        "answer": row.get("answer", ""),
        "info": json.loads(info) if isinstance(info, str) else info,
        "task": row.get("task", "default"),
        "split": split,
    }
