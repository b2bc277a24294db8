"""`python -m benchmarks turns`: honest episodes and nine lies before a validator, its price, tools that take time,
`configs/turns.toml`, which learns to use a tool, and how fast its loop is beside TRL's (`peer.py`).

Episodes of a liar count where they are not those of an honest worker. Each is judged alone, in a file whose other
episodes are honest, so `caught` is a share of episodes. Every attack has to come to as many of them (`attacked_least`),
or the benchmark fails. Files are audited whole; validation is priced at the default audit rate.

`single_turn` is what the same config reaches where `turns.max` is 1, so that no tool can be used. It begins with the
same base, whose first turn is a call of the tool, so it is low by construction. `solve_rate_gained` is what the run
gains over the higher of that and its own base model.

`engine_busy` is with 64 episodes at once: a new one begins when another has ended. `engine_busy_many_open` is stated
beside it, with `Size.waiting` open, as a worker has it that holds more leases than its batch.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.configs import base_model, changed, checkout_config
from benchmarks.common.parts import Parts
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure
from benchmarks.training.length import before_and_after
from benchmarks.turns.latency import AT_ONCE, busy_shares
from benchmarks.turns.peer import FULL as FULL_PEER
from benchmarks.turns.peer import PEER_STEPS, against_trl
from benchmarks.turns.peer import QUICK as QUICK_PEER
from benchmarks.turns.testbed import ENVIRONMENTS, MAX_TURNS, VERSION, Testbed, build_model, open_testbed
from benchmarks.validation.made_file import timed
from shoal.attacks import EPISODE_ATTACKS
from shoal.config import RunConfig
from shoal.models.load import load
from shoal.protocol.rollout import Rollout
from shoal.protocol.submission import Submission, groups_with_signal, write_rollouts
from shoal.validate.audit import Audits
from shoal.validate.checks.all_checks import noise_keys
from shoal.validate.judging.recomputed import part_of
from shoal.validate.recompute import replay

CONFIG = "turns.toml"
# Leases of a liar, before its attack is said to change too little.
LEASES_PER_EPISODE = 8
ROUNDING = 1e-4  # nats


@dataclass(frozen=True, slots=True)
class Size:
    episodes: int = 500
    """Honest ones of 2 to 8 turns, per environment."""
    attacked: int = 100
    """Episodes per attack and environment."""
    warm_steps: int = 220
    waiting: int = 1536
    heldout: int = 512


QUICK = Size(episodes=16, attacked=4, warm_steps=40, waiting=16, heldout=16)


@dataclass(slots=True)
class Tally:
    """What was counted over both environments."""

    episodes: int = 0
    tokens: int = 0
    differ: int = 0
    rejected: int = 0
    turns: Counter[int] = field(default_factory=Counter)
    generation_s: float = 0.0
    validation_s: float = 0.0
    caught: dict[str, list[bool]] = field(default_factory=dict)
    """Whether the file of each lying episode of an attack was rejected."""


def bench_turns(quick: bool, progress: Progress, out: Path | None = None) -> BenchResult:
    size, parts, asked = QUICK if quick else Size(), Parts(out), {"quick": quick}
    config = learning_config(quick)
    with tempfile.TemporaryDirectory(prefix="shoal-turns-") as scratch:
        folder, one_lie_per_file = Path(scratch), asked | {"lies_per_file": 1}
        found = [
            parts.measured(name, one_lie_per_file, partial(measure_environment, name, folder, size, progress))
            for name in ENVIRONMENTS
        ]
        open_episodes = asked | {"open": [size.waiting, AT_ONCE]}
        busy = parts.measured("latency", open_episodes, partial(measure_latency, folder, size, progress))
        learnt = parts.measured("learning", asked, partial(learn, config, folder, size, progress))
    peer_size, warm_up = (QUICK_PEER, 1) if quick else (FULL_PEER, PEER_STEPS)
    peer = parts.measured("peer", asked, partial(against_trl, config, peer_size, progress, warm_up))
    return conclude(tally_of(found), busy, learnt, peer)


def measure_environment(environment: str, folder: Path, size: Size, progress: Progress) -> dict[str, Any]:
    """Honest episodes of one environment, and all attacks."""
    tally, model = Tally(), model_of(environment, folder, size, progress)
    with open_testbed(environment, model, group_size=16) as testbed:
        progress.stage(f"{environment}: honest episodes")
        honest(testbed, size.episodes, tally, progress)
    with open_testbed(environment, model, group_size=8) as testbed:
        for attack in EPISODE_ATTACKS:
            progress.stage(f"{environment}: {attack}")
            tally.caught[f"{environment}.{attack}"] = attacked(testbed, attack, size.attacked)
    return as_part(tally)


def measure_latency(folder: Path, size: Size, progress: Progress) -> dict[str, float]:
    model = model_of(ENVIRONMENTS[0], folder, size, progress)
    progress.stage("tools that take 200 ms")
    return busy_shares(load(model), folder, size.waiting)


def model_of(environment: str, folder: Path, size: Size, progress: Progress) -> Path:
    path = folder / environment
    if not path.exists():
        progress.stage(f"{environment}: building a model")
        build_model(environment, path, size.warm_steps)
    return path


def as_part(tally: Tally) -> dict[str, Any]:
    return {one.name: getattr(tally, one.name) for one in fields(tally)}


def tally_of(found: Sequence[Mapping[str, Any]]) -> Tally:
    """Of both environments together, from what was counted of each."""
    whole = Tally()
    for one in found:
        for name in ("episodes", "tokens", "differ", "rejected", "generation_s", "validation_s"):
            setattr(whole, name, getattr(whole, name) + one[name])
        whole.turns.update({int(turns): count for turns, count in one["turns"].items()})
        whole.caught |= one["caught"]
    return whole


def honest(testbed: Testbed, episodes: int, tally: Tally, progress: Progress) -> None:
    """Whole files until there are enough episodes of several turns; all are audited whole, and priced as by default."""
    maker, counted, number = testbed.maker(), 0, 0
    first = testbed.lease(9999, 1)
    assert testbed.verdict(maker.file(first, VERSION)[1], first) is None  # first calls are slow, of both sides
    audits = Audits(testbed.config.audit, b"benchmark")
    while counted < episodes:
        lease = testbed.lease(number, 8)
        seconds, (_, data) = timed(partial(maker.file, lease, VERSION))
        tally.generation_s += seconds
        reading, submission = timed(partial(testbed.read, data, lease))
        cheap, found = timed(partial(testbed.checks.cheap, submission))
        whole, drawn = timed(partial(testbed.drawn, submission))
        some = part_of(submission, audits.spot(f"{number:064x}", [len(r.completion) for r in submission.rollouts]))
        spot, _ = timed(partial(testbed.drawn, some))
        rate = testbed.config.audit.rate
        tally.validation_s += reading + cheap + rate * whole + (1 - rate) * spot
        keys = noise_keys(submission, testbed.config)
        for sample, own in zip(
            submission.rollouts, replay(testbed.checks.policy, submission.rollouts, keys, 1.0, 4096), strict=True
        ):
            assert own.shortfalls_T is not None
            if 2 <= len(sample.turns) <= MAX_TURNS:
                counted += 1
                tally.episodes += 1
                tally.tokens += sample.drawn_count
                tally.turns[len(sample.turns)] += 1
            tally.differ += int((own.shortfalls_T > 0).sum())
        tally.rejected += (found or drawn) is not None
        number += 1
        progress.detail(f"{counted} of {episodes} episodes")


def attacked(testbed: Testbed, attack: str, episodes: int) -> list[bool]:
    """Whether each episode of a liar that differs from the honest one has its file rejected, though all others in there
    are honest. They are as many as asked for, unless the attack changes too few."""
    caught, number, honest_maker, liar = list[bool](), 0, testbed.maker(), testbed.maker(attack)
    while len(caught) < episodes and number < LEASES_PER_EPISODE * episodes:
        lease = testbed.lease(number, 1)
        lying, own = liar.make(lease, VERSION), honest_maker.make(lease, VERSION)
        for place, rollout in enumerate(lying.rollouts):
            if is_another(rollout, own.rollouts[place]):
                handed_in = with_one_lie(own, place, rollout, honest_maker.advantages)
                data = write_rollouts(handed_in, groups_with_signal(handed_in))
                caught.append(testbed.verdict(data, lease) is not None)
        number += 1
    return caught


def with_one_lie(
    honest: Submission, place: int, lie: Rollout, advantages_of: Callable[[list[float | None]], list[float]]
) -> Submission:
    """An honest file with one episode exchanged. The advantages are those of its rewards: a liar computes them too."""
    rollouts = [lie if number == place else rollout for number, rollout in enumerate(honest.rollouts)]
    advantages = advantages_of([rollout.reward for rollout in rollouts])
    return replace(honest, rollouts=[replace(r, advantage=a) for r, a in zip(rollouts, advantages, strict=True)])


def is_another(lying: Rollout, own: Rollout) -> bool:
    """Whether an episode is not the honest one, by more than what rounding does to its log-probs."""
    return (
        not np.array_equal(lying.completion, own.completion)
        or not np.array_equal(lying.runs, own.runs)
        or (lying.finish, lying.reward) != (own.finish, own.reward)
        or not np.allclose(lying.logprobs, own.logprobs, rtol=0.0, atol=ROUNDING)
    )


def learning_config(quick: bool) -> RunConfig:
    config = checkout_config(CONFIG)
    if not quick:
        return config
    config = changed(config, {"steps": 2, "train.groups_per_step": 4, "model.tiny.warm_steps": 20})
    return changed(config, {"train.online_filter": False})


def learn(config: RunConfig, folder: Path, size: Size, progress: Progress) -> dict[str, float]:
    """`configs/turns.toml`, and the same with one turn."""
    config = changed(config, {"model.source": str(base_model(config, progress))})
    progress.stage("a run with a tool")
    before, after = before_and_after(config, folder / "with", size.heldout, progress)
    progress.stage("the same with one turn")
    one_turn = changed(config, {"turns.max": 1, "train.online_filter": False})
    _, alone = before_and_after(one_turn, folder / "without", size.heldout, progress)
    return {"base": before.pass_at_1, "trained": after.pass_at_1, "single_turn": alone.pass_at_1}


def conclude(
    tally: Tally, busy: Mapping[str, float], learnt: Mapping[str, float], peer: Mapping[str, Figure]
) -> BenchResult:
    lies = [one for found in tally.caught.values() for one in found]
    ceiling = max(learnt["base"], learnt["single_turn"])
    return BenchResult(
        "turns",
        {
            "engine_busy": busy["busy_64_open"] / busy["idle_free_64_open"],
            "validation_vs_generation_cpu": tally.validation_s / tally.generation_s,
            "episodes_per_s": float(peer["episodes_per_s"]),
        },
        {
            "episodes": tally.episodes,
            "tokens": tally.tokens,
            "tokens_differ": tally.differ,
            "honest_rejected": tally.rejected,
            **{f"episodes_of_{turns}_turns": count for turns, count in sorted(tally.turns.items())},
            "caught": sum(lies) / max(1, len(lies)),
            **{f"caught.{name}": sum(found) / max(1, len(found)) for name, found in tally.caught.items()},
            **{f"attacked.{name}": len(found) for name, found in tally.caught.items()},
            "attacked_least": min(map(len, tally.caught.values()), default=0),
            "engine_busy_share": busy["busy_64_open"],
            "engine_busy_share_without_latency": busy["idle_free_64_open"],
            "engine_busy_many_open": busy["busy"] / busy["idle_free"],
            "engine_busy_share_many_open": busy["busy"],
            "engine_busy_share_many_open_without_latency": busy["idle_free"],
            **{f"solve_rate.{name}": value for name, value in learnt.items()},
            "solve_rate_gained": learnt["trained"] - ceiling,
            **{name: value for name, value in peer.items() if name != "episodes_per_s"},
        },
        {
            "episodes": (">=", 1000),
            "tokens_differ": ("<=", 0),
            "honest_rejected": ("<=", 0),
            "caught": (">=", 1.0),
            "attacked_least": (">=", 100),
            "engine_busy": (">=", 0.85),
            "validation_vs_generation_cpu": ("<=", 0.12),
            "solve_rate_gained": (">=", 0.3),
        },
    )
