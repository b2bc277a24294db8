"""Rendezvous between a harness that asks and an environment that is stepped: one asks, the other replies, in turn.

The harness's side blocks in `ask` until its request is answered; the environment's side blocks in `next` until there is
another request or the harness has ended. Neither ever waits for the other without a deadline or an end.
"""

import threading
import time
from collections.abc import Sequence
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
        self._ended = self._closed = False

    @property
    def tool_text(self) -> str:
        """What the policy is told of the harness's tools."""
        return self._conversation.tools

    def ask(self, messages: Sequence[Message], tool_text: str, *, may_repeat: bool = True) -> Reply:
        """The policy's reply to a request of the harness. A request that is sent again gets the same reply, unless it
        says that it is a new one: one episode has one reply to each."""
        with self._changed:
            self._check_open()
            added = self._conversation.extend(messages, tool_text)
            if added is not None:
                self._asked = added
                self._requests += 1
                self._changed.notify_all()
            elif not may_repeat:
                raise ApiError(
                    400,
                    "messages: are those of the last request; an episode has one reply to each and draws no second one",
                    param="messages",
                    code="history_rewritten",
                )
            number = self._requests
            while len(self._replies) < number:
                self._check_open()
                self._changed.wait()
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
            asked, self._asked = self._asked, None
            return asked

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
