"""The worker: takes a lease, generates with the version that it names, scores, submits; again until the run is done."""

import time
from contextlib import closing
from dataclasses import dataclass

from shoal.config import RunConfig
from shoal.devices import set_up
from shoal.errors import ModelError, RolloutError, WeightsError
from shoal.files import locked
from shoal.generate.submission_builder import Maker
from shoal.protocol.lease import Lease
from shoal.protocol.stores import LeaseStore, Version, WeightSource
from shoal.roles.session import JoinOptions, ignore_refused
from shoal.roles.worker_engine import engine_of, start_engine, worker_profile
from shoal.rundir import TAKEOVER_S, RunDir, check_worker_name
from shoal.tasks.rewards.scorer import Scorer
from shoal.telemetry.metrics import MetricsWriter
from shoal.telemetry.status import StatusFile
from shoal.telemetry.waiting import Patience

# A waiting worker looks for a new version this often, which costs nothing, and for a lease that went back to the pool
# less often, which is a request.
POLL_S = 0.02
LOOK_FOR_LEASES_S = 0.25


@dataclass(slots=True)
class Worker:
    """One generating node. It knows the run through its two interfaces and nothing else."""

    name: str
    config: RunConfig
    channel: WeightSource
    store: LeaseStore
    maker: Maker
    status: StatusFile
    metrics: MetricsWriter
    loaded: Version | None

    def run(self) -> None:
        """Works until the last version is out."""
        while True:
            version = self._newest()
            if version.number >= self.config.steps:
                self.status.done("the run is complete")
                return
            lease = self.store.lease(self.name, version.number)
            if lease is None:
                self._wait_for_work(version)
                continue
            self._work(lease)

    def _newest(self) -> Version:
        version = self.channel.latest()
        if version is None:
            raise WeightsError("no policy version is published; prepare the run with shoal run")
        return version

    def _wait_for_work(self, version: Version) -> None:
        """Waits until there may be work: a new version, or a lease that went back to the pool.

        For as long as that takes: a coordinator that does not answer any more is found by asking it for leases.
        """
        patience = Patience(self.metrics, self.config.patience_s)
        look_again = time.monotonic() + LOOK_FOR_LEASES_S
        while self.channel.latest() == version:
            self.status.waiting(f"policy version {version.number + 1}", "trainer", None)
            patience.waits(f"policy version {version.number + 1} or a lease")
            time.sleep(POLL_S)
            if time.monotonic() >= look_again:
                if self.store.lease(self.name, version.number) is not None:
                    return  # it is this node's own now, and `run` finds it again
                look_again = time.monotonic() + LOOK_FOR_LEASES_S

    def _load(self, version: Version) -> bool:
        """Makes `version` the one in the engine; False if it vanished meanwhile, an error if it is damaged."""
        if version == self.loaded:
            return True
        self.status.working(f"loading version {version.number}")
        try:
            folder = self.channel.fetch(version)
            self.loaded = None  # an engine that cannot load a version may have half of it
            self.maker.engine.load(folder, f"version {version.number}")
        except (WeightsError, ModelError) as error:
            if self.channel.latest() == version:
                raise
            self.metrics.write("note", text=str(error))
            return False
        self.loaded = version
        return True

    def _named(self, lease: Lease) -> Version | None:
        """The version that a lease names: also when a newer one has come since, as after a restart."""
        version = self.channel.version(lease.version)
        if version is None or not self._load(version):
            self._note(f"{lease}: version {lease.version}, which it names, is not available; its draw is given again")
            return None
        return version

    def _note(self, text: str) -> None:
        self.metrics.write("note", text=text)
        time.sleep(LOOK_FOR_LEASES_S)

    def _work(self, lease: Lease) -> None:
        if (version := self._named(lease)) is None:
            return
        if lease.draw_of:
            self.metrics.write("note", text=f"{lease}: gives the draw of lease {lease.draw_of} again, which was let go")
        began = time.monotonic()
        self.status.working(f"step {lease.step} submission {lease.submission} with version {version.number}")
        try:
            submission, data = self.maker.file(lease, version)
            seconds = time.monotonic() - began
            self.store.put(lease, data)
        except RolloutError as error:
            self._note(str(error))
            return
        rewards = [r.reward for r in submission.rollouts if r.reward is not None]
        solved = [r.task_reward for r in submission.rollouts if r.task_reward is not None]
        tokens = sum(len(r.completion) for r in submission.rollouts)
        self.metrics.write(
            "submission",
            step=lease.step,
            version=version.number,
            submission=lease.submission,
            samples=len(submission.rollouts),
            tokens=tokens,
            tokens_per_s=tokens / seconds,
            reward=sum(rewards) / len(rewards) if rewards else None,
            solve_rate=sum(r >= 1.0 for r in solved) / len(solved) if solved else None,
            scorer_errors=len(submission.rollouts) - len(rewards),
            **self.status.shares(),
        )


def start_worker(run: RunDir, name: str, options: JoinOptions, attack: str | None = None) -> None:
    """Runs one worker of a run in this process until the run is done; with an attack's name, one that cheats."""
    check_worker_name(name)
    config = run.config
    device = set_up(config.device_of("workers"), config.workers.threads)
    which = engine_of(config, device) if attack is None else "torch"  # who cheats does it in our own engine
    profile = options.profile or worker_profile(config, device).name
    taken = f"worker {name}: another process of that name is at work in {run.path}; give this one another --name"
    with (
        locked(run.path / "locks" / name, taken, wait_s=TAKEOVER_S),
        run.role(name) as (status, metrics),
        options.session(run, "worker", name, status, metrics, profile) as session,
    ):
        channel = session.weights
        status.working("loading the newest version")
        first, policy, engine = start_engine(run, channel, device, lambda text: metrics.write("note", text=text), which)
        kind = Maker
        if attack is not None:
            from shoal.attacks import attack_named

            kind = attack_named(attack)
        with closing(engine), Scorer(config.tasks) as judge:
            store = session.open_store(None, ignore_refused)
            maker = kind(config, policy, engine, judge.tasks, judge, store.table)
            Worker(session.node, config, channel, store, maker, status, metrics, first).run()
