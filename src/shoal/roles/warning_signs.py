"""The trainer's watch over its own metrics: names warning signs in log, pages and metrics, and can stop the run.

What it knows is in the trainer's metrics file, so a trainer that was killed knows it again: a run that was stopped is
refused until its config says otherwise.
"""

from pathlib import Path

from shoal.config import WatchConfig
from shoal.errors import DivergedError
from shoal.telemetry.metrics import MetricsWriter, read_steps
from shoal.train.watch import Watch, describe


class WarningSigns:
    """Looks at each step once, in order."""

    def __init__(self, config: WatchConfig, metrics: MetricsWriter) -> None:
        self._config, self._metrics = config, metrics
        self._watch = Watch(config)

    def resume(self, file: Path, version: int) -> None:
        """Looks again at the steps that led to a version, in silence."""
        self._watch = Watch(self._config)
        for entry in read_steps(file, "step"):
            if entry["step"] < version:
                self._watch.look(entry)

    def look(self, step: int, metrics: dict[str, float]) -> dict[str, object]:
        """What the step's entry says of signs; those that begin are noted in words."""
        found = self._watch.look(metrics)
        for sign in found.began:
            text = describe(sign, found.ratios[sign], self._config.window)
            self._metrics.write("note", text=f"step {step}: {text}")
        return {
            "warning_signs": len(found.showing),
            "signs": list(found.showing),
            "watch": dict(found.ratios),
        }

    def refuse_if_stopped(self, version: int) -> None:
        """Ends the run if it shows as many signs as its config allows."""
        if self._watch.stops:
            config, names = self._config, ", ".join(self._watch.showing)
            raise DivergedError(
                f"trainer: version {version}: {len(self._watch.showing)} warning signs show at once ({names}), and "
                f"train.watch.stop is {config.stop}; the run stops before it collapses. Go on with --set "
                "train.watch.stop=0, or start another run with a lower train.lr or train.grad_clip"
            )
