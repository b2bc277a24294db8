"""Supervised learning: what is shown becomes likely, prompts are not learnt, and packing changes nothing."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from shoal.config import TaskConfig
from shoal.errors import ConfigError, DivergedError
from shoal.models.load import Policy, load
from shoal.models.tiny import DEMONSTRATIONS
from shoal.tasks.build import build_source
from shoal.tasks.sources.gym.source import ReasoningGym
from shoal.train.batch import pack
from shoal.train.scorer import logprobs
from shoal.train.sft import SftConfig, example, fit, fit_model, from_conversations, from_source
from tests.support.submissions import WORDS


def rows(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_what_is_shown_becomes_likely(tiny_dir: Path, tmp_path: Path) -> None:
    data = rows(tmp_path / "data.jsonl", *[{"prompt": f"{n}?", "completion": "aha"} for n in range(64)])
    told = io.StringIO()
    config = SftConfig(epochs=4, batch=8, lr=3e-3)
    out = tmp_path / "out"
    fit_model(tiny_dir, out, lambda policy: from_conversations(policy, data), config, Console(file=told, width=200))
    assert "64 examples, 32 steps, loss " in told.getvalue()
    before, after = (_loss(load(place), data) for place in (tiny_dir, out))
    assert after < 0.3 * before


def _loss(policy: Policy, data: Path) -> float:
    [batch] = pack(from_conversations(policy, data)[:8], 4096)
    with torch.no_grad():
        return -float(logprobs(policy, batch, 1.0)[0].mean())


def test_packing_changes_nothing(tiny_dir: Path) -> None:
    losses = []
    for budget in (40, 4096):
        policy = load(tiny_dir)
        source = ReasoningGym("spell_backward", dict(WORDS))
        examples = from_source(policy, source, 24)
        losses.append(fit(policy, examples, SftConfig(batch=12, lr=1e-3, token_budget=budget), lambda *_: None))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_of_a_worked_episode_what_the_policy_says_is_learnt_and_what_it_is_told_is_context(tiny_dir: Path) -> None:
    policy, source = load(tiny_dir), build_source([TaskConfig(source="environment/calculator")])
    group = from_source(policy, source, 3)[2]
    [sample] = group.samples
    said = [policy.decode(sample.completion[begin:end]) for begin, end in sample.turns]
    task = source.task("train", DEMONSTRATIONS + 2)
    left, right = map(int, task.prompt.rstrip("?").split("*"))
    assert said == [f"{left}*{right}", f"={left * right}"]
    assert all(sample.completion[end - 1] in policy.eos_ids for _, end in sample.turns)
    [batch] = pack([group], 4096)
    assert batch.target_A.numel() == sample.drawn_count == sum(end - begin for begin, end in sample.turns)
    losses = fit(policy, [group] * 60, SftConfig(batch=2, lr=3e-3), lambda *_: None)
    assert losses[-1] < 0.3 * losses[0]


def test_only_answers_are_learnt(tiny_dir: Path) -> None:
    policy = load(tiny_dir)
    group = example(policy, policy.encode("What?"), "That.")
    assert group.samples[0].prompt.tolist() == policy.encode("What?")
    assert policy.decode(group.samples[0].completion) == "That."
    assert group.samples[0].completion[-1] in policy.eos_ids


def test_each_turn_of_the_assistant_is_an_example(tiny_dir: Path, tmp_path: Path) -> None:
    policy = load(tiny_dir)
    policy.tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    talk = [
        {"role": role, "content": text}
        for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    ]
    first, second = from_conversations(policy, rows(tmp_path / "x.jsonl", {"messages": talk}))
    assert policy.decode(first.samples[0].completion) == "b"
    assert "[assistant]b[user]c" in policy.decode(second.prompt)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"text": "x"}, 'line 1: has neither "messages" with role and content, nor "prompt" and "completion"'),
        ({"messages": [{"role": "user"}]}, "line 1: has neither"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no conversation has an assistant's reply"),
        (
            {"messages": [{"role": r, "content": "x"} for r in ("user", "assistant", "user", "assistant")]},
            "line 1: has several turns, but the model has no chat template",
        ),
    ],
)
def test_data_that_is_none_is_named(line: Any, says: str, tiny_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        from_conversations(load(tiny_dir), rows(tmp_path / "x.jsonl", line))


def test_an_example_that_is_too_long_is_named_before_anything_is_learnt(tiny_dir: Path, tmp_path: Path) -> None:
    data = rows(tmp_path / "x.jsonl", {"prompt": "x" * 50, "completion": "y"})
    config = SftConfig(token_budget=40)
    with pytest.raises(ConfigError, match="the longest example takes 53 tokens"):
        fit_model(tiny_dir, tmp_path / "o", lambda p: from_conversations(p, data), config, Console(file=io.StringIO()))


def test_a_rate_that_breaks_the_model_ends_it_with_a_reason(tiny_dir: Path) -> None:
    policy = load(tiny_dir)
    examples = from_source(policy, ReasoningGym("spell_backward", dict(WORDS)), 64)
    with pytest.raises(DivergedError, match=r"lower --lr, now 1e\+30"):
        fit(policy, examples, SftConfig(batch=4, lr=1e30), lambda *_: None)
