"""Chat requests of harnesses: messages and tools count; how tokens are drawn is the run's own affair.

Temperature, length and seed of a request are not used, and the response names those that were given. Whatever else
would make another answer of it is refused by name.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from shoal.openai_api.errors import from_validation, invalid
from shoal.openai_api.fields import NEUTRAL, Checked, StreamOptions, TextPart, supported
from shoal.tasks.environments.harness.conversation import Message, ToolCall
from shoal.tasks.environments.harness.tool_calls import described

MAX_MESSAGES = 1024
# Drawing follows from the lease and the run's config, or nobody could check it.
OF_THE_RUN = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens"),
    *("reasoning_effort", "verbosity"),
)
HANDLED = ("tools", "tool_choice", *OF_THE_RUN)
REFUSED = {name: values for name, values in NEUTRAL.items() if name not in HANDLED} | {
    "logprobs": (False,),
    "n": (1,),
    "return_token_ids": (False,),
    "stop": ([], ""),
}
# What clients send of a reply besides what it was given with, when they send it again.
OF_A_REPLY = ("annotations", "audio", "function_call", "refusal")


class Function(Checked):
    name: str
    arguments: str


class WireCall(Checked):
    id: str
    type: Literal["function"] = "function"
    function: Function
    index: int = 0


class WireMessage(Checked):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] = ""
    name: str = ""
    tool_calls: list[WireCall] = Field(default_factory=list)
    tool_call_id: str = ""

    @property
    def message(self) -> Message:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in self.tool_calls)
        return Message("system" if self.role == "developer" else self.role, text, calls, self.tool_call_id)


class ToolFunction(Checked):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Checked):
    type: Literal["function"]
    function: ToolFunction


class ChatRequest(Checked):
    """POST /v1/chat/completions, as far as an episode has a use for it."""

    model: str = ""
    messages: Annotated[list[WireMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: Literal["auto"] = "auto"
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    unused: tuple[str, ...] = ()
    """Parameters that were given and are not used: the run draws as its config says."""

    @property
    def said(self) -> list[Message]:
        return [message.message for message in self.messages]

    @property
    def tool_text(self) -> str:
        return described([tool.model_dump(exclude_none=True) for tool in self.tools])


def parse_request(body: bytes) -> ChatRequest:
    """The request in a body, or the ApiError that says what is wrong with it."""
    tree = {name: value for name, value in supported(body, REFUSED).items() if value is not None}
    unused = tuple(name for name in OF_THE_RUN if tree.pop(name, None) is not None)
    if "unused" in tree:
        raise invalid("unused", "is not a parameter of this endpoint", "unknown_parameter")
    if isinstance(messages := tree.get("messages"), list):
        tree["messages"] = [_without_nulls(message) for message in messages]
    if tree.get("tool_choice") == "none" and not tree.get("tools"):
        del tree["tool_choice"]
    try:
        return ChatRequest.model_validate(tree).model_copy(update={"unused": unused})
    except ValidationError as error:
        raise from_validation(error) from None


def _without_nulls(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    return {name: value for name, value in message.items() if value is not None and name not in OF_A_REPLY}
