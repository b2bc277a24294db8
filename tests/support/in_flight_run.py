"""A short run whose answers go on with newer versions while they grow, and what must hold of its files."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from shoal.generate.engine import Completion
from shoal.models.load import load
from shoal.models.weights import read_weights
from shoal.protocol.stores import Version, roots_of
from shoal.protocol.submission import read_rollouts
from shoal.roles.worker import Worker
from shoal.rundir import RunDir, limits_of
from shoal.tasks.source import InProcess
from shoal.validate.checks.all_checks import Checks
from tests.support.memory_store import records_of
from tests.support.roles_in_process import Coin, entries, make_config, make_run

STEPS = 3
SLOW_STEP_S, HELD_STEP_S = 0.05, 1.0
# After so many slow steps answers are held until the version comes, for so long at most.
SLOW_STEPS, MAX_SLOW_S = 60, 240.0


def in_flight_run(path: Path, model: Path) -> RunDir:
    config = make_config(
        model,
        steps=STEPS,
        async_level=2,
        sampling={"max_new_tokens": 120, "group_size": 2},
        train={"token_budget": 1024, "lr": 3e-4},
        workers={"in_flight": True, "max_batch": 8},
        keep={"versions": 8, "rollouts": 0},
    )
    return make_run(path, config)


@contextmanager
def version_comes_in_flight(run: RunDir, worker: Worker) -> Iterator[None]:
    """Slows the engine down at answers to step 1 and later as long as there is no version but the first. On a busy
    machine all steps might else be made with that one before the trainer has another ready."""
    engine, slow_steps = worker.maker.engine, iter(range(SLOW_STEPS))
    step, until = engine.step, list[float]()

    def slowed() -> list[Completion]:
        newest = run.channel().latest()
        steps = {flight.lease.step for flight in worker.pipeline.flights}
        # The version comes of step 0: answers to that are not held.
        if newest is not None and not newest.number and steps and 0 not in steps:
            until[:] = until or [time.monotonic() + MAX_SLOW_S]
            if time.monotonic() < until[0]:
                time.sleep(SLOW_STEP_S if next(slow_steps, None) is not None else HELD_STEP_S)
        return step()

    with patch.object(engine, "step", slowed):
        yield


def assert_files_of_several_versions_pass(run: RunDir) -> None:
    """The run went to its end, every file passes every check, and there are answers of several versions among them."""
    steps = entries(run, "trainer", "step")
    assert [step["step"] for step in steps] == list(range(STEPS))
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
