"""Reads commits and blobs of a git repository that nobody trusts.

git runs in an empty repository of our own that borrows the other's objects. The other's config, hooks, attributes and
filters are never read, so nothing in them can run; nothing is checked out, written to it or fetched. Output, memory
and time of each git process are bounded by the system.
"""

import os
import resource
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.errors import FbamError
from shoal.fbam.recording.editor import MAX_TEXT_BYTES
from shoal.fbam.recording.git_directory import GitDirectory, find_git_directory
from shoal.text import one_line

REGULAR_FILES = ("100644", "100755")
BATCH_BYTES = 32 << 20  # of blobs that are read at once


@dataclass(frozen=True, slots=True)
class Limits:
    """What a repository may cost; beyond these, what was read so far is used or the repository is refused."""

    commits: int = 10_000
    blob_bytes: int = MAX_TEXT_BYTES
    output_bytes: int = 256 << 20
    memory_bytes: int = 4 << 30
    seconds: float = 120.0
    """Of each git process."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that a commit added or modified; blobs by their ids, None for a file that was not there."""

    commit: str
    path: str
    before: str | None
    after: str


class Repository:
    """The objects of one repository, readable while the context lasts."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.source: GitDirectory = find_git_directory(path)
        self._scratch = tempfile.TemporaryDirectory(prefix="shoal-fbam-git-")

    def __enter__(self) -> Self:
        own = Path(self._scratch.name) / "own"
        self._git("init", "--quiet", "--bare", "--template=", str(own))
        (own / "objects" / "info").mkdir(exist_ok=True)
        # As the bytes that it has: directories may have names that are not UTF-8.
        (own / "objects" / "info" / "alternates").write_bytes(os.fsencode(self.source.objects) + b"\n")
        if self.source.shallow:
            (own / "shallow").write_text("".join(f"{commit}\n" for commit in self.source.shallow))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._scratch.cleanup()

    def changes(self) -> Iterator[FileChange]:
        """Regular files that commits before HEAD added or modified, the oldest first; merges are skipped."""
        newest = ["rev-list", "--no-merges", "--topo-order", f"--max-count={self.limits.commits}", self.source.head]
        commits = self._own_git(*newest).split()
        listing = ("diff-tree", "--stdin", "--root", "-r", "-z", "--raw", "--no-renames", "--no-abbrev")
        told = self._own_git(*listing, given=b"".join(commit + b"\n" for commit in reversed(commits)))
        return parse_listing(told)

    def blobs(self, ids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """The blobs that exist and are small enough, each with its id; others are missing from the answer."""
        wanted = list(dict.fromkeys(ids))
        told = self._own_git("cat-file", "--batch-check", given="".join(f"{one}\n" for one in wanted).encode())
        batch: list[str] = []
        total = 0
        for line in told.decode("ascii", "replace").splitlines():
            fields = line.split(" ")
            if len(fields) != 3 or fields[1] != "blob" or int(fields[2]) > self.limits.blob_bytes:
                continue
            if total + int(fields[2]) > BATCH_BYTES:
                yield from self._read(batch)
                batch, total = [], 0
            batch.append(fields[0])
            total += int(fields[2])
        yield from self._read(batch)

    def _read(self, ids: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        told = self._own_git("cat-file", "--batch", given="".join(f"{one}\n" for one in ids).encode())
        at = 0
        for wanted in ids:
            head, at = told[at : told.index(b"\n", at)].decode().split(" "), told.index(b"\n", at) + 1
            if head[0] != wanted or head[1] != "blob":
                raise FbamError(f"repository {self.source.path}: git answered {head[:2]} for {wanted}")
            yield wanted, told[at : at + int(head[2])]
            at += int(head[2]) + 1

    def _own_git(self, *arguments: str, given: bytes = b"") -> bytes:
        return self._git(f"--git-dir={Path(self._scratch.name) / 'own'}", *arguments, given=given)

    def _git(self, *arguments: str, given: bytes = b"") -> bytes:
        """Runs git with files as its input and output: a bound on file size then bounds what it can answer."""
        with tempfile.TemporaryFile() as read, tempfile.TemporaryFile() as written, tempfile.TemporaryFile() as said:
            read.write(given)
            read.seek(0)
            try:
                code = subprocess.run(
                    ["git", "--no-replace-objects", *arguments],
                    stdin=read,
                    stdout=written,
                    stderr=said,
                    env=self._environment(),
                    cwd=self._scratch.name,
                    timeout=self.limits.seconds,
                    preexec_fn=self._bound,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired as error:
                raise FbamError(
                    f"repository {self.source.path}: git took more than {self.limits.seconds:g} s; give fewer --commits"
                ) from error
            except FileNotFoundError as error:
                raise FbamError("git: not installed; recordings are made from git repositories") from error
            if code != 0:
                said.seek(0)
                why = one_line(said.read(300).decode(errors="replace")) or f"ended with code {code}, over a limit"
                command = next(word for word in arguments if not word.startswith("-"))
                raise FbamError(f"repository {self.source.path}: git {command} failed: {why}")
            written.seek(0)
            return written.read()

    def _environment(self) -> dict[str, str]:
        """No setting of user or system, no prompt, and no protocol by which a missing object could be fetched."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": self._scratch.name,
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_ALLOW_PROTOCOL": "",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
        }

    def _bound(self) -> None:
        """In the child, before git starts. Where the user's own limits are lower (`ulimit -v`), these stay."""
        for kind, limit in (
            (resource.RLIMIT_FSIZE, self.limits.output_bytes),
            (resource.RLIMIT_AS, self.limits.memory_bytes),
            (resource.RLIMIT_CORE, 0),
        ):
            _, most = resource.getrlimit(kind)
            lower = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.setrlimit(kind, (lower, lower))


def parse_listing(told: bytes) -> Iterator[FileChange]:
    """Changes from `git diff-tree --stdin -r -z --raw`: a commit's id, then pairs of a colon record and a path."""
    commit, fields = "", iter(told.split(b"\0"))
    for field in fields:
        if not field.startswith(b":"):
            commit = field.decode("ascii", "replace").strip()
            continue
        path = next(fields, b"").decode(errors="replace")
        old_mode, new_mode, before, after, status = field[1:].decode("ascii").split(" ")
        if status == "A" and new_mode in REGULAR_FILES:
            yield FileChange(commit, path, None, after)
        elif status == "M" and old_mode in REGULAR_FILES and new_mode in REGULAR_FILES and before != after:
            yield FileChange(commit, path, before, after)
