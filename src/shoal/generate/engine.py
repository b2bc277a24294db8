"""What every generation engine does: loads a version from its directory, takes requests at any time, gives completions
with proofs.

An engine promises that a completion depends on the weights, the prompt, the seed and the sample number alone: which
other requests ran beside it, and when they came, does not matter.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from shoal.errors import ModelError
from shoal.generate.decoding import Decoding


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to generate. (seed, sample) fixes its noise."""

    prompt: tuple[int, ...]
    seed: int
    sample: int
    max_new_tokens: int
    position: int = 0
    """Place in the answer of the first token to generate: the tokens before it are the end of `prompt`."""
    decoding: Decoding | None = None
    """How its tokens are drawn, if not as the engine draws all others."""
    streamed: bool = False
    """Whether `so_far` tells of it while it is running."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What was generated for the request that was submitted under `key`."""

    key: int
    tokens: list[int]
    logprobs: list[float]
    finish: Literal["eos", "length"]
    proof: bytes = b""
    """TOPLOC proof of the states that the tokens were drawn from; empty if the engine was told to build none."""
    hidden_TD: Tensor | None = None
    """State t is the one token t was drawn from; given on request only."""


class Engine(ABC):
    """All that a worker asks of a generation engine; any engine that can do this can serve."""

    @property
    @abstractmethod
    def running(self) -> int:
        """How many requests were submitted and have not ended."""

    @abstractmethod
    def load(self, folder: Path, origin: str) -> None:
        """Makes the version in `folder` the one that answers; `origin` names it in errors. No request may be running.

        After an error the engine may hold half of a version: load one before the next request.
        """

    @abstractmethod
    def submit(self, key: int, request: Request, *, hidden: bool = False) -> None:
        """Takes a request, while others are running or not. Its key must be unlike those that are running."""

    @abstractmethod
    def step(self) -> list[Completion]:
        """Advances what is running, by about one token each, and gives those that have ended."""

    @abstractmethod
    def abort(self) -> None:
        """Drops all that is running; nothing will be given of it."""

    def drop(self, key: int) -> None:
        """Drops one request for which nobody waits any more; an engine that cannot finishes it."""
        del key

    def so_far(self) -> Iterator[tuple[int, Sequence[int], Sequence[float]]]:
        """Key, tokens and log-probs of the streamed requests that are running; an engine that gives whole answers only
        tells of none. The lists grow with the next step: read them before it."""
        return iter(())

    def close(self) -> None:
        """Ends what the engine has started: processes of its own, if it has any."""
        return

    def generate(self, requests: Sequence[Request], *, hidden: bool = False) -> Iterator[Completion]:
        """Yields the completion of each request as soon as it has ended, under its place in `requests` as key."""
        if self.running:
            raise ModelError(f"{self.running} requests are running; generate() takes an engine that has none")
        try:
            for key, request in enumerate(requests):
                self.submit(key, request, hidden=hidden)
            while self.running:
                yield from self.step()
        finally:
            self.abort()


def check_request(key: int, request: Request, max_len: int) -> None:
    """Refuses a request that is empty or does not fit into an engine's longest sequence."""
    prompt, new = len(request.prompt), request.max_new_tokens
    if prompt < 1 or new < 1 or prompt + new > max_len:
        raise ModelError(
            f"request {key}: a prompt of {prompt} tokens and {new} new ones; "
            f"neither may be empty and both must fit in {max_len}"
        )
