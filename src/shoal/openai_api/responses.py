"""Responses of OpenAI's endpoints as plain values: whole ones, chunks of a stream, and the list of models."""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["chat", "completion"]
Finish = Literal["stop", "length", "tool_calls"]
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that was drawn: its text alone, and its log-prob in the distribution that it was drawn from."""

    text: str
    logprob: float

    @property
    def chat(self) -> dict[str, Any]:
        # A token may be a part of a character, whose bytes its text does not tell.
        known = None if "\N{REPLACEMENT CHARACTER}" in self.text else list(self.text.encode())
        return {"token": self.text, "logprob": self.logprob, "bytes": known, "top_logprobs": []}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one answer, or all of it."""

    index: int
    text: str
    finish: Finish | None = None
    logprobs: Sequence[TokenLogprob] | None = None
    offset: int = 0
    """Characters of the answer before this piece."""
    token_ids: Sequence[int] | None = None
    prompt_token_ids: Sequence[int] | None = None
    calls: Sequence[Mapping[str, Any]] = ()
    """Tools that the answer calls; of a chat only."""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt: int
    completion: int

    @property
    def tree(self) -> dict[str, int]:
        total = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion, "total_tokens": total}


def new_id(kind: Kind) -> str:
    return f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every part of one response has: its id, the version that answers and the hash of that version."""

    kind: Kind
    id: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        choices = [self._choice(piece, "message") for piece in pieces]
        return {**self._head(streamed=False), "choices": choices, "usage": usage.tree}

    def chunk(self, piece: Piece) -> dict[str, Any]:
        return {**self._head(streamed=True), "choices": [self._choice(piece, "delta")]}

    def role(self, index: int) -> dict[str, Any]:
        """The first chunk of a chat's answer."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**self._head(streamed=True), "choices": [choice]}

    def usage(self, usage: Usage) -> dict[str, Any]:
        """The last chunk, for those who asked for it."""
        return {**self._head(streamed=True), "choices": [], "usage": usage.tree}

    def _head(self, *, streamed: bool) -> dict[str, Any]:
        name = "text_completion" if self.kind == "completion" else f"chat.completion{'.chunk' * streamed}"
        return {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _choice(self, piece: Piece, place: str) -> dict[str, Any]:
        logprobs: object = None
        if self.kind == "chat":
            said: dict[str, Any] = {"content": piece.text}
            if place != "delta":
                said = {"role": "assistant", **said}
            if piece.calls:
                said["tool_calls"] = [dict(call) for call in piece.calls]
            if piece.logprobs is not None:
                logprobs = {"content": [token.chat for token in piece.logprobs]}
            choice: dict[str, Any] = {"index": piece.index, place: said}
        else:
            if piece.logprobs is not None:
                logprobs = _legacy(piece.logprobs, piece.offset)
            choice = {"index": piece.index, "text": piece.text}
        choice |= {"logprobs": logprobs, "finish_reason": piece.finish}
        if piece.token_ids is not None:
            choice["token_ids"] = list(piece.token_ids)
        if piece.prompt_token_ids is not None:
            choice["prompt_token_ids"] = list(piece.prompt_token_ids)
        return choice


def _legacy(tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """Log-probs as the completion endpoint has them."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": None,
        "text_offset": offsets,
    }


def event(tree: Mapping[str, Any]) -> bytes:
    """One server-sent event; JSON has no line breaks of its own, so a text cannot end it early."""
    return b"data: " + json.dumps(tree, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


def model_entry(name: str, created: int, max_len: int, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": owner, "max_model_len": max_len}
