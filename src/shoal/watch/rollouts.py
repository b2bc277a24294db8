"""Reading finished rollouts: what was asked, what was answered, what it earned."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.coordinator.archive import Kept, has_records, kept_files, kept_steps, reading
from shoal.errors import ConfigError, ModelError, RolloutError, UnreadError
from shoal.protocol.rollout import Rollout
from shoal.protocol.submission import Submission, read_rollouts
from shoal.rundir import RunDir, limits_of, open_run
from shoal.text import one_line

# Token ids are not checked against the vocabulary here: the model is not loaded.
ANY_TOKEN = 2**31


def print_rollouts(run_dir: Path, step: int | None, count: int, console: Console) -> None:
    """Shows some groups of a step, those whose rewards differ most first: they are what the policy learns from.

    Nothing of a file reaches the terminal but printable text, for files come from strangers.
    """
    run = open_run(run_dir)
    chosen, kept = _files(run, step)
    decode = _decoder(run)
    files = [(_read(run, file), file.accept is not None) for file in kept]
    taken = [(submission, judged) for submission, judged in files if submission is not None]
    groups = [(submission, judged, group) for submission, judged in taken for group in submission.groups()]
    groups.sort(key=lambda item: -_spread(item[2]))
    refused = len(files) - len(taken)
    left_out = f"; {refused} refused files are left out (shoal status {run_dir} says why)" if refused else ""
    console.print(f"step {chosen}: {len(groups)} groups in all{left_out}", soft_wrap=True, markup=False)
    for submission, judged, group in groups[:count]:
        title = f"{group[0].source} task {group[0].task}, version {submission.version}, {submission.lease.node}"
        if group[0].source in run.config.unverified:
            title += ", unverified: what the environment said and what it gave is the worker's word"
        table = Table()
        for column in ("reward", "advantage", "tokens", "end", "answer"):
            table.add_column(column, justify="left" if column in ("end", "answer") else "right")
        for sample in group:
            reward = f"{sample.reward:.2f}" if sample.reward is not None else "-"
            answer = Text(repr(decode(sample.completion.tolist())))
            if sample.error:
                answer.append(f" {one_line(sample.error)}", "red")
            table.add_row(reward, f"{sample.advantage:+.2f}", str(len(sample.completion)), sample.finish, answer)
        console.print()
        asked = decode(group[0].prompt.tolist()).splitlines()
        console.print(Text("\n".join(map(one_line, asked)), "bold"), soft_wrap=True)
        console.print(Text(one_line(title + ("" if judged else ", not judged yet")), "italic"), soft_wrap=True)
        console.print(table)


def _files(run: RunDir, step: int | None) -> tuple[int, list[Kept]]:
    """The step that is asked for, or the newest, and its files as the coordinator has them on record."""
    if not has_records(run):
        raise _nothing_yet(run)
    with reading(run) as db:
        steps = kept_steps(db)
        if not steps:
            raise _nothing_yet(run)
        chosen = steps[-1] if step is None else step
        if chosen not in steps:
            raise ConfigError(f"run {run.path}: no rollouts of step {chosen}; there are steps {steps[0]}..{steps[-1]}")
        return chosen, kept_files(db, run, chosen)


def _nothing_yet(run: RunDir) -> ConfigError:
    return ConfigError(f"run {run.path}: no rollouts there yet; shoal status {run.path} says what it is doing")


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
