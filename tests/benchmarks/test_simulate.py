"""The arithmetic of the simulation's benchmark and sweeps: rates from measurements, fits, and which cases there are."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from benchmarks.simulate import local
from benchmarks.simulate.local import IN_TURN, Measured, PerStep, Rates, found_at, local_config, measured, predict
from benchmarks.simulate.sweep import BASE, KINDS, NODES, cases, curves, read, simulations, table_row
from shoal.simulate.report import report_of
from shoal.simulate.simulation import Simulation
from tests.simulate.test_simulation import small

SMALL = Measured(step_s=3.0, train_s=1.0, samples=100, generate_s=0.01, tokens=8.0, rest_s=0.5, beside_s=0.3)
LARGE = Measured(step_s=5.0, train_s=1.6, samples=200, generate_s=0.02, tokens=9.0, rest_s=0.9, beside_s=0.5)


@pytest.mark.parametrize(
    ("small_", "large", "fixed_s", "answer_s"),
    [
        ((100.0, 2.0), (200.0, 3.0), 1.0, 0.01),
        ((100.0, 3.0), (200.0, 2.0), 2.0, 0.0),  # the larger run was faster: all of it is fixed
        ((100.0, 1.0), (200.0, 4.0), 0.0, 0.02),  # the line would begin below 0
    ],
)
def test_the_line_through_two_runs_meets_the_larger_one_and_has_no_part_below_zero(
    small_: tuple[float, float], large: tuple[float, float], fixed_s: float, answer_s: float
) -> None:
    found = PerStep.through(small_, large)
    assert found.fixed_s == pytest.approx(fixed_s)
    assert found.answer_s == pytest.approx(answer_s)


def test_rates_are_those_of_two_runs_in_which_the_roles_take_turns() -> None:
    rates = Rates.of(SMALL, LARGE)
    assert (rates.training.fixed_s, rates.training.answer_s) == pytest.approx((0.4, 0.006))
    assert rates.upload_s == pytest.approx(0.004)
    assert rates.generate_s == pytest.approx(0.015)
    assert rates.tokens == 9.0
    assert (rates.beside.fixed_s, rates.beside.answer_s) == pytest.approx((0.1, 0.002))
    assert rates.cores == inf


def test_a_run_is_measured_from_the_end_of_its_first_warm_step() -> None:
    steps = [{"time": at, "train_s": train_s, "samples": 20} for at, train_s in ((10.0, 1.0), (13.0, 1.0), (18.0, 2.5))]
    files = [{"step": step, "samples": 10, "tokens": 80, "tokens_per_s": 160.0 / step} for step in (1, 4, 4)]
    found = measured(steps, files, first=4, cpu_s=6.0)
    assert found.step_s == 4.0
    assert found.train_s == 1.5
    assert found.generate_s == pytest.approx(0.2)
    assert found.tokens == 8.0
    assert found.rest_s == 0.0  # generating took longer than what training left of a step, beside it
    assert found.beside_s == pytest.approx(0.5)


def test_a_fit_finds_the_place_of_a_value_and_says_where_there_is_none() -> None:
    found = found_at(lambda x: x * x, 0.04)
    assert found.value == pytest.approx(0.2, abs=0.5 / 2**local.HALVINGS)
    assert not found.is_at_bound
    too_high, too_low = found_at(lambda x: x, 7.0), found_at(lambda x: 1 + x, 0.5)
    assert too_high.is_at_bound
    assert too_high.value == pytest.approx(0.5, abs=0.01)
    assert too_low.is_at_bound
    assert too_low.value == pytest.approx(0.0, abs=0.01)


def test_a_latency_is_found_again_and_one_that_cannot_be_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SEEDS", 1)
    config = local_config(Path("model"), IN_TURN, steps=2)
    rates = Rates(PerStep(0.05, 0.002), 0.0003, 0.003, 8.0, PerStep(0.0, 0.0), load_s=0.05)
    real = predict(replace(rates, latency_s=0.2), config)
    run = replace(LARGE, step_s=real.step_s, train_s=real.train_s)
    found = rates.with_latency([(run, config)])
    assert found.latency_s == pytest.approx(0.2, abs=0.02)
    assert found.fit_error([(run, config)]) < 0.02
    assert not found.at_bound
    assert rates.with_latency([(replace(run, step_s=60.0), config)]).at_bound == {"latency"}


def test_work_that_nobody_waits_for_slows_down_those_who_share_its_cores_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "SEEDS", 1)
    config = local_config(Path("model"), local.PREDICTED["two_workers"], steps=6)
    alone = Rates(PerStep(0.05, 0.001), 0.0, 0.001, 8.0, PerStep(0.0, 0.0), cores=2.0)
    beside = replace(alone, beside=PerStep(0.2, 0.0005))
    assert predict(beside, config).step_s > predict(alone, config).step_s + 0.15
    assert predict(replace(beside, cores=inf), config) == predict(replace(alone, cores=inf), config)


def test_every_case_is_within_the_number_of_workers_and_the_common_run_is_simulated_once_per_kind() -> None:
    everything = cases()
    assert {case.chosen.nodes for case in everything} == set(NODES)
    keys = [case.key for case in simulations(everything)]
    assert len(keys) == len(set(keys))
    assert [key for key in keys if key.startswith("base")] == [f"base {kind}" for kind in KINDS]
    # Each kind of version has 15 points, four of which are the common run.
    assert (len(everything), len(keys)) == (45, 36)
    common = [case for case in everything if case.is_base]
    assert all(case.chosen == replace(BASE, versions=case.kind) for case in common)
    assert [case.key for case in simulations(cases(999))] == [f"nodes {kind} 100" for kind in KINDS]
    assert max(case.chosen.nodes or 0 for case in cases(10_000)) == 10_000


def test_a_case_that_never_ends_is_read_as_such_and_drawn_where_others_are(tmp_path: Path) -> None:
    simulation = Simulation(small())
    report = replace(report_of(simulation, simulation.run()), broadcast_half_s=inf)
    out = tmp_path / "sweep.jsonl"
    case = next(case for case in cases() if case.is_base)
    out.write_text(report.to_json().replace("{", f'{{"case": "{case.key}", ', 1) + "\n")
    found = read(out)
    assert found == {case.key: report}
    assert "| never |" in table_row(case, found[case.key])
    assert [len(curves(found, sweep)["full"]) for sweep in ("nodes", "churn", "uplink", "model")] == [1, 1, 1, 1]
