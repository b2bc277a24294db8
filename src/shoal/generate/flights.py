"""A lease while it is generated: which pieces of its answers the engine is asked for next, and what came back so far.

Where answers keep their version, a piece is a whole answer. Where they may go on with a newer one
(`workers.in_flight`), it ends at the next place at which versions may change (`protocol/spans.py`), and the rest is
asked for with what there is so far as its prompt: after a change that computes the whole context with the new version.

No input or output: values in, values out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from shoal.generate.engine import Completion, Request
from shoal.protocol.lease import Lease
from shoal.protocol.spans import Swap
from shoal.protocol.stores import Version


@dataclass(slots=True)
class Answer:
    """One answer as far as it has come."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    proof: bytes = b""
    finish: Literal["eos", "length"] | None = None
    asked: int = 0
    """Its length when the piece has come that the engine was asked for."""

    def piece(self, end: int) -> Request:
        """What comes next, up to a length of `end`."""
        self.asked = min(end, self.request.max_new_tokens)
        before = len(self.tokens)
        prompt = (*self.request.prompt, *self.tokens)
        return replace(self.request, prompt=prompt, max_new_tokens=self.asked - before, position=before)

    def add(self, piece: Completion) -> None:
        self.tokens += piece.tokens
        self.logprobs += piece.logprobs
        self.proof += piece.proof
        if piece.finish == "eos" or len(self.tokens) == self.request.max_new_tokens:
            self.finish = piece.finish


@dataclass(slots=True, eq=False)
class Flight:
    """All answers of one lease."""

    lease: Lease
    version: Version
    """The one that its answers began with."""
    answers: list[Answer]
    every: int
    """Tokens from one place at which versions may change to the next."""
    idle: set[int]
    """Answers that have not ended, and of which the engine is not asked for anything."""
    unfinished: int
    """Answers that have not ended."""
    swaps: list[Swap] = field(default_factory=list)
    place: int | None = None
    """Where its answers stop, while a newer version waits for them to."""

    @classmethod
    def begin(cls, lease: Lease, version: Version, requests: Sequence[Request], every: int) -> "Flight":
        answers = [Answer(request) for request in requests]
        return cls(lease, version, answers, every, set(range(len(answers))), len(answers))

    @property
    def name(self) -> tuple[int, int]:
        """Step and number of its lease."""
        return self.lease.step, self.lease.submission

    @property
    def is_stopped(self) -> bool:
        """Whether nothing of it is generated any more before a newer version is loaded."""
        return self.place is not None and len(self.idle) == self.unfinished and not self.due()

    def due(self) -> list[int]:
        """Answers of which the engine is to be asked for the next piece."""
        if self.place is None:
            return sorted(self.idle)
        return sorted(number for number in self.idle if len(self.answers[number].tokens) < self.place)

    def ask(self, number: int) -> Request:
        """The next piece of an answer, up to the next place."""
        self.idle.remove(number)
        answer = self.answers[number]
        return answer.piece((len(answer.tokens) // self.every + 1) * self.every)

    def add(self, number: int, piece: Completion) -> bool:
        """Adds a piece to its answer; whether that has ended."""
        answer = self.answers[number]
        answer.add(piece)
        if answer.finish is None:
            self.idle.add(number)
        else:
            self.unfinished -= 1
        return answer.finish is not None

    def stop(self) -> None:
        """Has all answers stop at one place: the first that none of them is beyond, or on the way to one beyond it."""
        if self.place is None:
            longest = max(max(answer.asked, len(answer.tokens), 1) for answer in self.answers)
            self.place = -(-longest // self.every) * self.every

    def go_on(self, version: Version) -> None:
        """Goes on with another version from where it stopped."""
        assert self.place is not None
        self.swaps.append(Swap(self.place, version.number, version.root))
        self.place = None

    def completions(self) -> list[Completion]:
        """The answers, all of which have ended."""
        return [
            Completion(number, answer.tokens, answer.logprobs, answer.finish or "length", answer.proof)
            for number, answer in enumerate(self.answers)
        ]
