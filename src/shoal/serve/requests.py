"""Requests of OpenAI's chat and completion endpoints, checked whole before anything is generated.

A parameter that changes nothing about the answer is ignored. One that would change it, and that we do not support, is
refused unless it has the value that changes nothing: an answer is never quietly another than the one asked for.
"""

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from shoal.generate.decoding import Decoding
from shoal.openai_api.errors import from_validation, invalid
from shoal.openai_api.fields import Checked, StreamOptions, TextPart, supported

MAX_CHOICES = 128
MAX_MESSAGES = 1024
MAX_STOPS, MAX_STOP_CHARS = 16, 256
# Logits divided by less overflow; the likeliest token is all that is left long before.
MIN_TEMPERATURE = 0.01
DEFAULT_COMPLETION_TOKENS = 16

Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


class Sampled(Checked):
    """What both endpoints take."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    """As in vLLM: also the token ids of prompt and answer, so that a client need not tokenize the text again."""

    @property
    def decoding(self) -> Decoding:
        temperature = 1.0 if self.temperature is None else self.temperature
        cold = temperature < MIN_TEMPERATURE
        return Decoding(0.0 if cold else temperature, 1.0 if self.top_p is None or cold else self.top_p)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def wants_logprobs(self) -> bool:
        raise NotImplementedError

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class Message(Checked):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    @property
    def turn(self) -> dict[str, str]:
        """The message as chat templates know it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(Sampled):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None

    @property
    def turns(self) -> list[dict[str, str]]:
        return [message.turn for message in self.messages]

    @property
    def new_tokens(self) -> int | None:
        """None: as many as fit."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)


class CompletionRequest(Sampled):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        match self.prompt:
            case [int(), *_]:
                return [[token for token in self.prompt if isinstance(token, int)]]
            case list():
                return [part for part in self.prompt if not isinstance(part, int)]
            case text:
                return [text]

    @property
    def new_tokens(self) -> int:
        return self.max_tokens or DEFAULT_COMPLETION_TOKENS

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None


def parse_chat(body: bytes) -> ChatRequest:
    """The request in a body, or the ApiError that says what is wrong with it."""
    try:
        asked = ChatRequest.model_validate(supported(body))
    except ValidationError as error:
        raise from_validation(error) from None
    _check_stream(asked)
    return asked


def parse_completion(body: bytes) -> CompletionRequest:
    try:
        asked = CompletionRequest.model_validate(supported(body))
    except ValidationError as error:
        raise from_validation(error) from None
    _check_stream(asked)
    if asked.logprobs:
        raise invalid(
            "logprobs", f"{asked.logprobs} is not supported; 0 gives those of the drawn tokens", "unsupported_parameter"
        )
    if not (prompts := asked.prompts) or not all(prompts):
        raise invalid("prompt", "is empty; give at least one character or token")
    if (count := len(prompts) * asked.choices) > MAX_CHOICES:
        raise invalid(
            "prompt",
            f"{len(prompts)} prompts with n = {asked.choices} are {count} answers, at most {MAX_CHOICES} per request",
        )
    return asked


def _check_stream(asked: Sampled) -> None:
    if asked.stream_options is not None and not asked.stream:
        raise invalid("stream_options", "goes with stream = true only")
