"""Environment host: episodes are played in a confined child process, many at a time, each with a deadline.

Every request holds all that the policy has said in its episode, so a child that was lost is replaced and nothing is
lost with it. The requests that were in progress are then played again one at a time, and only one that takes a child
with it that was started for it, and has played nothing else, is void: it costs its own episode and no other.

Requests that came together are sent together, as far as the child takes them: nothing here waits for it without looking
at deadlines. A child that plays one after the other has at most `MAX_UNDER_WAY` bytes of them at a time, so few are
played again where one takes it along.
"""

import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from shoal.config import TurnsConfig
from shoal.errors import TaskError
from shoal.subproc import Child, ChildError, line_of
from shoal.tasks.environments.environment import Played
from shoal.tasks.environments.source import played_from_json
from shoal.tasks.source import Split, Task, TokenCount

READY_S = 120.0
# A reply has up to 256 observations, if it is a whole episode; one that has begun comes whole within a second.
ROOM_FOR_REPLY = 1 << 16
BYTES_PER_CHARACTER = 12  # a surrogate pair, as JSON has it
REPLY_S = 5.0
# Bytes of requests that a child without threads has not replied to. A longer one goes alone.
MAX_UNDER_WAY = 1 << 15


@dataclass(slots=True, eq=False)
class _Asked:
    """One request, and what is known of how it went."""

    number: int
    line: bytes
    where: str
    future: "Future[Played]"
    seconds: float
    """That it may take, once it is begun."""
    began: float = math.inf


class EnvironmentHost:
    """Owns one child that plays episodes; any thread may ask."""

    def __init__(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        spec: object,
        turns: TurnsConfig,
        threads: int = 1,
    ) -> None:
        """`threads`: how many requests the child plays at once."""
        self._threads = threads
        self._command, self._environment, self._spec = list(command), environment, spec
        self._seconds = turns.seconds
        self._max_reply = ROOM_FOR_REPLY + turns.max * turns.observation * BYTES_PER_CHARACTER
        self._new: deque[_Asked] = deque()
        self._suspects: deque[_Asked] = deque()
        self._under_way: dict[int, _Asked] = {}
        self._numbers = count()
        self._is_low_on_memory = False
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._child: Child | None = None
        self._given_to_child = 0
        self._outgoing = b""
        self._thread = threading.Thread(target=self._run, name="environments", daemon=True)
        self._thread.start()

    def play(
        self,
        split: Split,
        task: Task,
        actions: Sequence[str],
        *,
        known: int = 0,
        score: bool = False,
        episode: int = -1,
        tokens: Sequence[TokenCount] = (),
    ) -> "Future[Played]":
        """See `tasks.source.Host`."""
        number = next(self._numbers)
        message = {
            "id": number,
            "task": [task.source, split, task.index],
            "actions": list(actions),
            "known": known,
            "score": score,
            "episode": episode,
            "tokens": list(tokens),
        }
        where = f"{task.source} task {task.index}"
        asked = _Asked(number, line_of(message), where, Future(), self._seconds * (len(actions) + 1))
        with self._lock:
            if self._closed.is_set():
                raise TaskError(f"{asked.where}: its environment's process was closed")
            self._new.append(asked)
        self._notify()
        return asked.future

    def close(self) -> None:
        with self._lock:
            self._closed.set()
        self._notify()
        self._thread.join()
        os.close(self._woken)
        os.close(self._wake)

    def _notify(self) -> None:
        with suppress(BlockingIOError, OSError):
            os.write(self._wake, b".")

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                try:
                    self._turn()
                except ChildError as lost:
                    self._lose(str(lost))
        except TaskError as error:
            self._fail(error)
        finally:
            if self._child is not None:
                self._child.close()
            self._fail(TaskError("the environment's process was closed"))

    def _turn(self) -> None:
        """Sends what may be sent, and takes one reply, or finds that a deadline has passed."""
        self._send()
        child = self._child
        if child is None or not child.has_line:
            poll = select.poll()
            poll.register(self._woken, select.POLLIN)
            if child is not None and self._under_way:
                poll.register(child.fileno(), select.POLLIN)
            if child is not None and self._outgoing:
                poll.register(child.requests_fileno(), select.POLLOUT)
            ready = {descriptor for descriptor, _ in poll.poll(self._patience_ms())}
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 1 << 12)
            if child is None or child.fileno() not in ready:
                self._check_deadlines()
                return
        self._take(child.receive(REPLY_S, self._max_reply))

    def _patience_ms(self) -> float | None:
        if not self._under_way:
            return None
        first = min(asked.began + asked.seconds for asked in self._begun())
        return max(0.0, first - time.monotonic()) * 1000

    def _begun(self) -> list[_Asked]:
        """What the child is at work on. The clock of a request that waits for others does not run."""
        begun = list(islice(self._under_way.values(), self._threads))
        for asked in begun:
            asked.began = min(asked.began, time.monotonic())
        return begun

    def _send(self) -> None:
        """Episodes that may have ended a child are played alone; all others side by side."""
        self._queue()
        if self._child is not None and self._outgoing:
            self._outgoing = self._outgoing[self._child.offer(self._outgoing) :]

    def _queue(self) -> None:
        """Lets what may be sent now go out to a child that is there to take it."""
        if self._under_way and all(asked.future.cancelled() for asked in self._under_way.values()):
            self._under_way.clear()  # nobody waits for what the child is at work on
            self._replace()
        if self._is_low_on_memory and not self._under_way:
            self._replace()
        if self._is_low_on_memory or not (asked := self._next()):
            return
        if not self._under_way and self._child is not None and self._child.has_ended:
            self._replace()  # whatever an episode left behind in there, it is not the fault of these
        for one in asked:
            self._under_way[one.number] = one  # before a child is started, which may be lost while it starts
        self._given_to_child += len(asked)
        self._started()
        self._outgoing += b"".join(one.line for one in asked)

    def _next(self) -> list[_Asked]:
        """What may be sent now."""
        while self._suspects and self._suspects[0].future.cancelled():
            self._suspects.popleft()
        if self._suspects:
            return [] if self._under_way else [self._suspects.popleft()]
        if not self._new:
            return []
        asked, size = list[_Asked](), sum(len(one.line) for one in self._under_way.values())
        with self._lock:
            while self._new and self._has_room(len(self._under_way) + len(asked), size + len(self._new[0].line)):
                one = self._new.popleft()
                if not one.future.cancelled():
                    asked.append(one)
                    size += len(one.line)
        return asked

    def _has_room(self, requests: int, size: int) -> bool:
        """Whether one more request may go, with which so many bytes are under way."""
        return requests < self._threads if self._threads > 1 else not requests or size <= MAX_UNDER_WAY

    def _started(self) -> Child:
        if self._child is None:
            child = Child(self._command, self._environment)
            self._child = child
            child.send([self._spec], READY_S)
            match child.receive(READY_S, self._max_reply):
                case {"refused": str() as reason}:
                    raise TaskError(reason)
                case {"ready": True}:
                    pass
                case _:
                    raise TaskError("environments: their process did not begin")
        return self._child

    def _take(self, reply: Any) -> None:
        match reply:
            case {"id": int() as number, "played": said, "low_memory": bool() as is_low} if number in self._under_way:
                try:
                    played = played_from_json(said)
                except (ValueError, TypeError, OverflowError):
                    raise ChildError("did not reply with what was played") from None
                self._is_low_on_memory = is_low
                _tell(self._under_way.pop(number), played)
                return
        raise ChildError("did not reply with what was asked")

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if any(asked.began + asked.seconds <= now for asked in self._begun()):
            raise ChildError(f"took longer than turns.seconds = {self._seconds:g} per action")

    def _lose(self, how: str) -> None:
        """The child is lost: an episode that was the only one that it was ever given is void. All others are played
        again, each alone: what an episode leaves behind in a process may end it when another one is played."""
        under_way, given = list(self._under_way.values()), self._given_to_child
        self._under_way.clear()
        self._replace()
        if len(under_way) == given == 1:
            _tell(under_way[0], Played(error=f"{under_way[0].where}: environment {how}"))
            return
        for asked in under_way:
            asked.began = math.inf
        if len(under_way) == 1:
            self._suspects.appendleft(under_way[0])  # its turn had come, and the next child is its own
        else:
            self._suspects.extend(under_way)

    def _replace(self) -> None:
        self._is_low_on_memory = False
        self._outgoing, self._given_to_child = b"", 0
        if self._child is not None:
            self._child.close()
            self._child = None

    def _fail(self, error: TaskError) -> None:
        with self._lock:
            self._closed.set()
            left = [*self._under_way.values(), *self._suspects, *self._new]
            for queue in (self._under_way, self._suspects, self._new):
                queue.clear()
        for asked in left:
            with suppress(InvalidStateError):
                asked.future.set_exception(error)


def _tell(asked: _Asked, played: Played) -> None:
    with suppress(InvalidStateError):  # it was given up
        asked.future.set_result(played)
