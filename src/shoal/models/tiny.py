"""A small Llama that this machine can build in a minute: byte-level tokenizer, random weights, a short warm start.

It is an ordinary transformers directory, so every tool of the ecosystem opens it. The warm start shows it worked
answers from the train split until it is weak but not hopeless: reinforcement learning needs some right answers to
begin with.
"""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from shoal.config import TinyConfig
from shoal.errors import ModelError, TaskError
from shoal.models.attention import Packed
from shoal.models.chat import Turns
from shoal.models.load import Policy, load
from shoal.tasks.environments.source import worked_turns
from shoal.tasks.source import Task, TaskSource, part_of

POSITIONS = 1024
# Special tokens vanish when an answer is decoded, so none may look like what a task asks for, as <answer> does.
PAD, EOS, ASK = "<|pad|>", "<|eos|>", "<|ask|>"
# Tokens of context that the boilerplate vocabulary is read from, and how common a word must be to become one token.
SURVEY = 512
COMMON = 0.2
HEAD_SIZE = 32
GRAD_CLIP = 1.0
# Demonstrations have their own part of the index space; split_of keeps them apart from held-out tasks in any case.
DEMONSTRATIONS = 1 << 40


def build_tiny(
    directory: Path, config: TinyConfig, tasks: TaskSource, seed: int, progress: Callable[[int, int, float], None]
) -> None:
    """Writes a warm-started model into an empty directory; `progress` hears (step, steps, loss)."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(tasks)
    model = LlamaForCausalLM(tiny_architecture(config, tokenizer))
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)
    policy = load(directory)
    warm_start(policy, config, tasks, progress)
    policy.model.save_pretrained(directory)


def tiny_architecture(config: TinyConfig, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """The shape of the tiny model, which follows from its settings and from the words of its tasks."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden,
        intermediate_size=3 * config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.hidden // HEAD_SIZE,
        num_key_value_heads=config.hidden // HEAD_SIZE,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def build_tokenizer(tasks: TaskSource) -> PreTrainedTokenizerFast:
    """Every byte is a token, and so is every word that most questions share: boilerplate costs next to nothing."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {PAD: 0, EOS: 1, ASK: 2, **{char: 3 + i for i, char in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, EOS, ASK])
    words: Counter[str] = Counter()
    for index in range(SURVEY):
        words.update(set(re.findall(r"\s*\S+", tasks.task("train", DEMONSTRATIONS + index).prompt)))
    # The decoder takes é for the byte it stands for in the byte alphabet, so only ASCII words come back as they were.
    frequent = (word for word, count in words.items() if count >= COMMON * SURVEY)
    common = sorted(word for word in frequent if len(word) > 1 and word.isascii())
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in common])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {ASK}", special_tokens=[(ASK, 2)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS)


def warm_start(
    policy: Policy, config: TinyConfig, tasks: TaskSource, progress: Callable[[int, int, float], None]
) -> None:
    """Supervised steps on worked answers, with a linear warm-up and decay of the learning rate."""
    model = policy.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.warm_lr, betas=(0.9, 0.95), weight_decay=0.01)
    eos = min(policy.eos_ids)
    for step in range(config.warm_steps):
        first = DEMONSTRATIONS + step * config.warm_batch
        drawn = (tasks.task("train", first + i) for i in range(config.warm_batch))
        shown = [_demonstration(policy, tasks, task, eos) for task in drawn]
        packed = Packed([len(ids) for ids, _ in shown])
        ids_T = torch.tensor([token for ids, _ in shown for token in ids])
        targets_A = torch.cat([start + torch.tensor(own) for start, (_, own) in zip(packed.starts, shown, strict=True)])
        hidden_TD = policy.hidden(ids_T.unsqueeze(0), packed.positions_1T, packed)[0]
        loss = F.cross_entropy(policy.head(hidden_TD[targets_A - 1]), ids_T[targets_A])
        for group in optimizer.param_groups:
            group["lr"] = config.warm_lr * min((step + 1) / 50, 1 - step / config.warm_steps)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        progress(step + 1, config.warm_steps, float(loss.detach()))
    if not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise ModelError(f"model tiny: the warm start diverged at model.tiny.warm_lr = {config.warm_lr}; lower it")


def _demonstration(policy: Policy, tasks: TaskSource, task: Task, eos: int) -> tuple[list[int], list[int]]:
    """Tokens of a worked answer behind its prompt, and the places of those that the model is to say."""
    ids, said = policy.encode_task(task), list[int]()
    turns = worked_turns(part_of(tasks, task.source), task)
    if turns is None:
        raise TaskError(f"{task.source} task {task.index}: has no worked answer to show to the tiny model")
    between = Turns.of(policy).between
    for number, (action, seen) in enumerate(turns, 1):
        answer = [*policy.tokenizer.encode(action, add_special_tokens=False), eos]
        said += range(len(ids), len(ids) + len(answer))
        ids += answer
        if number < len(turns):
            ids += between(eos, seen.role, seen.text)
    return ids, said
