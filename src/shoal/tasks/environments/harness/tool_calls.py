"""Tools as text: how a policy is told of them, and what it writes to call one.

The form is that of Hermes, which many models are trained on. It is written into the system turn here and not by the
chat template, so that models whose template knows nothing of tools can call them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from shoal.tasks.environments.harness.conversation import Message, ToolCall

BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
TELL = (
    "You can call the functions that are described here, one per line:\n{tools}\n"
    'To call one write <tool_call>{{"name": "...", "arguments": {{...}}}}</tool_call>; '
    "the next message is what it returns."
)


def described(tools: Sequence[Mapping[str, Any]]) -> str:
    """What the system turn says of the tools of a request; empty if it has none."""
    lines = [json.dumps(tool["function"], sort_keys=True, ensure_ascii=False) for tool in tools]
    return TELL.format(tools="\n".join(lines)) if lines else ""


def read_reply(text: str, turn: int, *, tools: bool) -> Message:
    """What the policy said, with the tools that it calls; a call that cannot be read is left in the text.

    Calls are numbered, and not named by chance: a validator that plays the episode again names them alike.
    """
    found = [_calls(block) for block in BLOCK.findall(text)] if tools else []
    if not found or None in found:
        return Message("assistant", text)
    flat = [one for block in found for one in block or ()]
    calls = tuple(ToolCall(f"call_{turn}_{number}", *one) for number, one in enumerate(flat))
    return Message("assistant", BLOCK.sub("", text).strip(), calls)


def _calls(block: str) -> list[tuple[str, str]] | None:
    """Names and arguments in a block, which is a call or a list of them; None if it is neither."""
    try:
        tree = from_json(block)  # refuses deep nesting, also where a library has raised Python's recursion limit
    except ValueError:
        return None
    read = list[tuple[str, str]]()
    for one in tree if isinstance(tree, list) else [tree]:
        match one:
            case {"name": str() as name, "arguments": dict() as arguments}:
                read.append((name, json.dumps(arguments, ensure_ascii=False)))
            case _:
                return None
    return read or None
