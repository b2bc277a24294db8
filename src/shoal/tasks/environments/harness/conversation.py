"""The messages of one episode, as a harness tells them: each request must go on with what is recorded.

What the policy drew is recorded as tokens, and a harness has only its text. So a request is never rendered as a whole:
it must repeat what was said so far, and what it adds is what the environment says next. A request that leaves out,
changes or reorders anything before that is refused by name: the tokens of an episode cannot be taken back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic_core import from_json

from shoal.openai_api.errors import ApiError, shown

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the policy calls; `arguments` is JSON, as the policy wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    """Which call this is the result of."""


@dataclass(slots=True)
class Conversation:
    """What was asked and said so far."""

    messages: list[Message] = field(default_factory=list)
    tools: str = ""
    """Descriptions of the tools of the first request, which all others must have."""
    waiting: bool = False
    """Whether the last message is a request's, and the policy's turn."""

    def extend(self, messages: Sequence[Message], tools: str = "") -> tuple[Message, ...] | None:
        """What a request adds, which is recorded; None for the last request sent again. ApiError for any other."""
        known = self.messages
        if known and tools != self.tools:
            raise _rewritten("tools", "differ from those of the first request; give the same ones each time")
        asked = known if self.waiting else known[:-1]
        if known and len(messages) == len(asked) and self._first_difference(messages, asked) is None:
            return None
        if (place := self._first_difference(messages, known)) is not None:
            raise self._refusal(messages, place)
        added = tuple(messages[len(known) :])
        if not added:
            raise _rewritten("messages", "end with the policy's own reply; add what it is to answer")
        if self.waiting:
            raise _rewritten("messages", "go on while the request before them is not answered yet; wait for the reply")
        if (number := next((n for n, m in enumerate(added) if m.role == "assistant"), None)) is not None:
            place = len(known) + number
            raise _rewritten(f"messages.{place}", "is a reply that the policy did not give; replies are sampled here")
        self.messages = [*known, *added]
        self.tools, self.waiting = tools, True
        return added

    def say(self, reply: Message) -> None:
        """Records what the policy said."""
        self.messages.append(replace(reply, role="assistant"))
        self.waiting = False

    @staticmethod
    def _first_difference(messages: Sequence[Message], known: Sequence[Message]) -> int | None:
        for place, before in enumerate(known):
            if place >= len(messages) or not _same(before, messages[place]):
                return place
        return None

    def _refusal(self, messages: Sequence[Message], place: int) -> ApiError:
        before = self.messages[place]
        if place >= len(messages):
            return _rewritten("messages", f"end before message {place} ({before.role}), which was said already")
        now = messages[place]
        if now.role != before.role:
            return _rewritten(f"messages.{place}", f"was a message of the {before.role}, and is one of the {now.role}")
        return _rewritten(f"messages.{place}", f"was {shown(before.text)} ({before.role}), and is {shown(now.text)}")


def _same(before: Message, now: Message) -> bool:
    """Whether a message is repeated. Space around a text and the form of JSON do not matter: neither is tokenized."""
    if (before.role, before.text.strip(), before.call_id) != (now.role, now.text.strip(), now.call_id):
        return False
    calls = [[(call.id, call.name, _json(call.arguments)) for call in one.calls] for one in (before, now)]
    return calls[0] == calls[1]


def _json(text: str) -> object:
    try:
        parsed: object = from_json(text)
    except ValueError:
        return text
    return parsed


def _rewritten(param: str, how: str) -> ApiError:
    return ApiError(
        400,
        f"{param}: {how}. An episode is one conversation, in which nothing that was said can be changed, left out or "
        "summarised: its tokens are recorded",
        param=param,
        code="history_rewritten",
    )
