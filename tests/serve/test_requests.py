"""A request is understood whole or refused by name: never answered as if it had asked for something else."""

import json
from typing import Any

import pytest

from shoal.openai_api.errors import ApiError
from shoal.openai_api.fields import NEUTRAL
from shoal.serve.requests import MAX_CHOICES, parse_chat, parse_completion

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "hi"}


def refused(body: bytes, parse: Any = parse_chat) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(body)
    assert 400 <= caught.value.status < 500
    json.dumps(caught.value.body)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"model": NaN}',
        b'{"model": "\\ud800"}',
        b"[" * 200_000,
        b'{"a":' * 200_000,
    ],
)
def test_what_is_not_a_json_object_is_refused(body: bytes) -> None:
    assert refused(body).code == "invalid_json"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": 3}, "model"),
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, None),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 1e400}, None),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": MAX_CHOICES + 1}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["x" * 1000]}, None),
        ({"seed": 2**63}, "seed"),
        ({"seed": 10**400}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 100}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"top_logprobs": 5, "logprobs": True}, "top_logprobs"),
        ({"made_up": 1}, "made_up"),
    ],
)
def test_a_wrong_or_unsupported_parameter_is_refused_by_its_name(change: dict[str, Any], param: str | None) -> None:
    error = refused(json.dumps(CHAT | change).encode())
    if param is not None:
        assert error.param == param
    assert len(error.message) < 500


def test_parameters_that_change_nothing_are_taken() -> None:
    neutral = {name: values[0] for name, values in NEUTRAL.items() if values}
    asked = parse_chat(json.dumps(CHAT | neutral | {"user": "me", "metadata": {"a": "b"}, "audio": None}).encode())
    assert (asked.decoding.temperature, asked.decoding.top_p, asked.choices, asked.new_tokens) == (1.0, 1.0, 1, None)


def test_parts_of_a_message_are_joined_and_developers_are_the_system() -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    asked = parse_chat(json.dumps({"model": "m", "messages": messages}).encode())
    assert asked.turns == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "ab"}]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("ab", ["ab"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_a_prompt_is_a_text_or_tokens_or_several_of_either(prompt: object, prompts: object) -> None:
    assert parse_completion(json.dumps({"model": "m", "prompt": prompt}).encode()).prompts == prompts


@pytest.mark.parametrize(
    "prompt", ["", [], [""], [[]], [1, "a"], [1.5], [True], {"a": 1}, None, ["x"] * (MAX_CHOICES + 1)]
)
def test_a_prompt_that_is_none_of_these_is_refused(prompt: object) -> None:
    assert str(refused(json.dumps(TEXT | {"prompt": prompt}).encode(), parse_completion).param).startswith("prompt")


def test_a_temperature_whose_logits_would_overflow_is_greedy() -> None:
    assert parse_chat(json.dumps(CHAT | {"temperature": 1e-30, "top_p": 0.5}).encode()).decoding.is_greedy
