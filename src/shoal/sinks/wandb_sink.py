"""Weights & Biases, online or as files that `wandb sync` sends later.

A run of ours is one run there, however often its feeder was started: its id follows from the run. Which rows went is
in a journal beside it, because nobody can be asked: offline there is no server, and online it may be slow to know.
"""

from pathlib import Path
from typing import Any

from shoal.config import WandbConfig
from shoal.config_io import public_tree
from shoal.extras import require
from shoal.files import make_directory
from shoal.rundir import RunDir
from shoal.sinks.rows import GROUPS, Row
from shoal.sinks.sink import Journal, run_id


class WandbSink:
    """Rows as history of one run, each group over its own numbers (`train/step`, `eval/version`)."""

    def __init__(self, config: WandbConfig, run: RunDir, folder: Path) -> None:
        require("wandb", "log.wandb")
        import wandb

        make_directory(folder)
        self._journal = Journal(folder / "rows.txt")
        self._run: Any = wandb.init(
            project=config.project,
            entity=config.entity or None,
            name=run.config.name,
            id=run_id(run),
            resume="allow",
            mode=config.mode,
            dir=str(folder),
            config=public_tree(run.config),
            # No console capture, no machine statistics, no source code, no git: metrics are all that leaves.
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                save_code=False,
                x_disable_stats=True,
                x_disable_meta=True,
                x_save_requirements=False,
            ),
        )
        for group in GROUPS:
            self._run.define_metric(counted_by(group))
            self._run.define_metric(f"{group}/*", step_metric=counted_by(group))
        for part in ("workers", "validators"):
            self._run.define_metric(f"{part}/*", step_metric=counted_by("train"))

    def has(self, row: Row) -> bool:
        return self._journal.has(row)

    def write(self, row: Row) -> None:
        self._journal.note(row)
        self._run.log({**row.values, counted_by(row.group): row.number, "_timestamp": row.time})

    def flush(self) -> None:
        """wandb's own process has the rows by now, and writes them whatever becomes of this one."""

    def close(self) -> None:
        self._run.finish()
        self._journal.close()


def counted_by(group: str) -> str:
    """The x axis of a group."""
    return f"{group}/step" if group == "train" else f"{group}/version"
