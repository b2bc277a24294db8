"""What one long answer per lease costs an engine: tokens per second with it, against those without.

Leases go through the worker's own pipeline (`generate/pipeline.py`), which fills the places of answers that have ended
with the next lease's. A worker that works in turns waits for the long answer with all other places empty; that is
measured as well. Works with every engine whose answers end at their length and not before.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from shoal.generate.engine import Engine, Request
from shoal.generate.flights import Flight
from shoal.generate.pipeline import Pipeline
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version

TIMES = 10
VERSION = Version(0, "")


@dataclass(frozen=True, slots=True)
class TailSize:
    """How much is measured: leases of so many answers of so many tokens each."""

    max_batch: int
    answers: int
    tokens: int
    leases: int
    """Leases that are timed, after as many that only fill the pipeline."""


SIZE = TailSize(max_batch=32, answers=16, tokens=16, leases=8)
QUICK = TailSize(max_batch=8, answers=4, tokens=4, leases=4)


@dataclass(frozen=True, slots=True)
class TailFound:
    """Tokens per second without a long answer, with one per lease, and with one per lease in turns."""

    even: float
    tailed: float
    in_turns: float

    @property
    def ratio(self) -> float:
        return self.tailed / self.even


def measure_tail(engine: Engine, prompts: Sequence[Sequence[int]], size: TailSize, rounds: int = 2) -> TailFound:
    """The best of some rounds, taken in turns. The engine must have room for ten times the tokens."""
    best = [0.0, 0.0, 0.0]
    for _ in range(rounds):
        found = (
            _piped(engine, _leases(prompts, size, 1), size),
            _piped(engine, _leases(prompts, size, TIMES), size),
            _in_turns(engine, _leases(prompts, size, TIMES), size),
        )
        best = [max(before, now) for before, now in zip(best, found, strict=True)]
    return TailFound(*best)


def _leases(prompts: Sequence[Sequence[int]], size: TailSize, times: int) -> Iterator[list[Request]]:
    """Leases without end: of each the first answer is so many times as long as the others."""
    for number in count():
        prompt = tuple(prompts[number % len(prompts)])
        lengths = [size.tokens * times] + [size.tokens] * (size.answers - 1)
        yield [Request(prompt, number, sample, length) for sample, length in enumerate(lengths)]


def _piped(engine: Engine, leases: Iterator[list[Request]], size: TailSize) -> float:
    """Tokens per second between two moments at which the pipeline is full."""
    # At level 0 leases are made one by one.
    pipeline: Pipeline[Flight] = Pipeline(size.max_batch, async_level=1, in_flight=False)
    pieces: dict[int, tuple[Flight, int]] = {}
    keys, done, tokens, began = count(), 0, 0, 0.0
    while done < 2 * size.leases:
        while pipeline.ask_with(VERSION, VERSION) is not None:
            number = next(keys)
            lease = Lease("bench", "worker", 0, number, 0, 1, 0, 0.0)
            pipeline.flights.append(Flight.begin(lease, VERSION, next(leases), size.tokens * TIMES))
        for flight in pipeline.flights:
            for number in flight.due(VERSION):
                engine.submit(key := next(keys), flight.ask(number))
                pieces[key] = flight, number
        for piece in engine.step():
            flight, number = pieces.pop(piece.key)
            flight.add(number, piece)
            tokens += len(piece.tokens)
        done += len(pipeline.take_finished())
        if not began and done >= size.leases:
            began, tokens = time.perf_counter(), 0
    seconds = time.perf_counter() - began
    engine.abort()
    return tokens / seconds


def _in_turns(engine: Engine, leases: Iterator[list[Request]], size: TailSize) -> float:
    began, tokens = time.perf_counter(), 0
    for _ in range(size.leases):
        tokens += sum(len(answer.tokens) for answer in engine.generate(next(leases)))
    return tokens / (time.perf_counter() - began)
