"""A request goes on with what is recorded, or is refused by name: what was drawn is never written over."""

import sys

import pytest

from shoal.openai_api.errors import ApiError
from shoal.tasks.environments.harness.conversation import Conversation, Message, ToolCall
from shoal.tasks.environments.harness.tool_calls import described, read_reply

SYSTEM, ASKED = Message("system", "be brief"), Message("user", "guess")
SAID, TOLD = Message("assistant", "5"), Message("user", "higher")
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def talk() -> Conversation:
    """A conversation in which the policy has said something once."""
    known = Conversation()
    assert known.extend([SYSTEM, ASKED], "tools") == (SYSTEM, ASKED)
    known.say(SAID)
    return known


def test_what_a_request_adds_is_what_comes_next() -> None:
    known = talk()
    assert known.extend([SYSTEM, ASKED, SAID, TOLD], "tools") == (TOLD,)
    assert known.extend([SYSTEM, ASKED, SAID, TOLD], "tools") is None, "the same request again"
    known.say(Message("assistant", "7"))
    assert known.extend([SYSTEM, ASKED, SAID, TOLD], "tools") is None, "again, after its reply was lost on the way"


def test_space_around_a_reply_and_the_form_of_arguments_do_not_matter() -> None:
    known = talk()
    known.messages[-1] = Message("assistant", " 5\n", (ToolCall("c", "add", '{"a": 1, "b": 2}'),))
    repeated = Message("assistant", "5", (ToolCall("c", "add", '{"b":2,"a":1}'),))
    assert known.extend([SYSTEM, ASKED, repeated, TOLD], "tools") == (TOLD,)


@pytest.mark.parametrize(
    ("messages", "tools", "match"),
    [
        ([SYSTEM, ASKED, Message("assistant", "6"), TOLD], "tools", r"messages\.2: was '5' \(assistant\), and is '6'"),
        ([SYSTEM, Message("user", "say"), SAID, TOLD], "tools", r"messages\.1: was 'guess' \(user\), and is 'say'"),
        ([ASKED, SAID, TOLD], "tools", r"messages\.0: was a message of the system, and is one of the user"),
        ([SYSTEM, TOLD], "tools", r"messages\.1: was 'guess'"),
        ([SYSTEM], "tools", r"end before message 1 \(user\)"),
        ([SYSTEM, ASKED, SAID], "tools", "end with the policy's own reply"),
        (
            [SYSTEM, ASKED, SAID, TOLD, Message("assistant", "9")],
            "tools",
            r"messages\.4: is a reply that the policy did",
        ),
        ([SYSTEM, ASKED, SAID, TOLD], "other tools", "tools: differ from those of the first request"),
    ],
    ids=["another reply", "another question", "no system", "summary", "cut", "nothing new", "forged reply", "tools"],
)
def test_a_request_that_rewrites_history_is_refused_by_name(messages: list[Message], tools: str, match: str) -> None:
    known = talk()
    with pytest.raises(ApiError, match=match) as caught:
        known.extend(messages, tools)
    assert (caught.value.status, caught.value.code) == (400, "history_rewritten")
    assert known.extend([SYSTEM, ASKED, SAID, TOLD], "tools") == (TOLD,), "what was refused left nothing behind"


def test_a_request_that_goes_on_before_it_was_answered_is_refused() -> None:
    known = talk()
    known.extend([SYSTEM, ASKED, SAID, TOLD], "tools")
    with pytest.raises(ApiError, match="while the request before them is not answered"):
        known.extend([SYSTEM, ASKED, SAID, TOLD, TOLD], "tools")


def test_calls_are_read_from_the_text_that_the_policy_was_told_to_write() -> None:
    assert '{"name": "add", "parameters": {"type": "object"}}' in described([TOOL])
    assert described([]) == ""
    reply = read_reply('Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', 3, tools=True)
    assert reply == Message("assistant", "Sure.", (ToolCall("call_3_0", "add", '{"a": 1}'),))
    both = '<tool_call>[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]</tool_call>'
    assert [call.name for call in read_reply(both, 0, tools=True).calls] == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "no call",
        "<tool_call>{</tool_call>",
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "a", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "a", "arguments": {}}</tool_call> <tool_call>{</tool_call>',
        pytest.param("<tool_call>" + "[" * 100_000 + "</tool_call>", id="nested too deeply"),
    ],
)
def test_what_is_not_a_call_stays_text(text: str) -> None:
    assert read_reply(text, 0, tools=True) == Message("assistant", text)


def test_deep_nesting_ends_no_process_whose_libraries_allow_deep_recursion() -> None:
    text, limit = "<tool_call>" + "[" * 100_000 + "</tool_call>", sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(100_000)
        assert read_reply(text, 0, tools=True) == Message("assistant", text)
    finally:
        sys.setrecursionlimit(limit)


def test_nothing_is_a_call_where_there_are_no_tools() -> None:
    text = '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
    assert read_reply(text, 0, tools=False) == Message("assistant", text)
