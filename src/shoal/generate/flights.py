"""A lease while it is generated: which pieces of its answers the engine is asked for next, and what came back so far.

Where answers keep their version, a piece is a whole answer. Where they may go on with a newer one
(`workers.in_flight`), a piece is a span (`protocol/spans.py`), and the next one is asked for with what there is so far
as its prompt: after a change of versions that computes the whole context with the new one.

No input or output: values in, values out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from shoal.generate.engine import Completion, Request
from shoal.protocol.lease import Lease
from shoal.protocol.spans import SpanLease
from shoal.protocol.stores import Version


@dataclass(slots=True)
class Answer:
    """One answer as far as it has come."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    proof: bytes = b""
    finish: Literal["eos", "length"] | None = None

    def piece(self, end: int, seed: int) -> Request:
        """What comes next, up to a length of `end`."""
        before, whole = len(self.tokens), self.request
        new = min(end, whole.max_new_tokens) - before
        prompt = (*whole.prompt, *self.tokens)
        return replace(whole, prompt=prompt, seed=seed, max_new_tokens=new, position=before)

    @property
    def is_acting(self) -> bool:
        """Whether it waits for an environment; an answer of one turn never does (`episodes.Episode`)."""
        return False

    def completion(self, key: int) -> Completion:
        """The answer, which has ended."""
        return Completion(key, self.tokens, self.logprobs, self.finish or "length", self.proof)

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
    """The one that its answers begin with."""
    answers: list[Answer]
    every: int
    """Tokens of a span."""
    idle: set[int]
    """Answers that have not ended and have no request in the engine."""
    unfinished: int
    """Answers that have not ended."""
    later: list[SpanLease] = field(default_factory=list)
    """What its answers go on with, span by span."""

    @classmethod
    def begin(cls, lease: Lease, version: Version, requests: Sequence[Request], every: int) -> "Flight":
        return cls.of(lease, version, [Answer(request) for request in requests], every)

    @classmethod
    def of(cls, lease: Lease, version: Version, answers: list[Answer], every: int) -> "Flight":
        return cls(lease, version, answers, every, set(range(len(answers))), len(answers))

    @property
    def name(self) -> tuple[int, int]:
        """Step and number of its lease."""
        return self.lease.step, self.lease.submission

    @property
    def acting(self) -> int:
        """Episodes that wait for their environments."""
        return sum(answer.finish is None and answer.is_acting for answer in self.answers)

    @property
    def versions(self) -> set[Version]:
        """All that its answers are drawn with, so far as it is known."""
        return {self._version(span) for span in range(len(self.later) + 1)}

    def needs(self) -> set[Version]:
        """Versions that idle answers wait for."""
        spans = {self._span(number) for number in self.idle}
        return {self._version(span) for span in spans if span <= len(self.later)}

    def due(self, loaded: Version | None) -> list[int]:
        """Idle answers whose next piece can be drawn with the loaded version."""
        known = [number for number in self.idle if self._span(number) <= len(self.later)]
        return sorted(number for number in known if self._version(self._span(number)) == loaded)

    def unleased(self) -> int | None:
        """The first token of the next span, if an answer has come to it and it is not known what draws it."""
        if any(self._span(number) > len(self.later) for number in self.idle):
            return (len(self.later) + 1) * self.every
        return None

    def ask(self, number: int) -> Request:
        """The next piece of an answer, to the end of its span."""
        self.idle.remove(number)
        answer, span = self.answers[number], self._span(number)
        seed = self.later[span - 1].seed(self.lease) if span else answer.request.seed
        return answer.piece((span + 1) * self.every, seed)

    def add(self, number: int, piece: Completion) -> bool:
        """Adds a piece to its answer; whether that has ended."""
        answer = self.answers[number]
        answer.add(piece)
        return self.place(number)

    def place(self, number: int) -> bool:
        """Notes what an answer waits for, after it has changed; whether it has ended."""
        answer = self.answers[number]
        if answer.finish is not None:
            self.unfinished -= 1
        elif not answer.is_acting:
            self.idle.add(number)
        return answer.finish is not None

    def completions(self) -> list[Completion]:
        """The answers, all of which have ended."""
        return [answer.completion(number) for number, answer in enumerate(self.answers)]

    def _span(self, number: int) -> int:
        return len(self.answers[number].tokens) // self.every

    def _version(self, span: int) -> Version:
        return Version(self.later[span - 1].version, self.later[span - 1].weights) if span else self.version
