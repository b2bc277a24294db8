"""Worker pool for evaluation: chunks of tasks measured by one process or several, each with its own model and scorer.

What is measured together is the same however many processes there are, so that not even rounding can tell them apart.
"""

import json
import os
import select
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from queue import Queue
from typing import IO, Any

from pydantic import TypeAdapter

from shoal.config import DeviceName
from shoal.devices import resolve, set_threads
from shoal.errors import ShoalError, TaskError
from shoal.evals.answers import Drawing, answer_tasks
from shoal.models.load import load
from shoal.process import set_defaults
from shoal.subproc import Child, ChildError, say
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import Task
from shoal.tasks.sources.filtered import Header

# As JSON, between processes.
DRAWING = TypeAdapter(Drawing)

# Tasks between two writes: what a stop loses at most, for each process.
CHUNK = 64
MAX_REPLY = 1 << 20
# Right answers, answers, and those that could not be scored.
Counts = tuple[int, int, int]
Measured = dict[int, Counts]


def chunks_of(tasks: Sequence[Task]) -> list[list[int]]:
    """The tasks' indices, so many at a time; a prompt is measured the first time it comes."""
    seen: set[str] = set()
    chunks: list[list[int]] = []
    for begin in range(0, len(tasks), CHUNK):
        chunks.append([])
        for task in tasks[begin : begin + CHUNK]:
            if task.prompt not in seen:
                seen.add(task.prompt)
                chunks[-1].append(task.index)
    return chunks


@contextmanager
def measured(
    header: Header, drawing: Drawing, chunks: Sequence[Sequence[int]], workers: int, device: DeviceName
) -> Iterator[Iterator[Measured]]:
    """What comes of the chunks, in their order."""
    with ExitStack() as stack:
        if workers == 1:
            yield map(stack.enter_context(closing(Measurer(header, drawing, device))).measure, chunks)
        else:
            count = min(workers, len(chunks))
            helpers = [stack.enter_context(closing(_Helper(header, drawing, device))) for _ in range(count)]
            yield _in_order(helpers, chunks)


def _in_order(helpers: "Sequence[_Helper]", chunks: Sequence[Sequence[int]]) -> Iterator[Measured]:
    """An idle worker gets the next chunk, but none far ahead of the others: a stop should lose little."""
    idle, busy = list(helpers), dict[int, tuple[_Helper, int]]()
    found: dict[int, Measured] = {}
    begun = given = 0
    while given < len(chunks):
        while idle and begun < min(len(chunks), given + 2 * len(helpers)):
            helper = idle.pop()
            helper.ask(chunks[begun])
            busy[helper.fileno()] = helper, begun
            begun += 1
        for descriptor in select.select(list(busy), [], [])[0]:
            helper, number = busy.pop(descriptor)
            found[number] = helper.answer()
            idle.append(helper)
        while given in found:
            yield found.pop(given)
            given += 1


class _Helper:
    """A process that measures. Ctrl-C does not reach it; it ends with us, however we end."""

    def __init__(self, header: Header, drawing: Drawing, device: DeviceName) -> None:
        import torch

        self._child = Child([sys.executable, "-P", "-m", "shoal.evals.worker_pool"])
        how = {"threads": torch.get_num_threads(), "device": device}
        self._say({"header": header.to_json(), "drawing": DRAWING.dump_python(drawing, mode="json"), **how})

    def fileno(self) -> int:
        return self._child.fileno()

    def ask(self, chunk: Sequence[int]) -> None:
        self._say(list(chunk))

    def answer(self) -> Measured:
        try:
            found = self._child.receive(max_bytes=MAX_REPLY)
        except ChildError as error:
            raise self._lost(error) from None
        if "error" in found:
            raise TaskError(str(found["error"]))
        return {int(index): (counts[0], counts[1], counts[2]) for index, counts in found.items()}

    def close(self) -> None:
        self._child.close()

    def _say(self, message: object) -> None:
        try:
            self._child.send([message])
        except ChildError as error:
            raise self._lost(error) from None

    def _lost(self, error: ChildError) -> TaskError:
        return TaskError(
            f"filter: a process that measures {error}{self._child.last_words()}; if it ran out of memory give fewer "
            "--workers. The same command goes on"
        )


class Measurer:
    """Model, source and scorer of one process."""

    def __init__(self, header: Header, drawing: Drawing, device: DeviceName) -> None:
        self._drawing = drawing
        self._policy = load(Path(header.model), device=resolve(device))
        self._source = build_source(header.tasks)
        self._judge = Scorer(header.tasks)

    def measure(self, chunk: Sequence[int]) -> Measured:
        tasks = [self._source.task("train", index) for index in chunk]
        if not tasks:
            return {}
        answered = answer_tasks(self._policy, tasks, self._judge, "train", self._drawing)
        return {one.task.index: (one.solved, len(one.scores), one.failed) for one in answered}

    def close(self) -> None:
        self._judge.close()


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """In a process of its own: measures one chunk per line, and is gone as soon as nobody can ask any more."""
    spec = json.loads(requests.readline())
    asked: Queue[list[int]] = Queue()

    def listen() -> None:
        for line in requests:
            asked.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    set_threads(spec["threads"])
    measurer: Measurer | None = None
    while True:
        chunk = asked.get()
        try:
            header, drawing = Header.from_json(spec["header"]), DRAWING.validate_python(spec["drawing"])
            measurer = measurer or Measurer(header, drawing, spec["device"])
            reply: Mapping[Any, object] = measurer.measure(chunk)
        except ShoalError as error:
            reply = {"error": str(error)}
        say(replies, reply)


if __name__ == "__main__":
    set_defaults()
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not be read as a reply
    serve(sys.stdin.buffer, own)
