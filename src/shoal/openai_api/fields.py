"""Fields that requests of OpenAI's endpoints have in common.

A field that changes nothing about the answer is ignored. One that would change it, and that we do not support, is
refused unless it has the value that changes nothing.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from shoal.openai_api.errors import ApiError, invalid, shown

IGNORED = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
)
# Unsupported, with the values that change nothing; null never does.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "min_p": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_k": (0, -1),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}


class Checked(BaseModel):
    """What comes from a stranger: exact types, no unknown fields, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Checked):
    include_usage: bool = False
    include_obfuscation: bool = False


class TextPart(Checked):
    type: Literal["text"]
    text: str


def supported(body: bytes, neutral: Mapping[str, tuple[object, ...]] = NEUTRAL) -> dict[str, Any]:
    """The fields of a body without those that change nothing; an error for those that we do not support."""
    try:
        tree = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"body: is not valid JSON ({error!s:.120})", code="invalid_json") from None
    if not isinstance(tree, dict):
        raise ApiError(400, f"body: must be a JSON object, not {shown(tree)}", code="invalid_json")
    kept = {}
    for name, value in tree.items():
        if name in neutral:
            if value is not None and not any(value == harmless for harmless in neutral[name]):
                raise invalid(name, f"{shown(value)} is not supported here; leave it out", "unsupported_parameter")
        elif name not in IGNORED:
            kept[name] = value
    return kept
