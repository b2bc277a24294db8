"""A chat loop with tools as a harness of `verifiers`, in this process: no program has to be installed and started.

The package's own loops (`null`, `bash`) are programs that it installs with uv and starts for each turn.
"""

import sys
from contextlib import AsyncExitStack
from typing import Any

import verifiers.v1 as vf
from mcp import Client, MCPError
from mcp.types import INVALID_PARAMS
from openai import AsyncOpenAI
from verifiers.v1.dialects.chat import message_to_wire

from shoal.files import parse_json

CHAT = "shoal_chat"
MAX_CALLS = 64


class ChatConfig(vf.HarnessConfig):  # type: ignore[misc]
    pass


class ChatHarness(vf.Harness[ChatConfig]):  # type: ignore[misc]
    """Asks the policy, calls the tools that it asks for, and ends with the first reply that calls none."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        del trace, runtime
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        async with AsyncExitStack() as stack:
            client: Any = await stack.enter_async_context(AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0))
            tools = await Tools.of(mcp_urls, stack)
            for _ in range(MAX_CALLS):
                asked: dict[str, Any] = {"tools": tools.schemas} if tools.schemas else {}
                answer = await client.chat.completions.create(model=ctx.model, messages=messages, **asked)
                reply = answer.choices[0].message
                messages.append(reply.model_dump(exclude_none=True))
                if not reply.tool_calls:
                    break
                for call in reply.tool_calls:
                    result = await tools.call(call.function.name, call.function.arguments)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class Tools:
    """The tool servers of a task."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self._of: dict[str, tuple[Client, str]] = {}

    @classmethod
    async def of(cls, urls: dict[str, str], stack: AsyncExitStack) -> "Tools":
        tools = cls()
        for name, url in urls.items():
            client = await stack.enter_async_context(Client(url))
            for tool in (await client.list_tools()).tools:
                full = f"{name}_{tool.name}" if name else tool.name
                tools._of[full] = client, tool.name
                function = {"name": full, "description": tool.description or "", "parameters": tool.input_schema}
                tools.schemas.append({"type": "function", "function": function})
        return tools

    async def call(self, name: str, arguments: str) -> str:
        """What a tool returns, or what is wrong with the call, which the policy may learn from.

        A tool that is lost, late or out of memory raises, and its episode is void: on another machine it might have
        answered.
        """
        if name not in self._of:
            return f"error: unknown tool {name!r}"
        client, own = self._of[name]
        try:
            given = parse_json(arguments)
        except ValueError:
            return "error: arguments are not valid JSON"
        if not isinstance(given, dict):
            return "error: arguments are a JSON object"
        try:
            result = await client.call_tool(own, given)
        except MCPError as error:
            if error.code != INVALID_PARAMS:
                raise
            return f"error: {error}"
        text = "\n".join(getattr(block, "text", "") for block in result.content)
        if result.is_error and text.rstrip().endswith(":"):
            raise RuntimeError(f"tool {name} failed without a reason, as one does that is out of memory or time")
        return text


# The package finds a harness by the name of a module.
__all__ = ["ChatHarness"]
sys.modules.setdefault(CHAT, sys.modules[__name__])
