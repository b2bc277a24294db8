"""Finds a repository's objects and its newest commit by reading files, without starting git in it."""

import re
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import FbamError
from shoal.files import read_regular

COMMIT = re.compile(r"[0-9a-f]{40}")
REFERENCE = re.compile(r"refs/[A-Za-z0-9._/+@-]+")
MAX_DEPTH = 5  # of references that name references


@dataclass(frozen=True, slots=True)
class GitDirectory:
    """Where the objects of a repository are, and which commit it is at."""

    path: Path
    objects: Path
    head: str
    shallow: tuple[str, ...]
    """Commits whose parents were not cloned."""


def find_git_directory(path: Path) -> GitDirectory:
    """The repository at a path: a work tree, a linked work tree or a bare repository."""
    own = _own_directory(path.resolve())
    common = own
    if (named := _read(own / "commondir")) is not None:
        common = (own / named).resolve()
    objects = common / "objects"
    if not objects.is_dir():
        raise FbamError(f"repository {path}: not a git repository; give the directory that has .git in it")
    if "\n" in str(objects) or str(objects).startswith('"'):
        raise FbamError(f"repository {path!r}: its path has a line break; move it")
    shallow = (_read(common / "shallow") or "").split()
    return GitDirectory(path, objects, _head(path, own, common), tuple(filter(COMMIT.fullmatch, shallow)))


def _own_directory(path: Path) -> Path:
    git = path / ".git"
    if git.is_file() and (text := _read(git)) is not None and text.startswith("gitdir: "):
        return (path / text.removeprefix("gitdir: ")).resolve()
    return git if git.is_dir() else path


def _head(path: Path, own: Path, common: Path) -> str:
    value = _read(own / "HEAD") or ""
    for _ in range(MAX_DEPTH):
        if COMMIT.fullmatch(value):
            return value
        name = value.removeprefix("ref: ")
        if not value.startswith("ref: ") or not REFERENCE.fullmatch(name) or ".." in name:
            break
        value = _read(own / name) or _read(common / name) or _packed(common, name)
    raise FbamError(f"repository {path}: HEAD names no SHA-1 commit; check out a branch that has one")


def _packed(common: Path, name: str) -> str:
    for line in (_read(common / "packed-refs") or "").splitlines():
        commit, _, reference = line.partition(" ")
        if reference == name:
            return commit
    return ""


def _read(path: Path) -> str | None:
    """A small text file without the space around it; None if it is missing, large or not a regular file."""
    try:
        return read_regular(path).decode(errors="replace").strip()
    except OSError:
        return None
