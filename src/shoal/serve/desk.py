"""Continuous batching across requests: one thread moves the engine, and requests join and leave while it runs.

First come, first served. A request for a version that is not loaded waits until all answers before it have ended, then
its version is loaded; those behind it wait, too. So an answer comes from one version, a new one never cuts a stream
off, and no request waits longer than the answers before it take.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from shoal.errors import ModelError, ShoalError, WeightsError
from shoal.generate.engine import Completion, Engine, Request
from shoal.openai_api.errors import ApiError
from shoal.openai_api.responses import Finish
from shoal.protocol.stores import Version
from shoal.serve.versions import Versions

LOOK_S = 0.5
END_S = 10.0


@dataclass(frozen=True, slots=True)
class Began:
    """The version that answers."""

    version: Version


@dataclass(frozen=True, slots=True)
class Tokens:
    """More tokens of one answer."""

    choice: int
    tokens: Sequence[int]
    logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class Ended:
    """An answer has all of its tokens."""

    choice: int
    finish: Finish


News = Began | Tokens | Ended | ApiError
Listener = Callable[[News], None]


@dataclass(slots=True, eq=False)
class Ticket:
    """One request: all of its answers come from one version. `hear` is called by the engine's thread."""

    number: int | None
    """The version that is asked for; None for the newest when its turn comes."""
    requests: Sequence[Request]
    hear: Listener


@dataclass(slots=True)
class _Running:
    ticket: Ticket
    choice: int
    told: int = 0
    """Tokens that its listener knows."""


class Desk:
    """Takes tickets while the engine works. `say` hears what an operator should know."""

    def __init__(self, engine: Engine, versions: Versions, max_waiting: int, say: Callable[[str], None]) -> None:
        """The engine must have no version loaded that is relied on: the desk loads what is asked for."""
        self._engine, self._versions, self._max = engine, versions, max_waiting
        self._say = say
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._dropped: list[tuple[Ticket, int | None]] = []
        self._running: dict[int, _Running] = {}
        self._next_key = 0
        self._over = False
        self.loaded: Version | None = None
        self._damaged: Version | None = None  # which is not tried again until somebody asks for it
        self._follows = True  # whether the newest version was asked for last
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends what is running, with an error for those who wait, and the thread."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(END_S)

    @property
    def load(self) -> tuple[int, int]:
        """Answers that are running, and answers that wait for their turn."""
        with self._changed:
            return len(self._running), sum(len(ticket.requests) for ticket in self._waiting)

    def take(self, ticket: Ticket) -> None:
        """Puts a request at the end of the line; an ApiError if that is too long."""
        with self._changed:
            if self._over:
                raise ApiError(503, "the server is shutting down", code="shutting_down")
            held = self._held()
            if held + len(ticket.requests) > self._max:
                raise ApiError(
                    429,
                    f"{held} answers are running or waiting, and {len(ticket.requests)} more would exceed {self._max}; "
                    "try again later",
                    code="queue_full",
                )
            self._waiting.append(ticket)
            self._changed.notify()

    def _held(self) -> int:
        """Answers that somebody waits for. Those that were dropped end before the next one begins."""
        running = [own for own in list(self._running.values()) if not self._is_dropped(own.ticket, own.choice)]
        waiting = [ticket for ticket in self._waiting if not self._is_dropped(ticket)]
        return len(running) + sum(len(ticket.requests) for ticket in waiting)

    def _is_dropped(self, ticket: Ticket, choice: int | None = None) -> bool:
        return any(other is ticket and which in (None, choice) for other, which in self._dropped)

    def drop(self, ticket: Ticket, choice: int | None = None) -> None:
        """Stops one answer of a request, or all of them: nobody waits for it any more."""
        with self._changed:
            self._dropped.append((ticket, choice))
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not (self._over or self._running or self._waiting or self._dropped):
                    self._changed.wait(LOOK_S)
                dropped = list(self._dropped)
                over = self._over
            for ticket, choice in dropped:
                self._forget(ticket, choice)
            with self._changed:
                del self._dropped[: len(dropped)]
            if over:
                break
            try:
                self._turn()
            except Exception as error:  # whatever an engine does, others must hear of it rather than wait
                self._fail(error)
        self._fail_all(ApiError(503, "the server is shutting down", code="shutting_down"))

    def _turn(self) -> None:
        if not self._running and not self._waiting:
            self._load_ahead()
            return
        self._admit()
        if not self._running:
            return
        done = self._engine.step()
        for key, tokens, logprobs in self._engine.so_far():
            self._tell(key, tokens, logprobs)
        for completion in done:
            self._end(completion)

    def _load_ahead(self) -> None:
        """Loads the newest version while nobody waits, so that the next request need not.

        Not if a version was asked for by its number: a client of that one would wait for two to load per question.
        """
        newest = self._versions.newest() if self._follows else None
        if newest is not None and newest not in (self.loaded, self._damaged):
            try:
                self._load(newest)
            except (ModelError, WeightsError) as error:
                if self._versions.newest() == newest:  # otherwise it was taken away, and there is another one
                    self._damaged = newest
                    self._say(f"version {newest.number} cannot be loaded: {error}")

    def _admit(self) -> None:
        """Submits those at the head of the line whose version is loaded, or can be now."""
        while self._waiting:
            ticket = self._waiting[0]
            try:
                version = self._versions.find(ticket.number)
                if version != self.loaded:
                    if self._running:
                        return
                    self._load(version)
            except ApiError as error:  # it was there when it was asked for
                self._refuse(ticket, error)
                continue
            except (ModelError, WeightsError) as error:
                if self._is_still(ticket.number, version):
                    text = f"version {version.number} cannot be loaded: {error}"
                    self._say(text)
                    self._refuse(ticket, ApiError(503, text, param="model", code="model_not_loaded"))
                continue
            with self._changed:
                self._waiting.popleft()
            self._submit(ticket, version)

    def _is_still(self, number: int | None, version: Version) -> bool:
        try:
            return self._versions.find(number) == version
        except ApiError:
            return False

    def _load(self, version: Version) -> None:
        self.loaded = None
        folder = self._versions.channel.fetch(version)
        self._engine.load(folder, f"version {version.number}")
        self.loaded = version

    def _submit(self, ticket: Ticket, version: Version) -> None:
        ticket.hear(Began(version))
        self._follows = ticket.number is None
        for choice, request in enumerate(ticket.requests):
            self._running[self._next_key] = _Running(ticket, choice)
            self._engine.submit(self._next_key, request)
            self._next_key += 1

    def _tell(self, key: int, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        own = self._running.get(key)
        if own is not None and len(tokens) > own.told:
            own.ticket.hear(Tokens(own.choice, list(tokens[own.told :]), list(logprobs[own.told :])))
            own.told = len(tokens)

    def _end(self, completion: Completion) -> None:
        self._tell(completion.key, completion.tokens, completion.logprobs)
        own = self._running.pop(completion.key, None)
        if own is not None:
            own.ticket.hear(Ended(own.choice, "stop" if completion.finish == "eos" else "length"))

    def _forget(self, ticket: Ticket, choice: int | None) -> None:
        with self._changed:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                return
        for key in [key for key, own in self._running.items() if own.ticket is ticket and choice in (None, own.choice)]:
            del self._running[key]
            self._engine.drop(key)

    def _refuse(self, ticket: Ticket, error: ApiError) -> None:
        with self._changed:
            self._waiting.remove(ticket)
        ticket.hear(error)

    def _fail(self, error: Exception) -> None:
        """The engine has failed: those who were served hear of it, those who wait are served by what is loaded next."""
        text = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
        self._say(f"the engine failed: {text}")
        with suppress(Exception):  # it may be past that
            self._engine.abort()
        self.loaded = None
        failed = list(dict.fromkeys(own.ticket for own in self._running.values()))
        self._running.clear()
        with self._changed:
            if not failed and self._waiting:  # it failed over the first in line, which would fail again
                failed.append(self._waiting.popleft())
        for ticket in failed:
            ticket.hear(ApiError(500, f"the engine failed: {text}", code="engine_failed"))
        if not failed:
            time.sleep(LOOK_S)

    def _fail_all(self, error: ApiError) -> None:
        self._engine.abort()
        for ticket in dict.fromkeys([*(own.ticket for own in self._running.values()), *self._waiting]):
            ticket.hear(error)
        self._running.clear()
        self._waiting.clear()
