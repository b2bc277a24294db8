"""A simulated run: what it must show whatever its figures are."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from typer.testing import CliRunner

from shoal.cli import app
from shoal.coordinator.node_states import State
from shoal.errors import ConfigError
from shoal.simulate.book import NodeRow
from shoal.simulate.command import simulated
from shoal.simulate.from_config import Chosen, check_chosen, inputs_of
from shoal.simulate.inputs import Inputs, Spread
from shoal.simulate.models import model_named
from shoal.simulate.paper import paper_inputs
from shoal.simulate.report import Report, report_of
from shoal.simulate.simulation import Simulation
from tests.support.coordinator_in_process import make_config


def small(**changes: object) -> Inputs:
    """The paper's run made small: 12 workers, 16 groups per step, files of two groups."""
    paper = paper_inputs(steps=8)
    terms = replace(paper.terms, groups_per_step=16, max_groups=256, groups_per_submission=2)
    machines = replace(paper.machines, count=12, load_s=5.0)
    training = replace(paper.training, version_bytes=1e9, update_bytes=1e9)
    return replace(paper, terms=terms, machines=machines, training=training, **changes)  # type: ignore[arg-type]


def run(inputs: Inputs) -> tuple[Simulation, Report]:
    simulation = Simulation(inputs)
    return simulation, report_of(simulation, simulation.run())


def with_machines(inputs: Inputs, **changes: object) -> Inputs:
    return replace(inputs, machines=replace(inputs.machines, **changes))  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    one, two, other = (run(replace(small(), seed=seed))[1] for seed in (1, 1, 2))
    assert replace(one, wall_s=0.0) == replace(two, wall_s=0.0)
    assert one.step_s != other.step_s


def test_no_step_is_trained_on_what_is_older_than_the_async_level() -> None:
    for level in (0, 1, 2):
        inputs = small()
        simulation, report = run(replace(inputs, terms=replace(inputs.terms, async_level=level)))
        assert report.steps == 8
        assert report.staleness <= level
        assert all(0 <= times.staleness <= level * times.groups for times in simulation.log.steps.values())


def test_asynchrony_hides_the_way_of_a_version() -> None:
    inputs = small()
    slow = replace(inputs, training=replace(inputs.training, version_bytes=20e9, update_bytes=20e9))
    in_turn, ahead = (run(replace(slow, terms=replace(slow.terms, async_level=level)))[1] for level in (0, 2))
    assert ahead.step_s < in_turn.step_s - 0.8 * ahead.broadcast_s


def test_every_step_has_the_groups_that_it_needs() -> None:
    simulation, _ = run(small())
    trained = [times for times in simulation.log.steps.values() if times.ended == times.ended]
    assert len(trained) == 8
    assert all(times.groups >= 16 for times in trained)


def test_twice_the_workers_make_a_step_faster_while_they_are_what_limits_it_and_no_faster_after_that() -> None:
    seen = {
        count: [run(replace(with_machines(small(), count=count), seed=seed))[1] for seed in range(1, 5)]
        for count in (4, 8, 16, 32)
    }
    # One run of eight short steps is mostly chance: whether its last group has signal.
    four, eight, sixteen, many = (fmean(one.step_s for one in reports) for reports in seen.values())
    assert all(one.limit.startswith("the workers") or one.workers_busy > 0.75 for one in seen[4])
    assert all(one.limit.startswith("latency") for one in (*seen[16], *seen[32]))
    assert eight < 0.75 * four
    # More files come at the moment at which a step is full, so that it is trained on more groups.
    assert 0.9 * sixteen < many < 1.5 * sixteen
    busy, idle = (fmean(one.workers_busy for one in seen[count]) for count in (16, 32))
    assert idle < 0.7 * busy


def test_a_trainer_that_is_always_busy_is_what_limits_a_run() -> None:
    slow = small()
    bound = run(replace(slow, training=replace(slow.training, step_s=3600.0)))[1]
    assert bound.limit.startswith("the trainer")
    assert bound.trainer_busy > 0.9


def test_half_of_the_machines_leaving_per_hour_costs_tokens_and_not_the_run() -> None:
    simulation, report = run(with_machines(small(), count=24, churn=0.5))
    assert report.steps == 8
    left, joined = simulation.log.left, simulation.log.joined
    assert left >= 4
    # A newcomer waits for others of the same minute, and fetches a version before it counts.
    assert left - 2 <= joined <= left
    assert simulation.count == len(_rows(simulation)) == 24 - left + joined
    assert sum(group.weight for group in simulation.classes) == simulation.count
    gone = [row for row in _rows(simulation) if row.state == State.GONE]
    assert not gone, "a machine that left is a member no more"


def test_machines_that_leave_faster_than_others_can_fetch_a_first_version_are_not_replaced_by_more() -> None:
    inputs = with_machines(small(), count=60, churn=0.5)
    # One relay sends the base model to sixty machines in seven hours, and thirty leave in each.
    services = replace(inputs.services, relays=1, relay_rate=50e6, origin_rate=50e6)
    training = replace(inputs.training, version_bytes=20e9, update_bytes=0.1e9, kind="delta")
    simulation, _ = run(replace(inputs, terms=replace(inputs.terms, steps=3), services=services, training=training))
    assert simulation.log.left > 30
    assert simulation.arriving > 0
    assert simulation.count + simulation.arriving == 60


def _rows(simulation: Simulation) -> list[NodeRow]:
    return [worker.row for members in simulation.members for worker in members]


def test_a_delta_reaches_machines_sooner_than_a_full_version_and_newcomers_need_a_full_one() -> None:
    base = small()
    large = replace(base.training, version_bytes=20e9, update_bytes=20e9)
    full = run(replace(base, training=large))[1]
    changed = replace(large, update_bytes=0.4e9, kind="delta")
    simulation, delta = run(replace(base, training=changed))
    assert delta.broadcast_s < full.broadcast_s / 5
    assert sum(entry.size or 0 for entry in simulation.origin.way(None, 8)) >= 20e9
    assert sum(entry.size or 0 for entry in simulation.origin.way(7, 8)) == pytest.approx(0.4e9)


def test_an_uplink_of_a_megabit_delays_files_and_a_fast_one_does_not() -> None:
    # In turn, where nothing is generated while a file is on its way: ahead, that would hide it.
    base = replace(small(), terms=replace(small().terms, async_level=0))
    both = [
        [run(replace(with_machines(base, upload=Spread(rate)), seed=seed))[1] for rate in (1e6 / 8, 1e9 / 8)]
        for seed in range(1, 5)
    ]
    assert all(slow.first_file_s > fast.first_file_s + 10 for slow, fast in both)
    assert fmean(slow.step_s - fast.step_s for slow, fast in both) > 60


def test_too_few_relays_are_what_limits_a_run() -> None:
    base = with_machines(small(), count=200)
    services = replace(base.services, relays=1, relay_rate=50e6, origin_rate=50e6)
    training = replace(base.training, step_s=1.0, token_s=0.0)
    few, enough = (run(replace(base, services=one, training=training))[1] for one in (services, base.services))
    assert few.limit.startswith("the relays' links")
    assert few.relays_busy > 0.9
    assert few.broadcast_s > 200 * 1e9 / 50e6 * 0.9
    assert enough.limit.startswith("latency")
    assert enough.broadcast_s < few.broadcast_s / 50


def test_cores_that_all_roles_share_make_a_step_as_long_as_their_work_together() -> None:
    inputs = with_machines(small(), count=2)
    inputs = replace(inputs, training=replace(inputs.training, step_s=1800.0, token_s=0.0))
    alone, shared = (run(replace(inputs, cores=cores))[1] for cores in (8.0, 1.0))
    assert shared.step_s > 1.4 * alone.step_s


def test_with_the_papers_inputs_all_times_are_within_a_tenth_of_the_papers() -> None:
    from shoal.simulate.paper import errors

    usual, long = (run(paper_inputs(long=long))[1] for long in (False, True))
    found = errors(usual, long)
    assert max(found.values()) <= 0.1, found


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (Chosen(nodes=0), "--nodes 0"),
        (Chosen(churn=-1.0), "--churn -1"),
        (Chosen(uplink=0.0), "--uplink 0"),
        (Chosen(relays=65), "--relays 65"),
        (Chosen(trainer_gpus=0), "--trainer-gpus 0"),
        (Chosen(trainer_gpus=-1), "--trainer-gpus -1"),
        (Chosen(seed=-1), "--seed -1"),
        (Chosen(versions="half"), "--versions half"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_simulated_is_refused_by_its_flag(chosen: Chosen, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_chosen(chosen)
    with pytest.raises(ConfigError, match="--model 9b: unknown; give one of 7b"):
        model_named("9b")


@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 4}])
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("optimizer_steps", [1, 2])
def test_a_trained_token_costs_the_passes_of_matrices_that_a_plan_counts(
    lora: dict[str, int] | None, kl_coef: float, optimizer_steps: int
) -> None:
    from shoal.plan.assumptions import assumptions
    from shoal.plan.step_time import training_passes

    train = {"lora": lora, "loss": {"kl_coef": kl_coef}, "optimizer_steps": optimizer_steps}
    config, model = make_config(model={"source": "tiny", "dtype": "bfloat16"}, train=train), model_named("7b")
    assumed = assumptions(config)
    token_s = inputs_of(config, assumed, Chosen(nodes=2), model).training.token_s
    pass_s = 2 * model.parameters / (assumed.trainer.flops * assumed.train_use)
    assert token_s == pytest.approx(training_passes(config).matrices * pass_s)


def test_a_larger_model_needs_more_devices_and_more_bytes() -> None:
    from shoal.plan.assumptions import assumptions

    config = make_config(model={"source": "tiny", "dtype": "bfloat16"})
    assumed = assumptions(config)
    small_, large = (inputs_of(config, assumed, Chosen(nodes=10, steps=2), model_named(n)) for n in ("7b", "405b"))
    assert large.training.version_bytes > 50 * small_.training.version_bytes
    assert large.training.token_s > 50 * small_.training.token_s
    lora = inputs_of(config, assumed, Chosen(nodes=10, steps=2, versions="lora"), model_named("405b"))
    assert lora.training.update_bytes < large.training.update_bytes


def test_the_command_prints_one_json_object_and_draws_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "simulated.png"
    flags = ["--model", "7b", "--nodes", "40", "--steps", "3", "--json", "--plot", str(picture)]
    found = CliRunner().invoke(app, ["simulate", "configs/intellect2.toml", *flags])
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout.strip().splitlines()[-1])
    assert report["nodes"] == 40
    assert report["steps"] == 3
    assert report["step_s"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_progress_is_told_step_by_step() -> None:
    from rich.console import Console

    simulation, report = simulated(replace(small(), terms=replace(small().terms, steps=2)), Console(quiet=True))
    assert report.steps == simulation.book.newest == 2
