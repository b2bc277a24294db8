"""A run whose answers go on with newer versions while they grow: files of several versions, all of them right."""

from pathlib import Path

from shoal.models.load import load
from shoal.models.weights import read_weights
from shoal.protocol.stores import Version, roots_of
from shoal.protocol.submission import read_rollouts
from shoal.rundir import RunDir, limits_of
from shoal.tasks.source import InProcess
from shoal.validate.checks.all_checks import Checks
from tests.support.memory_store import records_of
from tests.support.roles_in_process import Coin, entries, make_config, make_run, make_worker, train, working


def a_run(path: Path, model: Path) -> RunDir:
    config = make_config(
        model,
        steps=3,
        async_level=2,
        sampling={"max_new_tokens": 120, "group_size": 2},
        train={"token_budget": 1024, "lr": 3e-4},
        workers={"in_flight": True, "max_batch": 8},
        keep={"versions": 8, "rollouts": 0},
    )
    return make_run(path / "run", config)


def test_a_run_goes_to_its_end_with_files_of_several_versions_and_each_passes_every_check(
    tmp_path: Path, tiny_dir: Path
) -> None:
    run = a_run(tmp_path, tiny_dir)
    with working(run, make_worker(run)):
        train(run)
    steps = entries(run, "trainer", "step")
    assert [step["step"] for step in steps] == list(range(3))
    channel, records = run.channel(), records_of(run.path)
    policy = load(run.base_model)
    checks = Checks(run.config, policy, Coin(), InProcess(Coin()), roots_of(channel))

    def put_in(version: Version) -> None:
        policy.set_weights(read_weights(channel.fetch(version), "float32"), f"version {version.number}")

    mixed = 0
    for place, lease in records.leases.items():
        if place not in records.signal or not records.file(lease).exists():
            continue
        submission = read_rollouts(records.file(lease), lease, limits_of(run.config, policy.vocab))
        mixed += bool(submission.later)
        put_in(Version(submission.version, submission.weights))
        found = checks.cheap(submission) or next(checks.costly([submission], put_in))
        assert found is None, str(found)
    assert mixed, "no answer was under way when a version came"
    # A token is as old as the version that drew it, so the mean is between two whole numbers of steps.
    assert any(step["staleness_mean"] != int(step["staleness_mean"]) for step in steps)
    assert all(step["staleness_max"] <= run.config.async_level for step in steps)
