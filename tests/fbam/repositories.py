"""Small git repositories for tests, made with git itself."""

import os
import subprocess
from pathlib import Path

IDENTITY = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def git(repository: Path, *arguments: str) -> str:
    environment = {**os.environ, **IDENTITY}
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def make_repository(path: Path, *versions: dict[str, bytes]) -> Path:
    """One commit per version; a version gives the whole bytes of the files that it changes."""
    path.mkdir(parents=True)
    git(path, "init", "--quiet", "--initial-branch=main")
    for number, files in enumerate(versions):
        for name, data in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        git(path, "add", "--all")
        git(path, "commit", "--quiet", "--message", f"version {number}")
    return path
