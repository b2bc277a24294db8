"""The ranks of one trainer on this machine as one child of the supervisor, in the place of torchrun.

It runs while all ranks do. When one of them is killed, crashes or refuses, the others are ended at once and it is told
which one it was; ranks are only ever started together. They meet through a file and talk over the loopback, so that no
port is open to the network.
"""

import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.fork_server import ForkServer
from shoal.process import EXIT_REFUSED, RENDEZVOUS, Child


class RankGroup(Child):
    """A child made of several processes, each of which runs the same command as another rank."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        threads: int,
        log: Path,
        ranks: int,
        *,
        environment: Mapping[str, str] | None = None,
        fork_server: ForkServer | None = None,
    ) -> None:
        self._count = ranks
        self._ranks: list[Child] = []
        self._code: int | None = None
        self._words = ""
        super().__init__(name, arguments, threads, log, environment=environment, fork_server=fork_server)

    def _start(self) -> None:
        self._code, self._words = None, ""
        self._meeting = tempfile.mkdtemp(prefix="shoal-ranks-")
        try:
            for rank in range(self._count):
                self._ranks.append(self._rank(rank))
        except BaseException:
            self.close()
            raise
        self.process = self._ranks[0].process

    def _rank(self, rank: int) -> Child:
        environment = self._environment | rank_environment(rank, self._count, Path(self._meeting) / "store")
        log = self.log.with_name(f"{self.name}-rank-{rank}.log") if rank else self.log
        server = self._fork_server
        return Child(self.name, self.arguments, self.threads, log, environment=environment, fork_server=server)

    def poll(self) -> int | None:
        if self._code is None:
            codes = [rank.poll() for rank in self._ranks]
            if bad := {rank: code for rank, code in enumerate(codes) if code}:
                self._end_because(bad)
            elif all(code == 0 for code in codes):
                self._code = 0
        return self._code

    def _end_because(self, bad: dict[int, int]) -> None:
        """Ends every rank. The cause is a rank that says why, or was killed: others crash because it is gone."""
        rank = min(bad, key=lambda rank: (bad[rank] != EXIT_REFUSED, bad[rank] > 0, rank))
        code = bad[rank]
        for other in self._ranks:
            other.process.kill()
        said = self._ranks[rank].last_words().strip()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"crashed with code {code}"
        place = f"(process {self._ranks[rank].process.pid}, see {self._ranks[rank].log})"
        self._words = said or f"{self.name}: rank {rank} of {self._count} {place} {how}, so the other ranks were ended"
        self._code = code

    def last_words(self) -> str:
        return self._words

    def restart(self) -> None:
        for rank in self._ranks:
            rank.process.wait()
        super().restart()

    def terminate(self) -> None:
        for rank in self._ranks:
            rank.terminate()

    def stop(self, grace_s: float) -> None:
        self.terminate()
        for rank in self._ranks:
            rank.stop(grace_s)

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()
        self._ranks = []
        shutil.rmtree(self._meeting, ignore_errors=True)


def rank_environment(rank: int, ranks: int, store: Path) -> dict[str, str]:
    """What torchrun tells a rank of a job on one machine."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return {
        **{name: str(number) for name, number in numbers.items()},
        RENDEZVOUS: str(store),
        "GLOO_SOCKET_IFNAME": loopback,
    }
