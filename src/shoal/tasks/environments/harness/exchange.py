"""Rendezvous between a harness that asks and an environment that is stepped: one asks, the other replies, in turn.

The harness's side blocks in `ask` until its request is answered; the environment's side blocks in `next` until there is
another request or the harness has ended. Neither ever waits for the other without a deadline or an end.

What depends on how fast the policy is must never look like what the harness does: a validator replies at once. So a
reply that nobody waited for, and requests that came while another one waited, make an episode void.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.errors import TaskError
from shoal.openai_api.errors import ApiError
from shoal.tasks.environments.harness.conversation import Conversation, Message
from shoal.tasks.environments.harness.tool_calls import read_reply
from shoal.tasks.source import TokenCount


@dataclass(frozen=True, slots=True)
class Reply:
    """What the policy said to a request."""

    message: Message
    number: int
    tokens: TokenCount | None = None
    """Of the request and of the reply; None if the host was not told."""


class Exchange:
    """One episode between a harness and the policy."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._conversation = Conversation()
        self._asked: tuple[Message, ...] | None = None
        self._replies: list[Reply] = []
        self._requests = 0
        self._taken = 0
        self.waiting = 0
        """Requests of the harness that wait for a reply; some may be the same one sent again."""
        self.is_at_once = False
        """Whether a request came while another one waited."""
        self._ended = self._closed = False

    @property
    def tool_text(self) -> str:
        """What the policy is told of the harness's tools."""
        return self._conversation.tools

    def ask(
        self,
        messages: Sequence[Message],
        tool_text: str,
        *,
        may_repeat: bool = True,
        is_there: Callable[[], bool] = lambda: True,
    ) -> Reply:
        """The policy's reply to a request of the harness. A request that is sent again gets the same reply, unless it
        says that it is a new one: one episode has one reply to each. `is_there` says whether who asked still waits."""
        with self._changed:
            self._check_open()
            is_second = self._conversation.waiting
            try:
                added = self._conversation.extend(messages, tool_text)
            except ApiError:
                self.is_at_once |= is_second
                raise
            if added is not None:
                self._asked = added
                self._requests += 1
                self._changed.notify_all()
            elif not may_repeat:
                self.is_at_once |= is_second
                raise ApiError(
                    400,
                    "messages: are those of the last request; an episode has one reply to each and draws no second one",
                    param="messages",
                    code="history_rewritten",
                )
            number = self._requests
            self.waiting += 1
            try:
                while len(self._replies) < number:
                    self._check_open()
                    self._changed.wait()
            finally:
                self.waiting -= 1
            if is_there():
                self._taken = number
            return self._replies[number - 1]

    def next(self, seconds: float) -> tuple[Message, ...] | None:
        """What the next request adds to the conversation; None if the harness has ended instead."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._asked is None and not self._ended:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TaskError(f"its harness neither asked nor ended within {seconds:g} s")
                self._changed.wait(left)
            if self.is_at_once:
                raise TaskError("its harness sent a request while another one waited; an episode is one conversation")
            if self._taken < len(self._replies):
                raise TaskError("its harness did not wait for the reply, which may come sooner on another machine")
            asked, self._asked = self._asked, None
            return asked

    @property
    def is_asked(self) -> bool:
        """Whether the harness has asked what was not replied to."""
        return self._conversation.waiting

    def reply(self, text: str, tokens: TokenCount | None = None) -> None:
        """Answers the last request with what the policy said."""
        with self._changed:
            number = len(self._replies)
            message = read_reply(text, number, tools=bool(self._conversation.tools))
            self._conversation.say(message)
            self._replies.append(Reply(message, number, tokens))
            self._changed.notify_all()

    def end(self) -> None:
        """The harness has ended; it asks no more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody replies any more: a request that waits, and any other, is refused."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise ApiError(410, "the episode is over; its run allows no further turn", code="episode_over")
