"""What `shoal fetch` and `shoal tree` do."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from shoal.crypto.keys import Key
from shoal.errors import ShardcastError
from shoal.files import remove
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.format.store import Store
from shoal.shardcast.serve.relay_tree import walk

if TYPE_CHECKING:
    from shoal.cli.weights import FetchFlags

LOOK_S = 0.5  # between looks at whether the version fetched last was retracted


def fetch_version(sources: Sequence[str], flags: "FetchFlags", console: Console) -> None:
    """Fetches a version, or each new one as it appears; prints the directory of its files."""
    identity = Key.load_or_create(flags.key) if flags.key else None
    errors = Console(stderr=True)
    noted = Notes(errors)
    files: Path | None = None
    store, origin, number = Store(flags.to), flags.origin_address, flags.version
    with Puller(store, sources, origin, flags.run_name, name=flags.name, key=identity, on_note=noted) as puller:
        while True:
            if flags.follow:
                number = _await_next(puller, files)
            try:
                with _bar(errors, flags.quiet) as show:
                    files = puller.fetch(number, flags.wait, on_progress=show)
            except ShardcastError as error:
                if not flags.follow:
                    raise
                noted(str(error))  # it was retracted while it was being fetched; there will be another
                time.sleep(LOOK_S)
                continue
            _point(flags.to / "latest", files)
            console.print(str(files), highlight=False, soft_wrap=True)
            if not flags.follow:
                return


def _await_next(puller: Puller, files: Path | None) -> int:
    """The version after the one fetched last; the newest there is if that one was retracted, which removes it."""
    while True:
        after = int(files.parent.name.split("-")[0]) if files is not None and files.is_dir() else -1
        if (found := puller.latest(LOOK_S, after)) is not None:
            return found


def _point(link: Path, files: Path) -> None:
    """Makes DIR/latest lead to the files of the version fetched last, in one step."""
    staging = link.with_name(f".{link.name}-new")
    remove(staging)
    staging.symlink_to(files.relative_to(link.parent))
    staging.replace(link)


@contextlib.contextmanager
def _bar(console: Console, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("fetching", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def show_tree(url: str, console: Console) -> None:
    console.print(walk(url.rstrip("/")))


class Notes:
    """Prints what sources do wrong, the same thing at most every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, float] = {}

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self._said.get(text, -1e9) > 10:
            self._said[text] = now
            self._console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
