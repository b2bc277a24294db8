"""A git history to record: this checkout's own, or one made from its files where the checkout has none."""

import os
import subprocess
from pathlib import Path

from benchmarks import ROOT
from shoal.errors import FbamError
from shoal.fbam.recording import Recording, RecordOptions, RecordReport, record_repository
from shoal.fbam.recording.repository import Repository

MADE_FILES = 80
MIN_CHANGES = 100


def record_history(scratch: Path, options: RecordOptions) -> tuple[str, Path, Recording, RecordReport]:
    """Which history it is, the recording's file, the recording, and what was left out."""
    source, repository = "this repository", ROOT
    if not _has_history(ROOT):
        source, repository = "made from this repository's files", make_history(scratch / "made")
    out = scratch / "recording.jsonl"
    return source, out, *record_repository(repository, out, options)


def _has_history(path: Path) -> bool:
    try:
        with Repository(path) as repository:
            return sum(1 for _ in repository.changes()) >= MIN_CHANGES
    except FbamError:
        return False


def make_history(path: Path) -> Path:
    """Files of this checkout, each committed in three growing parts."""
    path.mkdir()
    files = sorted((ROOT / "src").rglob("*.py"))[:MADE_FILES]
    _git(path, "init", "--quiet")
    for part in (1, 2, 3):
        for number, file in enumerate(files):
            lines = file.read_bytes().splitlines(keepends=True)
            (path / f"{number}.py").write_bytes(b"".join(lines[: len(lines) * part // 3]))
        _git(path, "add", "--all")
        _git(path, "commit", "--quiet", "--message", f"part {part}")
    return path


def _git(path: Path, *arguments: str) -> None:
    who = {f"GIT_{role}_{what}": "benchmark" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    clean = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", *arguments], cwd=path, check=True, env={**os.environ, **who, **clean})
