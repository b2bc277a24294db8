"""What studies say of runs: every study concludes and draws from any runs, and its claims follow what runs learned."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import ShoalError
from shoal.studies.async_levels import setting as level
from shoal.studies.boundary import CELLS
from shoal.studies.catalogue import STUDIES
from shoal.studies.cheaters import setting as cheaters
from shoal.studies.claims import Claim
from shoal.studies.drawing import draw_study
from shoal.studies.one_run import read_swarm
from shoal.studies.stability import FIRST_LOOK, MOVED, collapse, lead
from shoal.studies.study import Found, Outcome
from shoal.studies.training_loop import SHOWN


def run(*, gained: float = 0.2, steps: int = 12, **changed: Any) -> Outcome:
    """A finished run as the loops of studies write it down."""
    keys = (*SHOWN, "grad_norm_max")
    curve = [
        {"step": at, "reward": 0.5, "solve_rate": 0.5, "samples": 8 * at, "generate_s": 1.0, "train_s": 2.0}
        | dict.fromkeys(keys, 0.1)
        for at in range(steps)
    ]
    measured = [
        {"version": at, "pass_at_1": 0.4 + share * gained, "samples": 8 * at, "seconds": 3.0 * at}
        | {"lengths": {"16": 15.0 + share}, "length_rank": share}
        for at, share in ((0, 0.0), (steps // 2, 0.5), (steps, 1.0))
    ]
    swarm = {"wall_s": 60.0, "staleness_mean": 1.5, "cheaters_banned": 0, "cheaters_accepted": 0, "honest_rejected": 0}
    loop = {"signs": {}, "bad_steps": 0, "diverged": False}
    return {"curve": curve, "measured": measured, "final": 0.4 + gained, **swarm, **loop, **changed}


def found_of(name: str, seeds: int, differing: Mapping[str, Mapping[str, Any]] | None = None) -> Found:
    """Runs of a study: all of them alike but for settings that differ, and for a little noise of each seed."""
    differing = differing or {}
    return {
        one.name: [run(**{"gained": 0.2 + 0.001 * seed, **differing.get(one.name, {})}) for seed in range(seeds)]
        for one in STUDIES[name].settings()
    }


def claims_of(name: str, differing: Mapping[str, Mapping[str, Any]], seeds: int = 8) -> list[Claim]:
    """Of as many seeds as decide something although they are all equal."""
    return list(STUDIES[name].conclude(found_of(name, seeds, differing)).claims)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_concludes_and_draws(name: str, seeds: int, tmp_path: Path) -> None:
    found = found_of(name, seeds)
    conclusion = STUDIES[name].conclude(found)
    assert conclusion.claims
    assert all(claim.outcome == "undecided" or seeds > 1 for claim in conclusion.claims)
    assert all(math.isfinite(claim.interval.mean) for claim in conclusion.claims)
    draw_study(STUDIES[name], found, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


@pytest.mark.parametrize("name", ["clip", "stability", "async"])
def test_runs_that_diverged_early_are_concluded_and_drawn_too(name: str, tmp_path: Path) -> None:
    first = STUDIES[name].settings()[0].name
    found = found_of(name, 3, {first: {"steps": 4, "diverged": True, "gained": -0.4}})
    assert STUDIES[name].conclude(found).claims
    draw_study(STUDIES[name], found, tmp_path / "figure.png")


def test_a_level_that_learns_nothing_is_not_as_good_as_level_0_however_little_that_learns() -> None:
    stale = level(2, "recomputed").name
    outcomes = {claim.text: claim.outcome for claim in claims_of("async", {stale: {"gained": 0.0}})}
    assert outcomes["Async level 2 with recomputed old log-probs learns what level 0 learns"] == "did not hold"
    assert outcomes["Async level 1 with recomputed old log-probs learns what level 0 learns"] == "held"
    little = {one.name: {"gained": 0.01 * (one.lag == 0)} for one in STUDIES["boundary"].settings()}
    assert [claim.outcome for claim in claims_of("boundary", little)] == ["did not hold"]
    assert [claim.outcome for claim in claims_of("boundary", {})] == ["held"]
    assert {cell.at(0).times for cell in CELLS} == {1, 2, 3}


def test_cheaters_must_be_banned_and_honest_files_accepted() -> None:
    caught = {cheaters(count).name: {"cheaters_banned": count} for count in (0, 1, 2)}
    assert {claim.outcome for claim in claims_of("cheaters", caught)} == {"held"}
    missed = {**caught, cheaters(2).name: {"cheaters_banned": 1}}
    assert "did not hold" in {claim.outcome for claim in claims_of("cheaters", missed)}
    blamed = {**caught, cheaters(1).name: {"cheaters_banned": 1, "honest_rejected": 1}}
    assert "did not hold" in {claim.outcome for claim in claims_of("cheaters", blamed)}


def rewards(*values: float) -> list[dict[str, float]]:
    return [{"reward": value} for value in values]


def test_a_collapse_is_half_of_the_best_reward_of_five_steps_or_a_run_that_diverged() -> None:
    good = rewards(*[0.8] * 10)
    assert collapse(run(curve=good)) is None
    assert collapse(run(curve=[*good, *rewards(0.0), *good])) is None  # one wild step
    assert collapse(run(curve=[*good, *rewards(*[0.1] * 5)])) == 12
    assert collapse(run(curve=good, diverged=True)) == 9


def test_a_collapse_without_a_sign_before_it_counts_as_no_lead() -> None:
    fallen = [*rewards(*[0.8] * 20), *rewards(*[0.1] * 5)]
    assert lead(run(curve=fallen, signs={"entropy": 14, "kl": 19})) == 8
    assert lead(run(curve=fallen)) == lead(run(curve=fallen, signs={"kl": 24})) == 0
    warned, silent = ({name: {"curve": fallen, "signs": signs} for name in MOVED} for signs in ({"kl": 14}, {}))
    assert claims_of("stability", warned)[1].outcome == "held"
    assert claims_of("stability", silent)[1].outcome == "did not hold"
    # At the first step at which a sign can show, none can be early.
    soon = fallen[20 - (FIRST_LOOK - 2) :]
    assert collapse(run(curve=soon)) == FIRST_LOOK
    assert claims_of("stability", {name: {"curve": soon} for name in MOVED})[1].outcome == "undecided"
    assert claims_of("stability", {})[1].outcome == "undecided"  # nothing collapsed


def test_a_run_in_processes_counts_only_if_its_last_version_was_measured() -> None:
    steps = [
        {"step": at, "time": 10.0 + at, "step_s": 1.0, "reward": 0.5, "samples": 8}
        | {"staleness_mean": 1.0, "staleness_max": 2.0}
        for at in range(3)
    ]
    evals = [{"version": at, "pass_at_1": 0.1 * at} for at in (0, 3)]
    work = [{"time": time, "tokens": 40, "tokens_per_s": 100.0} for time in (11.0, 9.8)]
    found = read_swarm(steps, evals, work, 3)
    assert (found["final"], found["staleness_mean"]) == (pytest.approx(0.3), 1.0)
    assert found["wall_s"] == pytest.approx(12.0 - 9.4)  # from when the worker began, not from the trainer's wait
    with pytest.raises(ShoalError, match="measure version 3, but its last step is 2 and its last measured version 0"):
        read_swarm(steps, evals[:1], work, 3)
    with pytest.raises(ShoalError, match="its last step is 1"):
        read_swarm(steps[:2], evals, work, 3)
