"""TRL's GRPOTrainer, stepped from outside: one side of `python -m benchmarks loop`.

A standalone script. The python of TRL's own environment runs it (`peers.process`), so it imports nothing of shoal, and
they meet only in JSON lines on stdin and stdout:

    in   {"model": "/path", "prompts": [...], ...}      the job, see `Job`
    out  {"ready": true, "trl": "1.16.0", ...}          after the warm-up
    in   {"steps": 5}                                   as often as wanted
    out  {"steps": 5, "seconds": 2.1, "samples": 320, "prompt_tokens": 5440, "generated_tokens": 10240}
    in   {"stop": true}, or the end of stdin            it exits

Between two rounds it blocks inside the training loop and uses no processor, so the other side can be measured there.
What TRL prints goes to stderr. A setting that is not TRL's default is here to make the work equal or TRL faster, never
to slow it down.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, TextIO

UNENDING = 10**9
# The Trainer builds its data loader again whenever the dataset ends: a long dataset makes that rare.
STEPS_IN_DATASET = 1024
MAX_WARMUP_STEPS = 16


@dataclass(frozen=True)
class Job:
    """The work, the same for both sides. Every completion has exactly `max_new_tokens` tokens."""

    model: str
    prompts: list[str]  # plain text: tokenized as it stands, never put through a chat template
    prompts_per_step: int
    group_size: int
    max_new_tokens: int
    lr: float
    kl_coef: float
    temperature: float
    threads: int


def warmup_steps(job: Job) -> int:
    """One pass over the prompts, within bounds.

    torch.compile compiles at the first step and, where prompts differ in length, again at the first other length. Both
    must be over before the clock runs.
    """
    one_pass = -(-len(job.prompts) // job.prompts_per_step)
    return min(max(one_pass, 2), MAX_WARMUP_STEPS)


@dataclass(frozen=True)
class Count:
    """What the trainer has done so far, as it tells it itself."""

    samples: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0

    def since(self, earlier: "Count") -> dict[str, int]:
        return {name: value - getattr(earlier, name) for name, value in vars(self).items()}


@dataclass
class Rounds:
    """Lets the training loop take the steps that were ordered, then answers and waits for the next order."""

    answers: TextIO
    ready: dict[str, Any]
    left: int
    ordered: int = 0
    started: float = 0.0
    before: Count = field(default_factory=Count)

    def before_step(self, count: Count) -> None:
        """Returns when the next step should run."""
        if self.left == 0:
            seconds = time.perf_counter() - self.started
            done = {"steps": self.ordered, "seconds": seconds, **count.since(self.before)}
            self.answers.write(json.dumps(done if self.ordered else self.ready) + "\n")
            self.answers.flush()
            order = json.loads(sys.stdin.readline() or '{"stop": true}')
            if order.get("stop"):
                raise SystemExit(0)
            self.ordered = self.left = order["steps"]
            self.before = count
            self.started = time.perf_counter()
        self.left -= 1


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = Job(**json.loads(sys.stdin.readline()))
    # Read when the libraries are imported, so they are imported after this, in `train`.
    os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = str(job.threads)
    os.environ["HF_HUB_OFFLINE"] = os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="shoal-trl-") as scratch:
        train(job, answers, scratch)


def train(job: Job, answers: TextIO, scratch: str) -> None:
    import torch
    import transformers
    import trl  # type: ignore[import-not-found]
    from datasets import Dataset

    torch.set_num_threads(job.threads)
    # Compiling needs a C++ compiler. It is found as torch finds it.
    compiled = shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")) is not None
    settings = trl.GRPOConfig(
        output_dir=scratch,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        torch_compile=compiled,
        max_steps=UNENDING,
        shuffle_dataset=False,
        # One generation, then one optimizer step on all of it.
        num_generations=job.group_size,
        per_device_train_batch_size=job.prompts_per_step * job.group_size,
        gradient_accumulation_steps=1,
        num_iterations=1,
        max_completion_length=job.max_new_tokens,
        temperature=job.temperature,
        learning_rate=job.lr,
        lr_scheduler_type="constant",
        beta=job.kl_coef,
    )
    samples = 0

    def even_tokens(completion_ids: list[list[int]], **_: Any) -> list[float]:
        """A reward that costs nothing and differs within a group."""
        nonlocal samples
        samples += len(completion_ids)
        lengths = {len(ids) for ids in completion_ids}
        if lengths != {job.max_new_tokens}:
            raise ValueError(f"completions have {sorted(lengths)} tokens, the job says {job.max_new_tokens}")
        return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]

    ready = {
        "ready": True,
        "trl": trl.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "torch_compile": compiled,
    }
    rounds = Rounds(answers, ready, left=warmup_steps(job))

    class Stepper(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: transformers.TrainerState, control: Any, **_: Any) -> None:  # noqa: ARG002
            generated = samples * job.max_new_tokens
            rounds.before_step(Count(samples, state.num_input_tokens_seen - generated, generated))

    prompts = list(islice(cycle(job.prompts), STEPS_IN_DATASET * job.prompts_per_step))
    trainer = trl.GRPOTrainer(
        model=job.model,
        reward_funcs=even_tokens,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        callbacks=[Stepper()],
    )
    # A sequence that may not end has the fixed length. `min_new_tokens` would do the same, 2% slower.
    trainer.generation_config.suppress_tokens = trainer.eos_token_ids
    trainer.train()


if __name__ == "__main__":
    main()
