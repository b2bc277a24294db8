"""Reading finished rollouts: what was asked, what was answered, what it earned."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal.errors import ConfigError, RolloutError
from shoal.rollout.lease import Lease
from shoal.rollout.record import Rollout, Submission, read_rollouts
from shoal.rundir import RunDir, limits_of, open_run

# Token ids are not checked against the vocabulary here: the model is not loaded.
ANY_TOKEN = 2**31


def print_rollouts(run_dir: Path, step: int | None, count: int, console: Console) -> None:
    """Shows some groups of a step, those whose rewards differ most first: they are what the policy learns from."""
    run = open_run(run_dir)
    steps = sorted(
        int(folder.name[5:]) for folder in (run.path / "rollouts").glob("step-[0-9]*") if any(folder.glob("*.parquet"))
    )
    if not steps:
        raise ConfigError(f"run {run_dir}: no rollouts there yet; shoal status {run_dir} says what it is doing")
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        raise ConfigError(f"run {run_dir}: no rollouts of step {chosen}; there are steps {steps[0]}..{steps[-1]}")
    decode = _decoder(run)
    groups = [(submission, group) for submission in _submissions(run, chosen) for group in submission.groups()]
    groups.sort(key=lambda item: -_spread(item[1]))
    console.print(f"step {chosen}: {len(groups)} groups in all")
    for submission, group in groups[:count]:
        title = f"{group[0].source} task {group[0].task}, version {submission.version}, {submission.lease.node}"
        table = Table(title=escape(title), title_justify="left", show_lines=False)
        for column in ("reward", "advantage", "tokens", "end", "answer"):
            table.add_column(column, justify="left" if column in ("end", "answer") else "right")
        for sample in group:
            reward = f"{sample.reward:.2f}" if sample.reward is not None else "-"
            answer = escape(repr(decode(sample.completion))) + (
                f" [red]{escape(sample.error)}[/red]" if sample.error else ""
            )
            table.add_row(reward, f"{sample.advantage:+.2f}", str(len(sample.completion)), sample.finish, answer)
        console.print()
        console.print(escape(decode(group[0].prompt)), style="bold", soft_wrap=True)
        console.print(table)


def _decoder(run: RunDir) -> Callable[[list[int]], str]:
    from tokenizers import Tokenizer  # a fraction of a second to import, where transformers takes seconds

    tokenizer = Tokenizer.from_file(str(run.base_model / "tokenizer.json"))
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True))


def _submissions(run: RunDir, step: int) -> list[Submission]:
    found = []
    for path in sorted((run.path / "rollouts" / f"step-{step:06d}").glob("*.parquet")):
        try:
            lease = Lease.from_json(path.with_suffix(".lease.json").read_bytes())
            found.append(read_rollouts(path, lease, limits_of(run.config, ANY_TOKEN)))
        except (OSError, RolloutError):
            continue  # refused files are named by shoal status; here they would only be in the way
    return found


def _spread(group: list[Rollout]) -> float:
    rewards = [sample.reward for sample in group if sample.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    return sum((reward - mean) ** 2 for reward in rewards)
