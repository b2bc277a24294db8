"""A study's directory: one file per finished run, so that a study that was killed goes on with the next run.

    DIR/study.json            which study, its size and its settings; another study or size is refused
    DIR/runs/SETTING.SEED.json    a finished run
    DIR/probe.json            what a short run took
    DIR/result.json, figure.png   what all runs show

Files are written whole. Several processes may work in one directory: each run is locked by the one that does it. A run
names the config that it was made with, and seeds of one setting that differ in it are never averaged.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError, LockedError, StorageError
from shoal.files import locked, make_directory, parse_json, read_regular, write_whole
from shoal.studies.study import Outcome, Setting, Size, Study


@dataclass(frozen=True, slots=True)
class StudyStore:
    """The files of one study at one size."""

    path: Path
    settings: Sequence[Setting]
    seeds: Sequence[int]

    @classmethod
    def open(cls, path: Path, study: Study, size: Size) -> "StudyStore":
        """Makes the directory, or goes on with it if it holds the same study, with as many seeds or fewer."""
        settings = list(study.settings())
        header = {
            "study": study.name,
            "size": {key: value for key, value in asdict(size).items() if key != "seeds"},
            "settings": {one.name: [dict(one.changes), one.lag, one.times, one.swarm] for one in settings},
        }
        make_directory(path / "runs")
        file = path / "study.json"
        if file.exists():
            there = read_table(file)
            if there != json.loads(json.dumps(header)):
                same = there.get("study") == study.name
                what = "this study with another size or other settings" if same else f"study {there.get('study')!r}"
                raise ConfigError(f"study {study.name}: {path} holds {what}; give another --out, or remove it")
        else:
            write_whole(file, json.dumps(header, indent=1).encode())
        return cls(path, settings, range(size.first_seed, size.first_seed + size.seeds))

    def wanted(self) -> list[tuple[Setting, int]]:
        """All runs, seed by seed: after the first seed every setting has been seen once."""
        return [(setting, seed) for seed in self.seeds for setting in self.settings]

    def outcome(self, setting: Setting, seed: int) -> Outcome | None:
        """What a finished run said."""
        file = self._file(setting, seed)
        return read_table(file) if file.exists() else None

    def keep(self, setting: Setting, seed: int, outcome: Outcome) -> None:
        """Writes down a finished run; a ConfigError if another seed of its setting ran with another config."""
        for other in self.seeds:
            there = self.outcome(setting, other)
            if there is not None and (was := there.get("config")) != (now := outcome.get("config")):
                raise ConfigError(
                    f"study run {setting.name}, seed {seed}: its config {now} is not {was}, that of seed {other} in "
                    f"{self.path / 'runs'}: the study or a file in configs/ changed in between. Give another --out, or "
                    "remove that folder"
                )
        write_whole(self._file(setting, seed), json.dumps(outcome, allow_nan=False).encode())

    def found(self) -> dict[str, list[Outcome]]:
        """Finished runs by setting. A seed counts only where every setting has it: seeds are compared pairwise."""
        seeds = [seed for seed in self.seeds if all(self.outcome(setting, seed) for setting in self.settings)]
        return {
            setting.name: [found for seed in seeds if (found := self.outcome(setting, seed)) is not None]
            for setting in self.settings
        }

    @contextmanager
    def claim(self, setting: Setting, seed: int) -> Iterator[bool]:
        """Whether this run is the caller's to do: not done yet, and nobody else's at the moment."""
        name = self._file(setting, seed).stem
        try:
            lock = locked(self.path / "locks" / name, f"run {name}: another process does it")
            lock.__enter__()
        except LockedError:
            yield False
            return
        try:
            yield self.outcome(setting, seed) is None
        finally:
            lock.__exit__(None, None, None)

    def probe(self) -> dict[str, float] | None:
        file = self.path / "probe.json"
        return read_table(file) if file.exists() else None

    def keep_probe(self, took: dict[str, float]) -> None:
        write_whole(self.path / "probe.json", json.dumps(took).encode())

    def _file(self, setting: Setting, seed: int) -> Path:
        return self.path / "runs" / f"{setting.name}.{seed}.json"


def read_table(file: Path) -> dict[str, Any]:
    """A study's file; a StorageError that names it if it is missing or not a table."""
    try:
        tree = parse_json(read_regular(file))
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"{file}: not readable ({error}); remove it, and the study does that part again") from error
    if not isinstance(tree, dict):
        raise StorageError(f"{file}: not a table; remove it, and the study does that part again")
    return tree
