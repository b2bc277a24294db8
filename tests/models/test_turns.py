"""Prompts with a system turn before them and the beginning of the answer behind them."""

import pytest

from shoal.errors import ModelError
from shoal.models.load import Policy
from shoal.tasks.source import Task

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def text_of(policy: Policy, **turns: str) -> str:
    task = Task("s", 0, "1 + 1?", None, {}, turns.get("system", ""), turns.get("prefill", ""))
    return str(policy.tokenizer.decode(policy.encode_task(task)))


def test_a_chat_template_gets_a_system_turn_and_the_answer_begins_with_the_prefill(tiny_policy: Policy) -> None:
    tiny_policy.tokenizer.chat_template = TEMPLATE
    assert text_of(tiny_policy) == "[user]1 + 1?[assistant]"
    assert text_of(tiny_policy, system="Be brief.") == "[system]Be brief.[user]1 + 1?[assistant]"
    assert text_of(tiny_policy, prefill="<think>\n") == "[user]1 + 1?[assistant]<think>\n"


def test_a_template_that_begins_the_thinking_itself_does_so_once(tiny_policy: Policy) -> None:
    tiny_policy.tokenizer.chat_template = TEMPLATE.replace("[assistant]", "[assistant]<think>\n")
    assert text_of(tiny_policy, prefill="<think>\n") == text_of(tiny_policy) == "[user]1 + 1?[assistant]<think>\n"


def test_without_a_template_turns_are_plain_text(tiny_policy: Policy) -> None:
    tiny_policy.tokenizer.chat_template = None
    plain = text_of(tiny_policy)
    assert text_of(tiny_policy, system="Be brief.", prefill="<think>") == plain.replace(
        "1 + 1?", "Be brief.\n1 + 1?<think>"
    )


@pytest.mark.parametrize(
    ("form", "date"), [("%d %b %Y", "01 Jan 2026"), ("%Y-%m-%d", "2026-01-01"), ("%B %-d, %A", "January 1, Thursday")]
)
def test_a_template_that_asks_for_the_date_is_told_the_same_one_at_any_time(
    tiny_policy: Policy, form: str, date: str
) -> None:
    """Or an honest worker in another time zone, or before midnight, would be blamed for its prompt."""
    today = "\n{% macro day() %}{{ strftime_now('" + form + "') }}{% endmacro %}"
    tiny_policy.tokenizer.chat_template = today + "{{ day() }}" + TEMPLATE
    assert text_of(tiny_policy) == text_of(tiny_policy, prefill="[assistant]") == f"\n{date}[user]1 + 1?[assistant]"


def test_a_template_that_takes_no_system_turn_is_an_error_that_names_it(tiny_policy: Policy) -> None:
    tiny_policy.tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE
    )
    assert text_of(tiny_policy) == "[user]1 + 1?[assistant]"
    with pytest.raises(
        ModelError, match=r"system turn 'Be brief\.': the model's chat template refuses it .*no system role"
    ):
        text_of(tiny_policy, system="Be brief.")
