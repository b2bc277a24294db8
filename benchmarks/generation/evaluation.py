"""`python -m benchmarks eval`: `shoal eval --suite` against the loop that one would otherwise write around `generate`.

Both ask the same tasks, draw as many answers to each from the plain softmax, and score them in a process of their own,
which is up before the clock starts. The loop takes a task at a time and draws its answers side by side
(`num_return_sequences`), which is what transformers offers for it.
"""

import os
import statistics
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.common.configs import base_model, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult
from shoal.evals.suite import measure_suite
from shoal.evals.suite_catalogue import BUILT_IN, Suite
from shoal.models.load import Policy, load
from shoal.tasks.build import build_source, split_up
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import Judge


def bench_eval(quick: bool, progress: Progress) -> BenchResult:
    """Seconds of both for one suite on the laptop's base model, in turns."""
    threads = os.cpu_count() or 1
    torch.set_num_threads(threads)
    suite = BUILT_IN["words"].model_copy(update={"tasks": 4 if quick else 50})
    directory = base_model(laptop_config(), progress)
    policy = load(directory)
    plain: Any = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, attn_implementation="sdpa")
    ours, theirs, solved = [], [], [0, 0]
    with Scorer(split_up(suite.sources)) as judge:
        plain_loop(plain.eval(), policy, suite.model_copy(update={"tasks": 1}), judge)
        for number in range(1 if quick else 3):
            progress.stage(f"round {number + 1}: shoal eval, then the loop")
            began = time.perf_counter()
            solved[0] = sum(one.solved for one in measure_suite(policy, suite, judge, lambda *_: None))
            ours.append(time.perf_counter() - began)
            began = time.perf_counter()
            solved[1] = plain_loop(plain, policy, suite, judge)
            theirs.append(time.perf_counter() - began)
    answers = len(split_up(suite.sources)) * suite.tasks * suite.samples
    return BenchResult(
        "eval",
        {"eval_vs_generate": statistics.median(b / a for a, b in zip(ours, theirs, strict=True))},
        {
            "eval_s": statistics.median(ours),
            "generate_s": statistics.median(theirs),
            "answers": answers,
            # Both draw from one distribution; these shares differ by chance.
            "pass_at_1_eval": solved[0] / answers,
            "pass_at_1_generate": solved[1] / answers,
            "threads": threads,
        },
        {"eval_vs_generate": (">=", 2.5)},
    )


@torch.inference_mode()
def plain_loop(model: Any, policy: Policy, suite: Suite, judge: Judge) -> int:
    """Right answers of a task after the other."""
    settings = GenerationConfig(
        do_sample=True,
        temperature=suite.temperature,
        top_k=0,
        top_p=1.0,
        num_return_sequences=suite.samples,
        max_new_tokens=suite.max_new_tokens,
        eos_token_id=sorted(policy.eos_ids),
        pad_token_id=min(policy.eos_ids),
    )
    right = 0
    for line in split_up(suite.sources):
        source = build_source([line])
        for index in range(suite.tasks):
            task = source.task("heldout", index)
            ids_1T = torch.tensor([policy.encode(task.prompt)])
            made_ST = model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), generation_config=settings)
            texts = [policy.decode(row) for row in made_ST[:, ids_1T.shape[1] :].tolist()]
            scores = judge.scores("heldout", [(task, text) for text in texts])
            right += sum(score.reward == 1.0 for score in scores)
    return right
