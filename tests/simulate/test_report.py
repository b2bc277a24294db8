"""What a report is made of: one window, versions that never came, and what steps were trained on."""

import json
from dataclasses import replace
from io import StringIO
from math import inf, nan

import pytest
from rich.console import Console

from shoal.simulate.from_config import Chosen, inputs_of
from shoal.simulate.models import model_named
from shoal.simulate.report import Report, print_report, report_of
from shoal.simulate.simulation import Simulation
from tests.simulate.test_simulation import run, small, with_machines
from tests.support.coordinator_in_process import make_config


def test_training_and_waiting_add_up_to_a_step_and_to_the_time_of_the_second_half() -> None:
    simulation, report = run(with_machines(small(), count=4))
    steps = simulation.log.steps
    assert report.waiting_s > 0
    assert report.training_s + report.waiting_s == pytest.approx(report.step_s)
    assert report.step_s == pytest.approx((steps[7].ended - steps[3].ended) / 4)
    assert report.trainer_busy == pytest.approx(report.training_s / report.step_s)


def test_the_first_download_is_not_among_what_relays_do_later() -> None:
    base = small()
    training = replace(base.training, kind="lora", version_bytes=50e9, update_bytes=1e6)
    simulation, report = run(replace(base, training=training))
    whole_run = simulation.totals()
    assert whole_run.relayed_s / (whole_run.at * base.services.relays) > 0.01
    assert report.relays_busy < 1e-4
    assert report.step_bytes == pytest.approx(12 * 1e6, rel=0.01)


def test_work_that_a_validator_began_before_the_window_is_not_counted_in_it() -> None:
    inputs = small()
    simulation, report = run(replace(inputs, services=replace(inputs.services, validators=1, judge_token_s=0.01)))
    assert 0.9 < report.validators_busy <= 1
    assert "the validators" in report.limit
    assert simulation.log.totals[3].judged_s <= simulation.log.totals[3].at


def test_a_version_that_never_reached_half_of_the_machines_counts_as_infinitely_late() -> None:
    simulation, before = run(small())
    assert before.broadcast_half_s < inf
    # Of 8 steps at async level 2 the versions 3, 4 and 5 are looked at.
    for version in (3, 4):
        simulation.log.versions[version].half = nan
    after = report_of(simulation, 0.0)
    assert after.broadcast_half_s == inf
    assert json.loads(after.to_json())["broadcast_half_s"] is None
    assert "never" in _printed(after, "broadcast, to half")


def test_what_takes_no_time_is_not_said_to_come_never() -> None:
    simulation, _ = run(small())
    simulation.validators.waited_s = [0.0] * len(simulation.validators.waited_s)
    report = report_of(simulation, 0.0)
    assert report.verdict_s == 0
    assert "never" not in _printed(report, "verdict")


def _printed(report: Report, row: str) -> str:
    console = Console(width=200, record=True, file=StringIO())
    print_report(report, console)
    return next(line for line in console.export_text().splitlines() if line.startswith(row))


def test_a_run_that_trains_no_step_says_so() -> None:
    inputs = small()
    unreachable = replace(inputs, services=replace(inputs.services, verdict_s=1e9))
    report = run(unreachable)[1]
    assert report.steps == 0
    assert report.step_s == report.waiting_s == inf
    assert "stops after 0 of 8 steps" in report.limit


class Noting(Simulation):
    """Notes how many groups each step has when it begins to train."""

    groups: dict[int, int]

    def _begun(self, step: int) -> None:
        super()._begun(step)
        self.groups[step] = self.log.steps[step].groups


def test_files_that_come_while_their_step_is_trained_do_not_count_as_trained_on() -> None:
    simulation = Noting(with_machines(small(), count=64))
    simulation.groups = {}
    simulation.run()
    assert simulation.trainer.unused_tokens > 0, "no file came too late: this run shows nothing"
    assert {step: simulation.log.steps[step].groups for step in simulation.groups} == simulation.groups


def test_more_steps_than_a_config_has_are_simulated_if_asked_for() -> None:
    from shoal.plan.assumptions import assumptions

    config = make_config(model={"source": "tiny", "dtype": "bfloat16"})
    inputs = inputs_of(config, assumptions(config), Chosen(steps=config.steps + 5), model_named("7b"))
    assert inputs.terms.steps == config.steps + 5


def test_a_coordinator_that_is_asked_too_much_is_a_warning_beside_what_limits_the_simulated_run() -> None:
    inputs = small()
    slow = replace(inputs, training=replace(inputs.training, step_s=3600.0))
    asked = replace(slow, services=replace(slow.services, coordinator_requests=0.1))
    before, after = (run(one)[1] for one in (slow, asked))
    assert before.warning == ""
    assert after.limit == before.limit
    assert after.limit.startswith("the trainer")
    assert after.step_s == before.step_s
    assert f"asked {after.requests_busy:.1f} times what it answers" in after.warning
    assert "the coordinator is asked" in _printed(after, "not simulated")
