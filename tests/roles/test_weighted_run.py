"""A whole swarm in this process: tables go from the trainer through the coordinator to worker and validator."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.models.load import load
from shoal.protocol.stores import roots_of
from shoal.roles.session import JoinOptions
from shoal.roles.trainer import start_trainer
from shoal.roles.validator import Validator
from shoal.rundir import RunDir, limits_of
from shoal.tasks.build import build_source
from shoal.tasks.difficulty import Table
from shoal.tasks.source import InProcess
from shoal.validate.audit import Audits
from shoal.validate.checks.all_checks import Checks
from tests.support.coordinator_in_process import TRAINER, VALIDATOR, World, key_of
from tests.support.roles_in_process import base_version, entries, make_config, make_run, make_worker, mixed_tasks

STEPS = 4
CHANGES: dict[str, Any] = {
    "steps": STEPS,
    "sampler": {"kind": "difficulty"},
    "audit": {"rate": 1.0},
    "swarm": {"relays": ["http://127.0.0.1:1"], "leases": 4},
}


class Role(threading.Thread):
    """Works beside the trainer, and says at the end what went wrong."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.failed: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.failed = error


def validator_of(run: RunDir, world: World, tables: list[tuple[int, Table | None]]) -> Validator:
    policy, tasks, channel = load(run.base_model), build_source(run.config.tasks), run.channel()
    store = world.store(VALIDATOR, limits=limits_of(run.config, policy.vocab))
    store._root_of = roots_of(channel)

    def table_of(lease: Any) -> Table | None:
        found = store.table(lease)
        tables.append((lease.version, found))
        return found

    checks = Checks(run.config, policy, tasks, InProcess(tasks), roots_of(channel), table_of)
    status, metrics = run.status("validator"), run.metrics("validator")
    return Validator(run, channel, store, checks, Audits(run.config.audit), status, metrics, base_version(run))


def test_a_swarm_draws_by_tables_and_every_file_of_an_honest_worker_is_accepted(tmp_path: Path, tiny_dir: Path) -> None:
    config = make_config(tiny_dir, tasks=mixed_tasks(tmp_path), **CHANGES)
    run = make_run(tmp_path / "run", config)
    TRAINER.save(run.path / "keys" / "trainer.key")
    world = World(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", config)
    world.start()
    used: list[tuple[int, Table | None]] = []
    try:
        own = world.store(key_of("a"))
        worker = make_worker(run, tasks=build_source(config.tasks), store=own, node=key_of("a").address)
        roles = [Role(worker.run), Role(validator_of(run, world, used).run)]
        start_trainer(run, JoinOptions(join=world.url))
        for role in roles:
            role.join(60)
            assert role.failed is None
    finally:
        world.end()
    verdicts = entries(run, "validator", "verdict")
    assert len(verdicts) >= STEPS
    assert [entry["reason"] for entry in verdicts if not entry["accept"]] == []
    assert all(entry["audited"] for entry in verdicts)
    published = {number: run.channel().table(number) for number in range(STEPS + 1)}
    assert all(table == published[number] for number, table in used)
    made_with = {entry["version"] for entry in entries(run, "worker-0", "submission")}
    assert {number for number, _ in used} == made_with <= set(range(STEPS))
    assert len({number for number, _ in used}) > 1
    steps = entries(run, "trainer", "step")
    assert [entry["sampler"].keys() for entry in steps] == [{"mix", "spell_backward"}] * STEPS
