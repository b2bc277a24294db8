"""Reading finished rollouts: what was asked, what was answered, what it earned."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection

from shoal.coordinator.archive import Kept, has_coordinator, kept_files, kept_steps, reading
from shoal.errors import ConfigError, ModelError, RolloutError, UnreadError
from shoal.files import parse_json
from shoal.protocol.lease import Lease
from shoal.protocol.submission import Rollout, Submission, read_rollouts
from shoal.rundir import RunDir, limits_of, open_run
from shoal.text import one_line

# Token ids are not checked against the vocabulary here: the model is not loaded.
ANY_TOKEN = 2**31


class _Archive(Protocol):
    """Where a run's files are."""

    def steps(self) -> list[int]: ...

    def files(self, step: int) -> list[Kept]: ...


@contextmanager
def _archive(run: RunDir) -> Iterator[_Archive]:
    if not has_coordinator(run):
        yield _Directory(run.path / "rollouts")
        return
    with reading(run) as db:
        yield _Coordinator(db, run)


@dataclass(frozen=True, slots=True)
class _Coordinator:
    db: Connection
    run: RunDir

    def steps(self) -> list[int]:
        return kept_steps(self.db)

    def files(self, step: int) -> list[Kept]:
        return kept_files(self.db, self.run, step)


@dataclass(frozen=True, slots=True)
class _Directory:
    path: Path

    def steps(self) -> list[int]:
        folders = [folder for folder in self.path.glob("step-*") if folder.name[5:].isdecimal()]
        return sorted(int(folder.name[5:]) for folder in folders if any(folder.glob("*.parquet")))

    def files(self, step: int) -> list[Kept]:
        found = []
        for path in sorted((self.path / f"step-{step:06d}").glob("*.parquet")):
            try:
                lease = Lease.from_json(path.with_suffix(".lease.json").read_bytes())
                found.append(Kept(lease, path, _accept(path)))
            except (OSError, RolloutError, UnreadError):
                continue
        return found


def _accept(path: Path) -> bool | None:
    try:
        accept = parse_json(path.with_suffix(".verdict.json").read_bytes())["accept"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return accept if isinstance(accept, bool) else None


def print_rollouts(run_dir: Path, step: int | None, count: int, console: Console) -> None:
    """Shows some groups of a step, those whose rewards differ most first: they are what the policy learns from.

    Nothing of a file reaches the terminal but printable text, for files come from strangers.
    """
    run = open_run(run_dir)
    with _archive(run) as archive:
        _print(run, archive, step, count, console)


def _print(run: RunDir, archive: _Archive, step: int | None, count: int, console: Console) -> None:
    run_dir = run.path
    steps = archive.steps()
    if not steps:
        raise ConfigError(f"run {run_dir}: no rollouts there yet; shoal status {run_dir} says what it is doing")
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        raise ConfigError(f"run {run_dir}: no rollouts of step {chosen}; there are steps {steps[0]}..{steps[-1]}")
    decode = _decoder(run)
    files = [(_read(run, kept), kept.accept is not None) for kept in archive.files(chosen)]
    taken = [(submission, judged) for submission, judged in files if submission is not None]
    groups = [(submission, judged, group) for submission, judged in taken for group in submission.groups()]
    groups.sort(key=lambda item: -_spread(item[2]))
    refused = len(files) - len(taken)
    left_out = f"; {refused} refused files are left out (shoal status {run_dir} says why)" if refused else ""
    console.print(f"step {chosen}: {len(groups)} groups in all{left_out}", soft_wrap=True, markup=False)
    for submission, judged, group in groups[:count]:
        title = f"{group[0].source} task {group[0].task}, version {submission.version}, {submission.lease.node}"
        table = Table()
        for column in ("reward", "advantage", "tokens", "end", "answer"):
            table.add_column(column, justify="left" if column in ("end", "answer") else "right")
        for sample in group:
            reward = f"{sample.reward:.2f}" if sample.reward is not None else "-"
            answer = Text(repr(decode(sample.completion)))
            if sample.error:
                answer.append(f" {one_line(sample.error)}", "red")
            table.add_row(reward, f"{sample.advantage:+.2f}", str(len(sample.completion)), sample.finish, answer)
        console.print()
        console.print(Text("\n".join(map(one_line, decode(group[0].prompt).splitlines())), "bold"), soft_wrap=True)
        console.print(Text(one_line(title + ("" if judged else ", not judged yet")), "italic"), soft_wrap=True)
        console.print(table)


def _decoder(run: RunDir) -> Callable[[list[int]], str]:
    from tokenizers import Tokenizer  # a fraction of a second to import, where transformers takes seconds

    path = run.base_model / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more special
        raise ModelError(f"{path}: not a readable tokenizer ({error}); rollouts are token ids and need it") from error
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True))


def _read(run: RunDir, kept: Kept) -> Submission | None:
    """A file that was not refused."""
    if kept.accept is False:
        return None
    try:
        return read_rollouts(kept.path, kept.lease, limits_of(run.config, ANY_TOKEN))
    except (RolloutError, UnreadError):
        return None  # as the trainer will find as well


def _spread(group: list[Rollout]) -> float:
    rewards = [sample.reward for sample in group if sample.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    return sum((reward - mean) ** 2 for reward in rewards)
