"""Episodes per second of the whole loop, against TRL's GRPOTrainer with the same environment, model and limits.

Both sides play 8 episodes of each of 8 tasks per step, of `configs/turns.toml`'s turns and tokens, and make one
optimizer step of them, on the same number of threads in all. Ours is the run that users run (`training/loop.py`);
its environments are played in a confined process, and again by the validator. TRL calls the same module in its own
process and checks nothing. The sides take turns; while one is measured the other is paused.
"""

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.common.configs import base_model, changed
from benchmarks.common.progress import Progress
from benchmarks.common.result import Figure
from benchmarks.common.roles import Roles
from benchmarks.peers.process import trl_peer
from benchmarks.peers.trl import Episodes, Job
from benchmarks.training.loop import ENDLESS, GROUP, LR, PEER_READY_S, PEER_ROUND_S, PROMPTS, THREADS, Size
from shoal.config import RunConfig
from shoal.files import cache_dir
from shoal.models.tiny import ASK, EOS
from shoal.rundir import prepare_run
from shoal.tasks.build import build_source
from shoal.tasks.environments import calculator
from shoal.tasks.source import draw
from shoal.telemetry.metrics import Entry

# What the tiny model's tokenizer does to a prompt, a reply and an observation (`models/chat.py`). TRL refuses one that
# leaves out calls; of a reply it uses no more than where it ends, for what was drawn stays in tokens.
CALLS = "{% for call in message.get('tool_calls') or [] %}{{ call['function'] | tojson }}{% endfor %}"
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ message['content'] }}"
    f"{ASK}{{% elif message['role'] == 'assistant' %}}{{{{ message['content'] }}}}{CALLS}{EOS}"
    "{% else %}{{ '\n' + message['content'] + '\n' }}{% endif %}{% endfor %}"
)
FINAL = "="
PEER_STEPS = 16
FULL = Size(rounds=5, ours=20, peer=6, warm_up=20)
QUICK = Size(rounds=1, ours=2, peer=1, warm_up=1)


def against_trl(config: RunConfig, size: Size, progress: Progress, steps_of_warm_up: int = PEER_STEPS) -> "Found":
    """The ratio, and what it is made of."""
    progress.stage("TRL: looking for its environment")
    with progress.aside():
        peer = trl_peer(cache_dir())
    base = base_model(config, progress)
    with tempfile.TemporaryDirectory(prefix="shoal-bench-turns-") as scratch:
        run = prepare_run(peer_config(config, base), Path(scratch) / "run", progress.console)
        with peer as trl:
            progress.stage("TRL: warm-up")
            job = job_of(run.config, base, steps_of_warm_up)
            ready = trl.ask(asdict(job), awaiting="the end of its warm-up", deadline_s=PEER_READY_S)
            with Roles(run) as roles:
                progress.stage("ours: warm-up")
                roles.steps(size.warm_up, progress.detail)
                roles.pause()
                ours, theirs, entries = list[float](), list[dict[str, float]](), list[Entry]()
                for number in range(1, size.rounds + 1):
                    progress.stage(f"round {number} of {size.rounds}: ours")
                    roles.resume()
                    first, *rest = roles.steps(size.ours + 1, progress.detail)
                    roles.pause()
                    ours.append(sum(entry["samples"] for entry in rest) / (rest[-1]["time"] - first["time"]))
                    entries += rest
                    progress.stage(f"round {number} of {size.rounds}: TRL")
                    theirs.append(trl.ask({"steps": size.peer}, awaiting="its timing", deadline_s=PEER_ROUND_S))
    return conclude(ours, theirs, entries) | {"trl": str(ready["trl"])}


Found = dict[str, Figure]


def conclude(ours: Sequence[float], theirs: Sequence[dict[str, float]], entries: Sequence[Entry]) -> Found:
    """Best and median of the rounds, and how long episodes are on each side, which is nearly the same."""
    peers = [took["samples"] / took["seconds"] for took in theirs]
    drawn, episodes = (sum(took[name] for took in theirs) for name in ("generated_tokens", "samples"))
    return {
        "episodes_per_s": max(ours) / max(peers),
        "episodes_per_s_medians": statistics.median(ours) / statistics.median(peers),
        "episodes_per_s_ours": max(ours),
        "episodes_per_s_trl": max(peers),
        "episode_tokens_ours": statistics.fmean(entry["completion_tokens_mean"] for entry in entries),
        "episode_tokens_trl": drawn / episodes,
    }


def peer_config(config: RunConfig, base: Path) -> RunConfig:
    """The run with TRL's work: every group is trained on, and one thread each for trainer and worker."""
    return changed(
        config,
        {
            "name": "bench-turns",
            "steps": ENDLESS,
            "model.source": str(base),
            "sampling.group_size": GROUP,
            "train.groups_per_step": PROMPTS,
            "train.optimizer_steps": 1,
            "train.online_filter": False,
            "train.lr": LR,
            "train.threads": THREADS // 2,
            "train.loss.kl_coef": 0.0,
            "train.loss.entropy_coef": 0.0,
            "audit.rate": 0.0,
            "workers.threads": THREADS // 2,
            "workers.groups_per_submission": PROMPTS,
        },
    )


def job_of(config: RunConfig, base: Path, steps: int) -> Job:
    """TRL's side of the work, on tasks of the same source."""
    tasks, (line,) = build_source(config.tasks), config.tasks
    asked = [tasks.task("train", draw("peer", config.seed, number) >> 32) for number in range(steps * PROMPTS)]
    episodes = Episodes(
        environment=str(calculator.__file__),
        options=dict(line.options),
        seeds=[task.entry["seed"] for task in asked],
        template=TEMPLATE,
        final=FINAL,
        max_turns=config.turns.max,
        turn_tokens=config.turns.tokens,
    )
    return Job(
        model=str(base),
        prompts=[task.prompt for task in asked],
        prompts_per_step=PROMPTS,
        group_size=GROUP,
        max_new_tokens=config.sampling.max_new_tokens,
        lr=LR,
        kl_coef=0.0,
        temperature=config.sampling.temperature,
        threads=THREADS,
        episodes=episodes,
    )
