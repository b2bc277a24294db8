"""Tables that the live view and `shoal status` share: pure functions from values to rich renderables."""

from collections.abc import Sequence
from itertools import pairwise

from rich.table import Table
from rich.text import Text

from shoal.telemetry.metrics import Entry, number
from shoal.telemetry.status import RoleStatus, seconds
from shoal.text import one_line
from shoal.watch.history import History

BARS = "▁▂▃▄▅▆▇█"
NONE = "–"
# Columns that the numbers take side by side, and the roles with all their columns.
THREE_ACROSS, TWO_ACROSS = 104, 72
ALL_COLUMNS = 72
NUMBERS = 18
SOURCES = 12
SIGNS = 8
DOING = 2
STATE_STYLES = {
    "starting": "dim",
    "working": "green",
    "waiting": "yellow",
    "done": "blue",
    "stopped": "blue",
    "failed": "bold red",
    "dead": "bold red",
    "unreadable": "red",
}


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as a row of bars from their lowest to their highest; longer series are averaged into `width` bars."""
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)] if count else []
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def clock(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    minutes, rest = divmod(int(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def figure(entry: Entry, key: str, spec: str = ".3f") -> str:
    value = number(entry, key)
    return NONE if value is None else format(value, spec)


def duration(entry: Entry, key: str) -> str:
    value = number(entry, key)
    return NONE if value is None else seconds(value)


def interval(entry: Entry) -> str:
    """The 95 % interval of an evaluation, or nothing if it was not given."""
    low, high = number(entry, "low"), number(entry, "high")
    return "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"


def held_out(history: History) -> str:
    """Base -> latest pass@1."""
    base, latest = history.evals.get(0, {}), history.last_eval
    if latest is base or not latest:
        return figure(base, "pass_at_1")
    return f"{figure(base, 'pass_at_1')} → {figure(latest, 'pass_at_1')}"


def latest(history: History) -> list[tuple[str, str]]:
    """The numbers of the latest step and evaluation by name, as terminals and pages show them."""
    step, took = history.last_step, history.last_latency
    return [
        ("reward", figure(step, "reward")),
        ("solve rate", figure(step, "solve_rate")),
        ("held-out pass@1", held_out(history)),
        ("length", f"{figure(step, 'completion_tokens_mean', '.1f')} tokens"),
        ("entropy", figure(step, "entropy")),
        ("gradient norm", figure(step, "grad_norm", ".3g")),
        ("clip low / high", f"{figure(step, 'clip_low', '.2%')} / {figure(step, 'clip_high', '.2%')}"),
        ("KL to base", figure(step, "kl", ".3g")),
        ("drift / mismatch", f"{figure(step, 'drift', '.2g')} / {figure(step, 'mismatch', '.2g')}"),
        ("staleness", f"{figure(step, 'staleness_mean', '.2f')}, at most {figure(step, 'staleness_max', '.0f')}"),
        ("trained", f"{figure(step, 'tokens_per_s', ',.0f')} tokens/s"),
        (
            "all right / wrong",
            f"{figure(step, 'groups_all_right', '.0%')} / {figure(step, 'groups_all_wrong', '.0%')}",
        ),
        ("mismatch KL", figure(step, "mismatch_kl", ".2g")),
        ("per device", f"{figure(step, 'tokens_per_s_per_device', ',.0f')} tokens/s, MFU {figure(step, 'mfu', '.0%')}"),
        ("to rollout / batch", f"{duration(took, 'first_rollout_s')} / {duration(took, 'full_batch_s')}"),
        ("warning signs", signs(step)),
        ("generate : train", _ratio(history)),
        ("verdict p50 / p95", f"{duration(took, 'verdict_p50_s')} / {duration(took, 'verdict_p95_s')}"),
    ]


def _ratio(history: History) -> str:
    """FLOPs of generation per FLOP of training, over the whole run."""
    found = history.compute.total.ratio
    return NONE if found is None else f"{_least(history)}{found:.2f} FLOP per FLOP"


def _least(history: History) -> str:
    """Before a figure of generation: files that only others judge are counted if they are trained on, not otherwise."""
    return "at least " if history.compute.is_partial else ""


def computed(history: History) -> list[tuple[str, str]]:
    """The compute ledger in words: FLOPs of each part, how fast it was and for how much of the time, and bytes sent."""
    total = history.compute.total
    if not total.train:
        return []
    rows = [
        ("training", "train", "1", 1, ""),
        ("generation", "generate", f"{total.generate / total.train:.2f}", history.workers, _least(history)),
        ("validation", "validate", f"{total.validate / total.train:.2f}", len(history.judges), ""),
    ]
    found = [
        (name, f"{least}{getattr(total, part):.3g} FLOP, {share} x training{_at_work(history, part, roles)}")
        for name, part, share, roles, least in rows
    ]
    done = max(1, history.steps_done)
    return [
        *found,
        ("broadcast", f"{_bytes(total.broadcast)} sent, {_bytes(total.broadcast / done)} per step"),
        ("uploads", f"{_bytes(total.uploaded)} judged, {_bytes(total.uploaded / done)} per step"),
    ]


def _at_work(history: History, part: str, roles: int) -> str:
    """How fast a part was while it worked, and the share of the run's time that its roles worked for."""
    total, wall_s = history.compute.total, history.wall_s
    rate = total.rate(part)
    if rate is None:
        return ""
    said = f", {rate / 1e9:.3g} GFLOP/s while at it"
    return f"{said} ({getattr(total, f'{part}_s') / wall_s / roles:.0%} of the time)" if wall_s and roles else said


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def signs(step: Entry) -> str:
    """Warning signs that the step shows, by name."""
    found = step.get("signs")
    if not isinstance(found, list):
        return NONE
    return ", ".join(one_line(str(sign)) for sign in found[:SIGNS]) or "none"


def numbers(history: History, width: int, rows: int | None = None) -> Table:
    """The latest numbers, up to three to a row; the first rows if not all have room."""
    cells = latest(history)
    table = Table.grid(padding=(0, 2, 0, 0))
    across = numbers_across(width)
    for row in range(0, len(cells), across)[:rows]:
        pairs = [(Text(name, "dim"), Text(value, "bold")) for name, value in cells[row : row + across]]
        table.add_row(*(_on_one_line(part) for pair in pairs for part in pair))
    return table


def drawn(step: Entry) -> list[tuple[str, str]]:
    """Of each source that a sampler weighs: how often it is asked, and how often it is solved."""
    found = step.get("sampler")
    said = "{} of those asked, solved {}, weight {}"
    weighed = [(name, one) for name, one in found.items() if isinstance(one, dict)] if isinstance(found, dict) else []
    return [
        (
            f"tasks of {one_line(name)}",
            said.format(figure(one, "share", ".0%"), figure(one, "rate"), figure(one, "weight")),
        )
        for name, one in weighed[:SOURCES]
    ]


def numbers_across(width: int) -> int:
    return 3 if width >= THREE_ACROSS else 2 if width >= TWO_ACROSS else 1


def _on_one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def curves(history: History, width: int, rows: int = 2) -> Table:
    """Reward and held-out pass@1 as sparklines with their first and last values."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for label, values, style in (
        ("reward", history.rewards(), "cyan"),
        ("held-out pass@1", history.passes(), "green"),
    )[:rows]:
        ends = f"{values[0]:.3f} → {values[-1]:.3f}" if values else NONE
        table.add_row(Text(label, "dim"), Text(sparkline(values, width), style, no_wrap=True), Text(ends, no_wrap=True))
    return table


def roles(statuses: Sequence[RoleStatus], history: History, width: int | None = None) -> Table:
    """A row a role: what it does, whom it waits on, how fast it was and how much it waited when it last said so.

    With a width each role has one line, and where there is little room the figures are left out.
    """
    rows = [_role(status, history) for status in statuses]
    heads = [Text(head) for head in ("role", "state", "doing", "waits on", "tokens/s", "waiting")]
    if width is not None:
        if width < ALL_COLUMNS:
            heads, rows = heads[:4], [row[:4] for row in rows]
        others = [[row[column] for row in (heads, *rows)] for column in range(len(heads)) if column != DOING]
        room = width - sum(max(cell.cell_len for cell in column) + 2 for column in others) - 2
        for row in rows:
            row[DOING].truncate(max(room, 1), overflow="ellipsis")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column, head in enumerate(heads):
        wraps = width is None and head.plain in ("doing", "waits on")
        table.add_column(head, no_wrap=not wraps, justify="right" if column > 3 else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _role(status: RoleStatus, history: History) -> list[Text]:
    entry = history.last_step if status.role == "trainer" else history.submissions.get(status.role, {})
    return [
        Text(one_line(status.role)),
        Text(status.state, STATE_STYLES[status.state]),
        Text(one_line(status.doing)),
        Text(one_line(status.on)),
        Text(figure(entry, "tokens_per_s", ",.0f")),
        Text(figure(entry, "wait_share", ".0%")),
    ]
