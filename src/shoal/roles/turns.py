"""A worker that works in turns: one lease after the other, from its tasks to its file.

For makers that are not the honest one: those that cheat, and the planter. Each may replace any part of how a file is
made, so none of it is done beside anything else.
"""

import time
from dataclasses import dataclass

from shoal.errors import RolloutError
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version
from shoal.roles.worker_base import LOOK_FOR_LEASES_S, POLL_S, WorkerBase, not_here, places
from shoal.telemetry.waiting import Patience


@dataclass(slots=True)
class TurnWorker(WorkerBase):
    """Loads the newest version, takes a lease, makes its file with the version that it names, hands it in; again until
    the run is done."""

    def run(self) -> None:
        """Works until the last version is out."""
        while True:
            version = self.newest()
            if version.number >= self.config.steps:
                self.status.done("the run is complete")
                return
            if not self.load(version):
                continue  # it was taken back: another one is the newest by now
            lease = self.store.lease(self.name, version.number)
            if lease is None:
                self._wait_for_work(version)
                continue
            self.work(lease)

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

    def work(self, lease: Lease) -> None:
        version = self.channel.version(lease.version)
        if version is None or not self.load(version):
            self._pass_over(f"{lease}: {not_here(lease.version)}")
            return
        self.note_again(lease)
        began = time.monotonic()
        self.status.working(f"{places([lease])} with version {version.number}")
        try:
            submission, data = self.maker.file(lease, version)
            seconds = time.monotonic() - began
            self.store.put(lease, data)
        except RolloutError as error:
            self._pass_over(str(error))
            return
        self.report(submission, sum(r.drawn_count for r in submission.rollouts) / seconds)

    def _pass_over(self, text: str) -> None:
        self.note(text)
        time.sleep(LOOK_FOR_LEASES_S)
