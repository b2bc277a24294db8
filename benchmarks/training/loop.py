"""`python -m benchmarks loop`: samples per second of the whole loop, against TRL's GRPOTrainer on the same work.

Both sides answer 8 prompts 8 times per step with exactly 32 tokens and make one optimizer step of it, on the same
number of threads in all, without KL term and entropy bonus. Ours is the run that users run: trainer, worker and
validator are processes of their own that meet through a coordinator, submissions are Parquet files that are uploaded
and entered in the ledger, a version per step travels through an origin and a relay, and a checkpoint is written every
tenth step; TRL does none of this. Ours scores with the task's own scorer, twice, in worker and validator, TRL with one
that costs nothing. Files are not computed again here (audit.rate 0), for TRL checks nothing. The sides take turns;
while one is measured the other is paused.

An answer has its fixed length because no eos token can come: TRL suppresses it, and ours opens a copy of the model
directory whose eos id is one that the output head has no row for.

Two shapes are measured. The figure with the bar has prompts of ordinary length, an instruction and a question of some
200 tokens, which ours computes once per group and TRL once per sample. The other has bare questions of 18 tokens, where
little is shared.
"""

import json
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.configs import base_model, changed, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure
from benchmarks.common.roles import Roles
from benchmarks.peers.process import Peer, trl_peer
from benchmarks.peers.trl import Job
from shoal.config import RunConfig
from shoal.errors import BenchError
from shoal.files import cache_dir
from shoal.rundir import prepare_run
from shoal.tasks.build import build_source
from shoal.tasks.source import draw
from shoal.telemetry.metrics import Entry

PROMPTS, GROUP, LENGTH = 8, 8, 32
MAX_PROMPT = 256
THREADS = 2
LR = 1e-6
ENDLESS = 1_000_000
CHECKPOINT_EVERY = 10
# Words longer than those of the warm start: with partial credit, answers to one prompt all but never earn the same.
TASK = {
    "source": "reasoning-gym/spell_backward",
    "options": {"min_word_len": 8, "max_word_len": 10},
    "binary": False,
}
INSTRUCTION = (
    "You get one question. Work through the word letter by letter, from its last letter to its first, and write "
    "nothing but the answer: no quotes, no spaces between the letters, no full stop.\n{question}\nAnswer: "
)
SHAPES = {"": INSTRUCTION, "_short_prompts": "{question}"}
PEER_STEPS = 16
PEER_READY_S = 900.0
PEER_ROUND_S = 600.0


@dataclass(frozen=True, slots=True)
class Size:
    """Rounds, and the steps of each side in one: ours are shorter, so it makes more.

    Many short rounds rather than few long ones: what else the machine does then falls on both sides.
    """

    rounds: int
    ours: int
    peer: int
    warm_up: int


FULL = Size(rounds=7, ours=20, peer=6, warm_up=20)
QUICK = Size(rounds=2, ours=10, peer=2, warm_up=5)


def bench_loop(quick: bool, progress: Progress) -> BenchResult:
    """Samples a second of both sides in turns, best and median of the rounds, for each shape of prompts."""
    config = laptop_config()
    base = base_model(config, progress)
    size = QUICK if quick else FULL
    found = {shape: _measure(config, base, template, size, progress) for shape, template in SHAPES.items()}
    return BenchResult(
        "loop",
        {f"samples_per_s_vs_trl{shape}": float(figures["samples_per_s_vs_trl"]) for shape, figures in found.items()},
        {
            f"{name}{shape}": figure
            for shape, figures in found.items()
            for name, figure in figures.items()
            if name != "samples_per_s_vs_trl"
        },
        {"samples_per_s_vs_trl": (">=", 3.0)},
    )


def _measure(laptop: RunConfig, base: Path, template: str, size: Size, progress: Progress) -> dict[str, Figure]:
    progress.stage("TRL: looking for its environment")
    with progress.aside():
        peer = trl_peer(cache_dir())
    with tempfile.TemporaryDirectory(prefix="shoal-bench-loop-") as scratch:
        model = Path(scratch) / "model"
        unending(base, model)
        run = prepare_run(loop_config(laptop, model, template), Path(scratch) / "run", progress.console)
        with peer as trl:
            # TRL first, which takes minutes: ours can be paused for less than one (`Roles`).
            ready = _warm_up_trl(trl, base, peer_prompts(run.config, PEER_STEPS), progress)
            with Roles(run) as roles:
                progress.stage("ours: warm-up")
                roles.steps(size.warm_up, progress.detail)
                roles.pause()
                return _take_turns(roles, trl, size, progress) | {
                    "trl_torch_compile": str(ready["torch_compile"]),
                    "trl": str(ready["trl"]),
                }


def _warm_up_trl(trl: Peer, base: Path, prompts: list[str], progress: Progress) -> dict[str, Any]:
    progress.stage("TRL: warm-up, which compiles")
    job = Job(
        model=str(base),
        prompts=prompts,
        prompts_per_step=PROMPTS,
        group_size=GROUP,
        max_new_tokens=LENGTH,
        lr=LR,
        kl_coef=0.0,
        temperature=1.0,
        threads=THREADS,
    )
    return trl.ask(asdict(job), awaiting="the end of its warm-up", deadline_s=PEER_READY_S)


def _take_turns(roles: Roles, trl: Peer, size: Size, progress: Progress) -> dict[str, Figure]:
    ours: list[float] = []
    theirs: list[float] = []
    steps: list[Entry] = []
    for round_ in range(size.rounds):
        progress.stage(f"round {round_ + 1} of {size.rounds}: ours")
        roles.resume()
        # The first step began before the round did: its end starts the clock.
        first, *rest = roles.steps(size.ours + 1, progress.detail)
        roles.pause()
        ours.append(sum(entry["samples"] for entry in rest) / (rest[-1]["time"] - first["time"]))
        steps += rest
        progress.stage(f"round {round_ + 1} of {size.rounds}: TRL")
        took = trl.ask({"steps": size.peer}, awaiting=f"the timing of {size.peer} steps", deadline_s=PEER_ROUND_S)
        theirs.append(took["samples"] / took["seconds"])
    return conclude(ours, theirs, steps) | {"prompt_tokens_mean": took["prompt_tokens"] / took["samples"]}


def conclude(ours: Sequence[float], theirs: Sequence[float], steps: Sequence[Entry]) -> dict[str, Figure]:
    """The figures of one shape: samples a second by round, and what our trainer's entries say.

    Samples that were trained on count; those of groups without signal were generated in vain.
    """
    for entry in steps:
        if entry["completion_tokens_mean"] != LENGTH:
            mean = entry["completion_tokens_mean"]
            raise BenchError(f"bench loop: step {entry['step']}: answers have {mean} tokens on average, not {LENGTH}")

    def mean_of(key: str) -> float:
        return statistics.fmean(entry[key] for entry in steps)

    return {
        "samples_per_s_vs_trl": max(ours) / max(theirs),
        "samples_per_s_vs_trl_medians": statistics.median(ours) / statistics.median(theirs),
        "samples_per_s": max(ours),
        "trl_samples_per_s": max(theirs),
        "samples_a_step": mean_of("samples"),
        "samples_generated_a_step": mean_of("samples_seen"),
        "trl_samples_a_step": PROMPTS * GROUP,
        "train_s_a_step": mean_of("train_s"),
        "staleness_mean": mean_of("staleness_mean"),
    }


def loop_config(laptop: RunConfig, model: Path, template: str) -> RunConfig:
    """The laptop run with TRL's work: one thread each for trainer and worker.

    A checkpoint is made every tenth step here; TRL makes none.
    """
    return changed(
        laptop,
        {
            "name": "bench-loop",
            "steps": ENDLESS,
            "async_level": 2,
            "model.source": str(model),
            "tasks": [{**TASK, "template": template}],
            "sampling.group_size": GROUP,
            "sampling.temperature": 1.0,
            "sampling.max_new_tokens": LENGTH,
            "sampling.max_prompt_tokens": MAX_PROMPT,
            "train.groups_per_step": PROMPTS,
            "train.optimizer_steps": 1,
            "train.lr": LR,
            "train.checkpoint_every": CHECKPOINT_EVERY,
            "keep.versions": CHECKPOINT_EVERY + 3,
            "audit.rate": 0.0,
            "train.threads": THREADS // 2,
            "train.loss.kl_coef": 0.0,
            "train.loss.entropy_coef": 0.0,
            "workers.count": 1,
            "workers.threads": THREADS // 2,
            "workers.groups_per_submission": PROMPTS,
        },
    )


def unending(base: Path, target: Path) -> None:
    """A copy of a model directory whose eos token cannot be produced: its id is the first beyond the output head."""
    shutil.copytree(base, target)
    never = {"eos_token_id": json.loads((base / "config.json").read_text())["vocab_size"]}
    for name, change in (
        ("config.json", never),
        ("generation_config.json", never),
        ("tokenizer_config.json", {"eos_token": None}),
    ):
        tree = json.loads((target / name).read_text())
        (target / name).write_text(json.dumps({**tree, **change}))


def peer_prompts(config: RunConfig, steps: int) -> list[str]:
    """Prompts for TRL of the source that our worker is asked; which tasks a lease draws is the coordinator's chance."""
    tasks = build_source(config.tasks)
    return [tasks.task("train", draw("peer", config.seed, index) >> 32).prompt for index in range(steps * PROMPTS)]
