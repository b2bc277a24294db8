"""Section `plan` of `python -m benchmarks sharding`: what `shoal plan` says of models that run here, against what they
take, counted storage by storage while the run's own code trains and generates.

Weights are random: memory does not depend on them.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult
from shoal.config import RunConfig
from shoal.config_io import check_config
from shoal.generate.engine import Request
from shoal.generate.torch_engine import TorchEngine
from shoal.models.attention import NAME as ATTENTION
from shoal.models.load import Policy, trainable
from shoal.models.weights import plan_files, specs_of, write_file
from shoal.plan.assumptions import DEVICES
from shoal.plan.file_size import file_bytes
from shoal.plan.live_bytes import LiveBytes
from shoal.plan.memory import Memory, engine_memory, trainer_memory, version_bytes
from shoal.plan.model_shape import KNOWN, ModelShape, measure_shape, policy_on_meta
from shoal.plan.passes import PassBytes, measure_passes
from shoal.protocol.lease import Lease
from shoal.protocol.rollout import Rollout
from shoal.protocol.submission import Submission, write_rollouts
from shoal.train.batch import Group
from shoal.train.learner import Learner, alone
from shoal.train.optimizer import AdamW
from shoal.train.sharding import recompute_activations
from shoal.train.step import train_step

# An answer ends at its length alone, so that every one is as long as the plan takes it to be.
NO_END = frozenset[int]()
CPU = DEVICES["cpu"]
WITHIN = 0.1


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with random weights and a run that would train it, filled to the brim."""

    architecture: PretrainedConfig
    config: RunConfig

    def policy(self) -> Policy:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(self.architecture, attn_implementation=ATTENTION)
        return Policy(model.eval(), cast("Any", None), NO_END)

    def measured(self) -> tuple[ModelShape, PassBytes]:
        def outlined(dtype: str) -> Policy:
            return policy_on_meta(self.architecture, dtype)

        return measure_shape(outlined("float32")), measure_passes(self.config, outlined, CPU, CPU)


def tiny(**train: Any) -> Subject:
    """The laptop's model and lengths."""
    sampling = {"group_size": 16, "max_new_tokens": 12, "max_prompt_tokens": 64}
    shape = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
    return Subject(
        AutoConfig.for_model("llama", vocab_size=267, max_position_embeddings=1024, tie_word_embeddings=True, **shape),
        _config(sampling, {"groups_per_step": 8, "token_budget": 960, **train}, max_batch=16),
    )


def smollm2_slice(layers: int, **train: Any) -> Subject:
    """SmolLM2's widths and vocabulary, with fewer layers."""
    architecture = AutoConfig.from_pretrained(KNOWN / "smollm2-135m-instruct.json", num_hidden_layers=layers)
    sampling = {"group_size": 4, "max_new_tokens": 17, "max_prompt_tokens": 64}
    return Subject(architecture, _config(sampling, {"groups_per_step": 8, "token_budget": 512, **train}, max_batch=8))


def _config(sampling: dict[str, int], train: dict[str, Any], max_batch: int) -> RunConfig:
    tasks = [{"source": "reasoning-gym/spell_backward"}]
    workers = {"max_batch": max_batch, "groups_per_submission": max_batch // sampling["group_size"]}
    tree = {"name": "plan", "steps": 1, "tasks": tasks, "sampling": sampling, "train": train, "workers": workers}
    return check_config(tree, "plan benchmark")


def tracked_training(subject: Subject) -> int:
    """The most bytes that live at once in the second of two training steps, when moments exist."""
    learner = _learner(subject)
    held = [*learner.policy.model.parameters(), *learner.policy.model.buffers()]
    if learner.reference is not None:
        held += [*learner.reference.policy.model.parameters(), *learner.reference.policy.model.buffers()]
    groups = _groups(subject)
    live = LiveBytes(held)
    with live:
        train_step(learner, groups, subject.config, 0)
        live.peak = live.now
        train_step(learner, groups, subject.config, 0)
    return live.peak


def _learner(subject: Subject) -> Learner:
    train = subject.config.train
    policy = subject.policy()
    reference = subject.policy() if train.loss.kl_coef > 0 else None
    if reference is not None:
        reference.model.requires_grad_(False)
    if train.activation_checkpointing:
        recompute_activations(policy, offload=train.offload_activations)
    parameters = [p for _, p in trainable(policy.model)]
    return alone(policy, reference, AdamW(parameters, lr=1e-6, betas=train.betas, weight_decay=train.weight_decay))


def _groups(subject: Subject) -> list[Group]:
    """Groups of the longest prompts and answers, of an older version: nobody compares their log-probs."""
    sampling, rng = subject.config.sampling, Random(0)
    vocab = int(subject.architecture.vocab_size)
    groups = []
    for number in range(subject.config.train.groups_per_step):
        prompt = [rng.randrange(vocab) for _ in range(sampling.max_prompt_tokens)]
        answers = [[rng.randrange(vocab) for _ in range(sampling.max_new_tokens)] for _ in range(sampling.group_size)]
        samples = [_rollout(number, place, prompt, ids, [-5.0] * len(ids), b"") for place, ids in enumerate(answers)]
        groups.append(Group(samples[0].prompt, samples, [0.5 - place % 2 for place in range(len(samples))], -1, number))
    return groups


def _rollout(
    group: int, sample: int, prompt: list[int], ids: list[int], logprobs: list[float], proof: bytes
) -> Rollout:
    tokens = np.array(prompt, dtype=np.int32), np.array(ids, dtype=np.int32), np.array(logprobs, dtype=np.float32)
    return Rollout(group, sample, "plan", group, *tokens, "length", float(sample % 2), 0.5, "", proof)


def tracked_engine(subject: Subject) -> tuple[int, bytes]:
    """Bytes that an engine holds after a full batch, with the states of its answers, and the rollout file of it.

    No worker keeps them: they are asked for here because memory that is gone after a chunk cannot be counted."""
    sampling, policy = subject.config.sampling, subject.policy()
    slots, rng = subject.config.workers.max_batch, Random(0)
    groups = slots // sampling.group_size
    vocab = int(subject.architecture.vocab_size)
    prompts = [[rng.randrange(vocab) for _ in range(sampling.max_prompt_tokens)] for _ in range(groups)]
    requests = [Request(tuple(prompts[n // sampling.group_size]), 1, n, sampling.max_new_tokens) for n in range(slots)]
    live = LiveBytes([*policy.model.parameters(), *policy.model.buffers()])
    with live:
        engine = TorchEngine(policy, max_batch=slots, max_len=subject.config.max_len, temperature=1.0)
        made = sorted(engine.generate(requests, hidden=True), key=lambda completion: completion.key)
    rollouts = []
    for completion in made:
        group, sample = divmod(completion.key, sampling.group_size)
        rollouts.append(
            _rollout(group, sample, prompts[group], completion.tokens, completion.logprobs, completion.proof)
        )
    lease = Lease("plan", "worker-0", 0, 0, 0, groups, 0, 0.0)
    return live.now, write_rollouts(Submission(lease, 0, "0" * 64, rollouts), groups)


def published_bytes(subject: Subject, folder: Path) -> int:
    """Bytes of a version's weight files."""
    weights = subject.policy().weights()
    for file in plan_files(specs_of(weights, torch.float32)):
        write_file(folder, file, ((name, weights[name]) for name in file.tensors))
    return sum(path.stat().st_size for path in folder.iterdir())


def worker_side(subject: Subject, shape: ModelShape, passes: PassBytes) -> Memory:
    """A plan of what `tracked_engine` counts: nothing that is gone again after a token."""
    slots = subject.config.workers.max_batch
    states = slots * subject.config.sampling.max_new_tokens * shape.hidden * 4
    engine = engine_memory(subject.config, shape, passes, "float32", slots).device
    return Memory({"weights": engine["weights"], "KV cache": engine["KV cache"], "states": states}, {})


def compare(subject: Subject) -> dict[str, float]:
    """Planned over tracked, of everything that can be tracked here."""
    shape, passes = subject.measured()
    sampling = subject.config.sampling
    engine, file = tracked_engine(subject)
    with tempfile.TemporaryDirectory() as folder:
        version = published_bytes(subject, Path(folder))
    planned_file = file_bytes(subject.config, shape, sampling.max_prompt_tokens, sampling.max_new_tokens)
    return {
        "training": trainer_memory(subject.config, shape, passes, CPU).total / tracked_training(subject),
        "engine": worker_side(subject, shape, passes).total / engine,
        "version": version_bytes(subject.config, shape) / version,
        "file": planned_file / len(file),
    }


def subjects(quick: bool) -> dict[str, Subject]:
    if quick:
        return {"tiny": tiny()}
    return {
        "tiny": tiny(),
        "tiny_recomputed": tiny(activation_checkpointing=True),
        "smollm2_slice": smollm2_slice(8),
        "smollm2_slice_recomputed": smollm2_slice(8, activation_checkpointing=True),
    }


def bench_plan(quick: bool, progress: Progress) -> BenchResult:
    """Ratios of planned to tracked, the largest relative error, and its bar."""
    ratios: dict[str, float] = {}
    for name, subject in subjects(quick).items():
        progress.stage(f"plan of {name}")
        ratios |= {f"plan_{name}_{what}": ratio for what, ratio in compare(subject).items()}
    return BenchResult("plan", ratios, {"plan_error": worst(list(ratios.values()))}, {"plan_error": ("<=", WITHIN)})


def worst(ratios: Sequence[float]) -> float:
    """How far the plan is off at most."""
    return max(abs(ratio - 1) for ratio in ratios)
