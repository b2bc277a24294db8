"""Supervised fine-tuning (`shoal sft`): a warm start for models that never score.

The packing, the log-probs and the average over tokens are the trainer's own (`batch.py`, `step.py`): an example is a
group of one answer, and its loss is the answer's negative log-likelihood. Prompts are context and are not learnt.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from shoal.devices import CPU
from shoal.errors import ConfigError, DivergedError, TaskError
from shoal.files import whole_directory
from shoal.models.chat import Turns
from shoal.models.load import Policy, load
from shoal.models.templates import template_of
from shoal.models.tiny import DEMONSTRATIONS
from shoal.protocol.rollout import bare_rollout
from shoal.tasks.environments.environment import Observation
from shoal.tasks.environments.source import worked_turns
from shoal.tasks.source import TaskSource, part_of
from shoal.train.batch import Group, pack
from shoal.train.scorer import logprobs


@dataclass(frozen=True, slots=True)
class SftConfig:
    """How to learn from examples. The rate rises over a tenth of the steps and then falls to 0, both linearly."""

    epochs: int = 1
    batch: int = 32
    lr: float = 1e-4
    token_budget: int = 4096
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    seed: int = 0

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        return self.lr * min((step + 1) / ceil(steps / 10), 1.0, (steps - step) / ceil(steps * 0.9))


def fit(
    policy: Policy, examples: Sequence[Group], config: SftConfig, progress: Callable[[int, int, float], None]
) -> list[float]:
    """Learns the examples and returns each step's loss; `progress` hears (step, steps, loss)."""
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay)
    batches = list(_batches(examples, config))
    losses: list[float] = []
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = config.rate(step, len(batches))
        optimizer.zero_grad(set_to_none=True)
        packed = pack(batch, config.token_budget)
        total = sum(m.target_A.numel() for m in packed)
        loss = 0.0
        for m in packed:
            logp_A, _ = logprobs(policy, m.to(policy.device), 1.0)
            share = -logp_A.sum() / total
            torch.autograd.backward(share)
            loss += float(share.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.grad_clip))
        if not (isfinite(loss) and isfinite(norm)):
            raise DivergedError(
                f"sft step {step}: the loss is {loss}, the gradient {norm}; lower --lr, now {config.lr:g}"
            )
        optimizer.step()
        losses.append(loss)
        progress(step + 1, len(batches), loss)
    return losses


def _batches(examples: Sequence[Group], config: SftConfig) -> Iterator[list[Group]]:
    for epoch in range(config.epochs):
        order = list(examples)
        Random(f"{config.seed}:{epoch}").shuffle(order)
        for begin in range(0, len(order), config.batch):
            yield order[begin : begin + config.batch]


def example(policy: Policy, prompt: list[int], answer: str) -> Group:
    """A prompt with the answer to learn and the token that ends it."""
    ids = [*policy.tokenizer.encode(answer, add_special_tokens=False), min(policy.eos_ids)]
    sample = bare_rollout(prompt, ids)
    return Group(sample.prompt, [sample], [1.0], 0)


def episode(policy: Policy, prompt: list[int], turns: Sequence[tuple[str, Observation]]) -> Group:
    """The same with several answers, and what an environment says to each but the last."""
    eos, between = min(policy.eos_ids), Turns.of(policy).between
    ids, runs, said = list[int](), list[int](), 0
    for number, (action, seen) in enumerate(turns, 1):
        answer = [*policy.tokenizer.encode(action, add_special_tokens=False), eos]
        told = between(eos, seen.role, seen.text) if number < len(turns) else []
        ids += answer + told
        runs += [len(answer), len(told)]
        said += len(answer)
    sample = replace(bare_rollout(prompt, ids, [0.0] * said), runs=np.array(runs[:-1], np.int32))
    return Group(sample.prompt, [sample], [1.0], 0)


def from_source(policy: Policy, source: TaskSource, count: int) -> list[Group]:
    """A source's own worked answers, out of its train tasks; of an environment, worked episodes."""
    examples = []
    for index in range(count):
        task = source.task("train", DEMONSTRATIONS + index)
        turns = worked_turns(part_of(source, task.source), task)
        if turns is None:
            raise TaskError(
                f"{task.source} task {task.index}: has no worked answer to learn from; leave the source out, or give "
                "conversations in its place"
            )
        prompt = policy.encode_task(task)
        examples.append(episode(policy, prompt, turns) if len(turns) > 1 else example(policy, prompt, turns[0][0]))
    return examples


def from_conversations(policy: Policy, path: Path) -> list[Group]:
    """JSONL of `{"messages": [...]}`, each of the assistant's turns an example, or of `{"prompt", "completion"}`."""
    examples: list[Group] = []
    try:
        # Not splitlines: a text may hold U+2028 and other things that end a line elsewhere.
        lines = path.read_text("utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"sft {path}: cannot be read ({error.strerror})") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            examples += _conversation(policy, line, f"sft {path}: line {number}")
    if not examples:
        raise ConfigError(f"sft {path}: no conversation has an assistant's reply; give turns whose role is assistant")
    return examples


def _conversation(policy: Policy, line: str, where: str) -> list[Group]:
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not valid JSON ({error})") from None
    match row:
        case {"messages": [*messages]} if all(
            isinstance(m, dict) and {"role", "content"} <= m.keys() for m in messages
        ):
            return [
                example(policy, _context(policy, messages[:turn], where), str(message["content"]))
                for turn, message in enumerate(messages)
                if message["role"] == "assistant" and turn > 0
            ]
        case {"prompt": str() as prompt, "completion": str() as completion}:
            return [example(policy, policy.encode(prompt), completion)]
    raise ConfigError(f'{where}: has neither "messages" with role and content, nor "prompt" and "completion"')


def _context(policy: Policy, messages: Sequence[Mapping[str, Any]], where: str) -> list[int]:
    if policy.tokenizer.chat_template:
        turns = [{str(key): str(value) for key, value in message.items()} for message in messages]
        ids = policy.tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_dict=False, chat_template=template_of(policy.tokenizer)
        )
        return list(map(int, ids))
    if len(messages) > 1:
        raise ConfigError(
            f"{where}: has several turns, but the model has no chat template to tell them apart; give one turn"
        )
    return policy.encode(str(messages[0]["content"]))


def fit_model(
    model: Path,
    out: Path,
    examples_of: Callable[[Policy], list[Group]],
    config: SftConfig,
    console: Console,
    device: torch.device = CPU,
) -> None:
    """What the command does: loads, learns with a bar, and writes an ordinary model directory."""
    if out.exists():
        raise ConfigError(f"--out {out}: already exists; give another name or remove it")
    with console.status(f"loading {model}") as shown:
        policy = load(model, device=device)
        shown.update("reading examples")
        examples = examples_of(policy)
    longest = max(len(group.prompt) + len(group.samples[0].completion) for group in examples)
    if longest > min(config.token_budget, policy.max_positions):
        raise ConfigError(
            f"sft: the longest example takes {longest} tokens, the model handles {policy.max_positions} and "
            f"--token-budget is {config.token_budget}; raise that, or leave the example out"
        )
    columns = (TextColumn("sft"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.3f}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        row = bar.add_task("sft", total=None, loss=float("nan"))
        losses = fit(
            policy, examples, config, lambda step, steps, loss: bar.update(row, completed=step, total=steps, loss=loss)
        )
    with whole_directory(out, durable=True) as staging:
        for file in model.iterdir():
            if file.is_file() and file.suffix in (".json", ".jinja", ".txt", ".model") and "index" not in file.name:
                shutil.copy2(file, staging)
        policy.model.save_pretrained(staging)
    tail = losses[-max(1, len(losses) // 10) :]
    console.print(
        f"{out}: {len(examples)} examples, {len(losses)} steps, loss {losses[0]:.3f} -> {sum(tail) / len(tail):.3f}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
