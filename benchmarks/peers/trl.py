"""TRL's GRPOTrainer, stepped from outside: one side of `python -m benchmarks loop`, and of `turns` with episodes.

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

Episodes are TRL's own kind (`environment_factory`): what the policy says in a turn is a call of the environment's one
tool, unless it is its answer. TRL finds calls in a reply with the tokenizer's `parse_response`; a tiny model says
actions as they are and no JSON, so the script gives its tokenizer one that takes a reply for an action.
"""

import importlib.util
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
class Episodes:
    """What makes completions episodes of several turns."""

    environment: str  # path of a module with reset, step and score, which imports nothing of shoal
    options: dict[str, Any]
    seeds: list[int]  # of the prompts
    template: str  # a chat template that gives the tokens that our side has
    final: str  # what the policy's last action begins with
    max_turns: int
    turn_tokens: int


@dataclass(frozen=True)
class Job:
    """The work, the same for both sides. Every completion other than an episode has exactly `max_new_tokens` tokens."""

    model: str
    prompts: list[str]  # plain text: tokenized as it stands, never put through a chat template but for episodes
    prompts_per_step: int
    group_size: int
    max_new_tokens: int
    lr: float
    kl_coef: float
    temperature: float
    threads: int
    episodes: Episodes | None = None


def read_job(line: str) -> Job:
    tree = json.loads(line)
    episodes = tree.pop("episodes", None)
    return Job(**tree, episodes=Episodes(**episodes) if episodes else None)


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
    job = read_job(sys.stdin.readline())
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
    # Compiling needs a C++ compiler. It is found as torch finds it. Episodes differ in length at every step, and would
    # be compiled for again.
    compiler = shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++"))
    compiled = compiler is not None and job.episodes is None
    turns = {"max_tool_calling_iterations": job.episodes.max_turns - 1} if job.episodes is not None else {}
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
        **turns,
    )
    samples = 0
    played = Playing(job, transformers) if job.episodes is not None else None

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
            seen = state.num_input_tokens_seen
            if played is not None:
                rounds.before_step(Count(played.episodes, played.prompt_tokens, seen - played.prompt_tokens))
                return
            generated = samples * job.max_new_tokens
            rounds.before_step(Count(samples, seen - generated, generated))

    count = STEPS_IN_DATASET * job.prompts_per_step
    trainer = trl.GRPOTrainer(
        model=job.model,
        reward_funcs=even_tokens if played is None else played.score,
        args=settings,
        train_dataset=Dataset.from_dict(
            {name: list(islice(cycle(rows), count)) for name, rows in dataset(job).items()}
        ),
        callbacks=[Stepper()],
        **({} if played is None else {"processing_class": played.tokenizer, "environment_factory": played.environment}),
    )
    if job.episodes is not None:
        trainer.generation_config.max_new_tokens = job.episodes.turn_tokens  # TRL has no limit of its own on a turn
    else:
        # A sequence that may not end has the fixed length. `min_new_tokens` would do the same, 2% slower.
        trainer.generation_config.suppress_tokens = trainer.eos_token_ids
    trainer.train()


def dataset(job: Job) -> dict[str, list[Any]]:
    """The columns of the dataset. Seeds have 64 bits, more than a column of numbers takes."""
    if job.episodes is None:
        return {"prompt": job.prompts}
    asked = [[{"role": "user", "content": prompt}] for prompt in job.prompts]
    return {"prompt": asked, "seed": list(map(str, job.episodes.seeds))}


class Playing:
    """The environment as TRL has it, and what was played."""

    def __init__(self, job: Job, transformers: Any) -> None:
        assert job.episodes is not None
        self._rules = job.episodes
        spec = importlib.util.spec_from_file_location("environment", self._rules.environment)
        assert spec is not None
        assert spec.loader is not None
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(job.model)
        self.tokenizer.chat_template = self._rules.template
        self.tokenizer.response_template = {}  # or TRL looks for one that belongs to the template
        self.tokenizer.parse_response = self.read
        rendered = [[{"role": "user", "content": prompt}] for prompt in job.prompts]
        ids = self.tokenizer.apply_chat_template(rendered, tokenize=True, return_dict=False, add_generation_prompt=True)
        self._prompt_tokens = dict(zip(map(str, self._rules.seeds), map(len, ids), strict=True))
        self.episodes = self.prompt_tokens = 0

    def read(self, ids: list[int], **_: Any) -> dict[str, Any]:
        """A reply as a message. A turn that was cut off is not an action."""
        if ids[-1] != self.tokenizer.eos_token_id:
            return {"role": "assistant", "content": ""}
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        if text.startswith(self._rules.final):
            return {"role": "assistant", "content": text}
        call = {"name": "act", "arguments": {"action": text}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}

    def reset(self, seed: str) -> dict[str, Any]:
        self.prompt_tokens += self._prompt_tokens[seed]
        state: dict[str, Any] = self.module.reset(int(seed), **self._rules.options)
        return state

    @property
    def environment(self) -> type:
        playing = self

        class Environment:
            def __init__(self) -> None:
                self._state: dict[str, Any] = {}

            def reset(self, seed: str, **_: Any) -> None:
                self._state = playing.reset(seed)

            def act(self, action: str) -> str:
                """Does something.

                Args:
                    action: What is done.
                """
                return str(playing.module.step(self._state, action))

        return Environment

    def score(self, completions: list[list[dict[str, Any]]], environments: list[Any], **_: Any) -> list[float]:
        """What each episode has earned, after its last action."""
        self.episodes += len(completions)
        for messages, environment in zip(completions, environments, strict=True):
            if said := messages[-1]["content"]:
                self.module.step(environment._state, said)
        return [float(self.module.score(environment._state)) for environment in environments]


if __name__ == "__main__":
    main()
