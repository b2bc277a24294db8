"""Finds a repository's objects and its newest commit by reading files, without starting git in it."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import FbamError
from shoal.files import read_regular

COMMIT = re.compile(r"[0-9a-f]{40}")
# Any name that git allows a branch (git-check-ref-format): `fix#12`, `fix(x)`, and names outside ASCII among them.
REFERENCE = re.compile(r"refs/[^\x00-\x20\x7f~^:?*\[\\]+")
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
    """The repository at a path: a work tree, a linked work tree or a bare repository.

    A repository that a stranger made may name the objects of another one, which its reader can see and the stranger
    cannot: the recording would then have the other's text. So all objects must be in the repository's own directory.
    The one directory elsewhere that is followed is that of a linked work tree, which names the work tree in return.
    """
    own = _own_directory(path)
    common = _common_directory(path, own)
    objects = common / "objects"
    if not objects.is_dir():
        raise FbamError(f"repository {path}: not a git repository; give the directory that has .git in it")
    if "\n" in str(objects) or str(objects).startswith('"'):
        raise FbamError(f"repository {path!r}: its path has a line break; move it")
    _refuse_borrowed_objects(path, objects)
    shallow = (_read(common / "shallow") or "").split()
    return GitDirectory(path, objects, _head(path, own, common), tuple(filter(COMMIT.fullmatch, shallow)))


def _own_directory(path: Path) -> Path:
    tree = path.resolve()
    git = tree / ".git"
    if git.is_symlink():
        raise FbamError(f"repository {path}: its .git is a symbolic link; give the repository that it is a link to")
    if git.is_file() and (text := _read(git)) is not None and text.startswith("gitdir: "):
        own = _named_directory(path, tree, text.removeprefix("gitdir: "))
        back = _read(own / "gitdir")
        if back is None or _named_directory(path, own, back) != git:
            raise FbamError(
                f"repository {path}: its .git names {own}, which is not a linked work tree of it; "
                "give that directory instead, if it is the one to record"
            )
        return own
    return git if git.is_dir() else tree


def _common_directory(path: Path, own: Path) -> Path:
    """Where work trees share their objects: `own` itself, or the repository that has it under worktrees/."""
    named = _read(own / "commondir")
    if named is None:
        return own
    common = _named_directory(path, own, named)
    if own.parent != common / "worktrees":
        raise FbamError(
            f"repository {path}: its commondir names {common}, which does not name {own} as a work tree; "
            "give that directory instead, if it is the one to record"
        )
    return common


def _named_directory(path: Path, base: Path, named: str) -> Path:
    if not named.isprintable():
        raise FbamError(f"repository {path}: it names the directory {named[:80]!r}; no such name is followed")
    return (base / named).resolve()


def _refuse_borrowed_objects(path: Path, objects: Path) -> None:
    """git follows alternates of alternates, and links, so it must not be given a repository that has any."""
    if os.path.lexists(objects / "info" / "alternates"):
        raise FbamError(
            f"repository {path}: it borrows objects (objects/info/alternates), be it from a repository that is not "
            "meant to be read; in a repository of your own, run `git repack -a -d` and remove that file"
        )
    try:
        links = [objects] if objects.is_symlink() else list(_links(objects))
    except OSError as error:
        raise FbamError(f"repository {path}: its objects cannot be listed: {error}") from error
    if links:
        raise FbamError(f"repository {path}: {links[0]} is a symbolic link; objects must be in the repository itself")


def _links(objects: Path) -> Iterator[Path]:
    """Symbolic links where objects are looked for: directly in the directory, and in the directories in it."""
    directories = [Path(entry.path) for entry in os.scandir(objects) if entry.is_dir(follow_symlinks=False)]
    for directory in (objects, *directories):
        yield from (Path(entry.path) for entry in os.scandir(directory) if entry.is_symlink())


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
    for line in (_read(common / "packed-refs") or "").split("\n"):  # other line breaks may be in names
        commit, _, reference = line.partition(" ")
        if reference == name:
            return commit
    return ""


def _read(path: Path) -> str | None:
    """A small text file without the ASCII space around it; None if it is missing, large or not a regular file.

    Bytes that are not UTF-8 become what they are in paths: branches are files, and their names may have such bytes.
    """
    try:
        return os.fsdecode(read_regular(path).strip())
    except OSError:
        return None
