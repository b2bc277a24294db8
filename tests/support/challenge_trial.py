"""A run for disputes end to end: a coordinator with its ledger, the run's directory, its validator and its arbiter."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors.torch import save_file

from shoal.client.challenge import Rulings, arbitrate, challenge
from shoal.client.rollout_store import SwarmStore
from shoal.client.voting import Juror
from shoal.devices import DTYPES
from shoal.ledger.acts import Deposit
from shoal.ledger.state import State
from shoal.models.load import load_as
from shoal.protocol.lease import Lease
from shoal.protocol.rates.rates_table import RatesTable
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission, groups_with_signal, write_rollouts
from shoal.roles.validator import Validator
from shoal.rundir import RunDir, limits_of
from shoal.tasks.source import InProcess
from shoal.validate.audit import Audits
from shoal.validate.checks.all_checks import Checks
from shoal.validate.evidence.arbiter import Arbiter
from shoal.validate.evidence.bundle import bundle_name
from shoal.validate.evidence.vote_log import Votes
from tests.support.coordinator_in_process import COORDINATOR, VALIDATOR, key_of, world_at
from tests.support.coordinator_in_process import World as Swarm
from tests.support.model_and_checks import SAMPLING, TASKS, World, gym, model_dir, weights
from tests.support.roles_in_process import base_version, make_run


@dataclass
class Trial:
    """A coordinator with its ledger, the run's directory, its validator and its arbiter, all real."""

    swarm: Swarm
    run: RunDir
    world: World
    validator: Validator
    votes: Votes
    juror: Juror
    said: io.StringIO
    rates: RatesTable | None = None
    """The honest rates that the arbiter goes by."""

    def version(self, number: int) -> Version:
        found = self.run.channel().version(number)
        assert found is not None
        return found

    def announce(self, number: int) -> None:
        """The two versions there are, and then numbers alone."""
        root = self.version(number).root if number < 2 else f"{number:064x}"
        self.swarm.trainer._link.announce(number, root)

    def lease(self, name: str) -> Lease:
        return self.swarm.take(name, version=1)

    def honest(self, name: str) -> Submission:
        return self.world.maker().make(self.lease(name), self.version(1))

    def hand_in(self, name: str, submission: Submission) -> Lease:
        data = write_rollouts(submission, groups_with_signal(submission))
        self.swarm.store(key_of(name)).put(submission.lease, data)
        node = key_of(name).address
        if node not in self.state.accounts:  # with something to lose
            self.swarm.ledger_writer._enter([Deposit(id=f"stake-of-{name}", node=node, amount=5000)])
        return submission.lease

    def judge(self) -> None:
        self.validator.judge(self.validator.store.waiting(0, 9))

    def settle(self) -> None:
        """The step is over; votes are given and counted."""
        for number in (2, 3):
            self.announce(number)
        for _ in range(3):
            self.swarm.ledger_writer.keep(self.swarm.database)
            self.juror.work()
        self.swarm.ledger_writer.keep(self.swarm.database)

    def challenge(self, who: str, lease: Lease, claim: str, evidence: Path | None = None) -> None:
        place = f"{lease.step}/{lease.submission}"
        challenge(self.swarm.url, place, claim, evidence, key_of(who), Console(file=self.said))

    def arbitrate(self) -> Rulings:
        policy = load_as(self.run.base_model, self.run.config.model.dtype, "float32")
        arbiter = Arbiter(self.run, policy, gym(), InProcess(gym()), self.rates)
        console = Console(file=self.said, width=400)
        return arbitrate(self.swarm.url, self.run, COORDINATOR, arbiter.judge, console, arbiter.judge_as_begun)

    def bundle(self, lease: Lease) -> Path:
        return self.run.path / "evidence" / bundle_name(lease.step, lease.submission)

    @property
    def state(self) -> State:
        return self.swarm.ledger_writer.look(lambda state: state)

    def outcome(self, lease: Lease) -> str:
        for batch in self.state.batches:
            for index, leaf in enumerate(batch.leaves):
                if (batch.step, leaf.submission) == (lease.step, lease.submission):
                    return batch.outcomes[index]
        raise AssertionError(f"{lease} is not on the ledger")

    def slashed(self, name: str) -> int:
        return self.state.accounts[key_of(name).address].slashed

    def keep_records(self) -> None:
        """Has the run's directory hold the coordinator's records, as where both are one machine's."""
        home = self.run.path / "coordinator"
        home.mkdir(exist_ok=True)
        for file in self.swarm.path.glob("state.db*"):
            (home / file.name).write_bytes(file.read_bytes())


@contextmanager
def open_trial(path: Path, world: World, **changes: Any) -> Iterator[Trial]:
    """A run with two versions, of which version 0 is announced."""
    dtype = world.config.model.dtype
    own: dict[str, Any] = {
        "model": {"source": str(model_dir(world.kind)), "dtype": dtype},
        "sampling": SAMPLING[world.kind],
        "tasks": [TASKS],
        "ledger": {"slash_files": 20},
    }
    with world_at(path, f"sqlite:///{path / 'state.db'}", **own | changes) as swarm:
        run = make_run(path / "run", swarm.config)
        with run.channel().publish(1) as staging:
            after = {name: weight.to(DTYPES[dtype]) for name, weight in weights(world.kind)[1].items()}
            save_file(after, staging / "model.safetensors")
        swarm.config = swarm.coordinator._config = run.config  # tasks are pinned when a run is prepared
        policy = load_as(run.base_model, dtype, "float32")
        channel = run.channel()

        def root_of(number: int) -> str | None:
            version = channel.version(number)
            return version.root if version else None

        judge = swarm.link(VALIDATOR)
        judge.join("validator")
        store = SwarmStore(judge, path / "fetched", limits_of(run.config, policy.vocab), root_of)
        checks = Checks(run.config, policy, gym(), InProcess(gym()), root_of)
        audits, votes = Audits(run.config.audit), Votes(path / "votes.jsonl")
        status, metrics = run.status("validator"), run.metrics("validator")
        validator = Validator(run, channel, store, checks, audits, status, metrics, base_version(run), votes=votes)
        found = Trial(swarm, run, world, validator, votes, Juror(judge, votes, path / "head.json"), io.StringIO())
        found.announce(0)
        yield found
