"""The tiny model is an ordinary model directory, small, deterministic, and warmer after its warm start."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from shoal.config import TinyConfig
from shoal.errors import ModelError, TaskError
from shoal.models.load import Policy, load
from shoal.models.tiny import ASK, COMMON, DEMONSTRATIONS, EOS, PAD, SURVEY, build_tiny, build_tokenizer, warm_start
from shoal.models.weights import WEIGHTS
from shoal.tasks.source import Split, Task
from shoal.tasks.sources.gym.source import ReasoningGym

EASY = {"min_word_len": 3, "max_word_len": 4}


class Phrases:
    """A source whose every question opens with the same words, in several scripts."""

    name = "phrases"

    def task(self, split: Split, index: int) -> Task:
        return Task(self.name, index, f"Écris café 東京 please, Ġ twice: {index}", str(index), {})

    def score(self, task: Task, answer: str) -> float:
        return float(answer == task.answer)


class Unanswered(Phrases):
    def task(self, split: Split, index: int) -> Task:
        return Task(self.name, index, "why?", None, {})


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(ReasoningGym("spell_backward", {}))


@pytest.fixture(scope="module")
def international() -> PreTrainedTokenizerFast:
    return build_tokenizer(Phrases())


def round_trip(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    return str(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=True))


# Only the names of the special tokens themselves do not come back.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60).filter(
    lambda text: not any(name in text for name in (PAD, EOS, ASK))
)


@settings(max_examples=300, deadline=None)
@given(texts)
@example("")
@example("  two  spaces , a comma ; don 't \r\n\ttab")
@example("<answer>cat</answer>")
@example("</s><s>[INST]<eos><pad>")
@example("Spell this word backward (example: sun -> nus): cat")
@example("a\u0301 \U0001f9d1\u200d\U0001f680 \x00\x7f\u0085\u2028")
def test_any_text_comes_back_as_it_was(
    tokenizer: PreTrainedTokenizerFast, international: PreTrainedTokenizerFast, text: str
) -> None:
    assert round_trip(tokenizer, text) == text
    assert round_trip(international, text) == text


@given(st.integers(0, 10**9))
def test_words_of_any_script_come_back_even_if_every_question_has_them(
    international: PreTrainedTokenizerFast, index: int
) -> None:
    text = Phrases().task("train", index).prompt
    assert round_trip(international, text) == text


def test_words_that_most_questions_share_are_one_token_each(tokenizer: PreTrainedTokenizerFast) -> None:
    tasks = ReasoningGym("spell_backward", {})
    prompts = [tasks.task("train", DEMONSTRATIONS + i).prompt for i in range(SURVEY)]
    pieces = [set(re.findall(r"\s*\S+", prompt)) for prompt in prompts]
    shared = [piece for piece in pieces[0] if sum(piece in p for p in pieces) >= COMMON * SURVEY]
    assert len(shared) >= 5
    for piece in shared:
        assert len(tokenizer.encode(piece, add_special_tokens=False)) == 1, piece


def test_every_byte_of_a_word_that_is_not_shared_is_a_token(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer.encode("zyzzyva", add_special_tokens=False)) == 7


def test_a_question_ends_with_the_token_that_asks_for_the_answer(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.encode("cat") == [*tokenizer.encode("cat", add_special_tokens=False), 2]


def test_demonstrations_of_tagged_tasks_score_full_reward_after_a_round_trip(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tasks = ReasoningGym("spell_backward", {}, answer="tagged")
    task = tasks.task("train", 0)
    assert task.answer is not None
    assert tasks.score(task, round_trip(tokenizer, task.answer)) == 1.0


def test_any_tool_of_the_ecosystem_opens_it(tiny_dir: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_dir)
    ids = tokenizer("Spell this word backward (example: sun -> nus): cat", return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=5, do_sample=False)
    assert out.shape[0] == 1
    assert model.config.model_type == "llama"
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (model.config.eos_token_id, model.config.pad_token_id)
    assert round_trip(tokenizer, "naïve 東京") == "naïve 東京"


def test_the_default_model_has_between_half_a_million_and_five_million_parameters(tmp_path: Path) -> None:
    build_tiny(tmp_path, TinyConfig(warm_steps=0), ReasoningGym("spell_backward", {}), 0, lambda *_: None)
    assert 0.5e6 < sum(tensor.numel() for tensor in load_file(tmp_path / WEIGHTS).values()) < 5e6


def build(directory: Path, seed: int, steps: int = 3) -> dict[str, torch.Tensor]:
    config = TinyConfig(hidden=32, layers=1, warm_steps=steps, warm_batch=4)
    directory.mkdir()
    build_tiny(directory, config, ReasoningGym("spell_backward", dict(EASY)), seed, lambda *_: None)
    return load_file(directory / WEIGHTS)


def test_the_same_seed_builds_the_same_model_and_another_seed_another(tmp_path: Path) -> None:
    first, again, other = build(tmp_path / "a", 3), build(tmp_path / "b", 3), build(tmp_path / "c", 4)
    assert first.keys() == again.keys() == other.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_a_warm_start_lowers_the_loss_and_tells_of_every_step(tiny_policy: Policy) -> None:
    config = TinyConfig(hidden=64, layers=2, warm_steps=40, warm_batch=16)
    heard: list[tuple[int, int, float]] = []
    warm_start(tiny_policy, config, ReasoningGym("spell_backward", dict(EASY)), lambda *told: heard.append(told))
    assert [(step, steps) for step, steps, _ in heard] == [(i + 1, 40) for i in range(40)]
    losses = [loss for _, _, loss in heard]
    assert losses[0] > 4.0
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0]


def test_the_warm_start_is_what_is_saved(tmp_path: Path) -> None:
    cold, warm = build(tmp_path / "cold", 0, steps=0), build(tmp_path / "warm", 0, steps=2)
    assert any(not torch.equal(cold[name], warm[name]) for name in cold)
    saved = load(tmp_path / "warm").weights()
    assert all(torch.equal(saved[name], warm[name]) for name in warm)


def test_a_warm_start_that_diverges_says_which_setting_to_lower(tiny_policy: Policy) -> None:
    config = TinyConfig(warm_steps=4, warm_batch=2, warm_lr=1e30)
    with pytest.raises(ModelError, match=r"diverged at model\.tiny\.warm_lr = 1e\+30; lower it"):
        warm_start(tiny_policy, config, ReasoningGym("spell_backward", dict(EASY)), lambda *_: None)


def test_a_task_without_a_worked_answer_cannot_warm_a_model(tiny_policy: Policy) -> None:
    config = TinyConfig(warm_steps=1, warm_batch=1)
    with pytest.raises(TaskError, match=r"phrases task .* no worked answer"):
        warm_start(tiny_policy, config, Unanswered(), lambda *_: None)
