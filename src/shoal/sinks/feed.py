"""`shoal feed`: follows a run's metrics files and hands their rows to one sink, in a process that no role waits for.

It reads files, and what it knows of its own past it has from the sink or from a file beside it: started again, it goes
on where it was. A sink that hangs, raises or exits takes this process with it and nothing else.
"""

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Literal, get_args

from rich.console import Console

from shoal.config import LogConfig, RunConfig, TensorBoardConfig, TrackioConfig, WandbConfig
from shoal.config_io import check_config, override
from shoal.errors import ConfigError
from shoal.files import locked, make_directory
from shoal.priority import give_way
from shoal.rundir import RunDir, open_run
from shoal.sinks.rows import Rows
from shoal.sinks.sink import Sink, unique_name
from shoal.watch.history import History, run_directory

SinkName = Literal["tensorboard", "trackio", "wandb"]
SINKS: tuple[SinkName, ...] = get_args(SinkName)
FOLDER = "sinks"
LOOK_S = 2.0
# Training comes first; a curve may be a second late.
# The process before this one may have been killed a moment ago.
TAKEOVER_S = 10.0


def sinks_of(log: LogConfig) -> list[SinkName]:
    """The sinks that a config asks for."""
    return [name for name in SINKS if getattr(log, name) is not None]


def feed_run(path: Path, name: str, settings: list[str], console: Console, *, follow: bool) -> None:
    """Hands all rows of a run to a sink that does not have them yet; with `follow`, until SIGTERM or SIGINT."""
    sink_name = _known(name)
    run = _configured(open_run(run_directory(path)), settings)
    folder = path / FOLDER
    make_directory(folder)
    taken = f"feed {path} {name}: another process feeds it; stop that one first"
    stop = threading.Event()
    with locked(folder / f"{name}.lock", taken, wait_s=TAKEOVER_S):
        _stop_on_signals(stop)
        give_way()
        sink = open_sink(sink_name, run)
        sent = feed(History(path), sink, stop, follow=follow)
    console.print(f"{name}: {sent} new rows of {path}", highlight=False, soft_wrap=True)


def feed(history: History, sink: Sink, stop: threading.Event, *, follow: bool, look_s: float = LOOK_S) -> int:
    """The number of rows that were handed over until the end of the files or, with `follow`, until `stop`."""
    rows, sent = Rows(), 0
    while True:
        is_last = not follow or stop.is_set()  # before the files are read: what was written until now is in
        for row in rows.take(history.refresh()):
            if not sink.has(row):
                sink.write(row)
                sent += 1
        if is_last:
            sink.close()
            return sent
        sink.flush()
        stop.wait(look_s)


def open_sink(name: SinkName, run: RunDir) -> Sink:
    """A sink of a run, as its config says or, if that does not name it, with defaults."""
    log, folder = run.config.log, run.path / FOLDER
    match name:
        case "tensorboard":
            from shoal.sinks.tensorboard_sink import TensorBoardSink

            shared = (log.tensorboard or TensorBoardConfig()).dir
            return TensorBoardSink(Path(shared) / unique_name(run) if shared else folder / name)
        case "trackio":
            from shoal.sinks.trackio_sink import TrackioSink

            trackio = log.trackio or TrackioConfig()
            return TrackioSink(trackio.project, run, Path(trackio.dir) if trackio.dir else folder / name)
        case "wandb":
            from shoal.sinks.wandb_sink import WandbSink

            return WandbSink(log.wandb or WandbConfig(), run, folder / name)


def _known(name: str) -> SinkName:
    for known in SINKS:
        if known == name:
            return known
    raise ConfigError(f"feed {name}: unknown sink; give one of {', '.join(SINKS)}")


def _configured(run: RunDir, settings: list[str]) -> RunDir:
    """The run with settings of [log] changed for this command."""
    for setting in settings:
        if not setting.startswith("log."):
            raise ConfigError(
                f"--set {setting}: shoal feed takes settings of [log] alone, as in log.wandb.project=NAME"
            )
    tree = run.config.model_dump(mode="json", exclude_none=True)
    config: RunConfig = check_config(override(tree, settings), "--set")
    return RunDir(run.path, config)


def _stop_on_signals(stop: threading.Event) -> None:
    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
