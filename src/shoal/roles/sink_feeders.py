"""The feeders of a run's sinks: one process per sink, which follows the metrics files and which no role waits for.

A sink that hangs, crashes or is not installed costs the run one sentence. What it did not take it is given by
`shoal feed RUN SINK` at any later time, without double points.
"""

import time

from shoal.errors import MissingExtraError
from shoal.extras import require
from shoal.process import stop_all
from shoal.roles.side_process import SideProcess
from shoal.rundir import RunDir
from shoal.sinks.feed import sinks_of

# Seconds that sinks have at the end of a run, all together, to take the last rows.
FINISH_S = 10.0


class SinkFeeders:
    """`shoal feed` for each sink of `[log]`, and `shoal metrics` if Prometheus is to look."""

    def __init__(self, run: RunDir) -> None:
        log, path, logs = run.config.log, str(run.path), run.path / "logs"
        self._path = path
        self._feeders = {
            name: SideProcess(
                f"feed-{name}", ["feed", path, name, "--follow"], logs / f"feed-{name}.log", f"the feeder of {name}"
            )
            for name in sinks_of(log)
        }
        self._exporter: SideProcess | None = None
        if log.prometheus:
            arguments = ["metrics", path, "--port", str(log.prometheus)]
            self._exporter = SideProcess("metrics", arguments, logs / "metrics.log", "the exporter of metrics")

    @property
    def processes(self) -> list[SideProcess]:
        return [*self._feeders.values(), *([self._exporter] if self._exporter else [])]

    def start(self) -> list[str]:
        """Starts all of them but those whose packages are missing: a sentence for each of these."""
        missing = []
        for name, feeder in self._feeders.items():
            try:
                require(name, f"log.{name}")
            except MissingExtraError as error:
                missing.append(f"{error}; the run goes on without it. Then: shoal feed {self._path} {name}")
                continue
            feeder.start()
        if self._exporter is not None:
            self._exporter.start()
        return missing

    def finish(self) -> list[str]:
        """Gives sinks a few seconds for what is left, ends them, and says which did not take it all."""
        if self._exporter is not None:
            self._exporter.close()
        children = {name: feeder.child for name, feeder in self._feeders.items() if feeder.child is not None}
        for child in children.values():
            child.terminate()
        deadline = time.monotonic() + FINISH_S
        while any(child.poll() is None for child in children.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        late = [name for name, child in children.items() if child.poll() != 0]
        stop_all(list(children.values()), grace_s=0.0)
        return [f"{name} did not take everything; for the rest: shoal feed {self._path} {name}" for name in late]
