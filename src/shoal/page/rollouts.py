"""Page "rollouts": what was asked and answered in a step, what it earned, and how sure the policy was.

Files are strangers': they are decoded in a process of their own with little memory and time (`parquet_reader`), and
what comes out is text and numbers. Only accepted files are read.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

import numpy as np
from sqlalchemy import Connection

from shoal.coordinator.archive import Kept, kept_files, kept_steps
from shoal.errors import RolloutError, UnreadError
from shoal.page.privacy import public_text
from shoal.page.series import finite, histogram, is_in_bin, short
from shoal.page.source import RunFiles
from shoal.page.tokens import Decoder, decoder_of
from shoal.protocol.parquet_reader import READER
from shoal.protocol.rollout import SCHEMA, Logprobs, Rollout, read_parts
from shoal.protocol.rollout_rules import rollouts_as_written
from shoal.protocol.turns import drawn_places
from shoal.rollout_size import sample_room
from shoal.rundir import RunDir

PER_PAGE = 24
UNVERIFIED = "unverified: what the environment said and what it gave is the worker's word"
MAX_FILES = 256
"""Of one step; the rest is counted and said to be left out."""
MAX_CHARACTERS = 4000
MAX_DECODED = 8192
"""Tokens that are decoded where only the beginning of an answer is shown."""
MAX_WHOLE = 4 << 20
MAX_STRIP = 2048
BINS = 24
SMOOTH = 8
"""Tokens over which surprise is averaged: its expectation is the entropy."""
STEPS_SHOWN = 200
INDEXED = 4
"""Steps whose index is kept."""


@dataclass(frozen=True, slots=True)
class GroupIndex:
    """The answers to one prompt, without their text."""

    submission: int
    group: int
    node: str
    version: int
    source: str
    task: int
    rewards: tuple[float | None, ...]
    lengths: tuple[int, ...]

    @property
    def spread(self) -> float:
        """How far apart the rewards are: what the policy learns from."""
        rewards = [reward for reward in self.rewards if reward is not None]
        mean = fmean(rewards) if rewards else 0.0
        return sum((reward - mean) ** 2 for reward in rewards)


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Which groups are listed. Bounds are those of a bar of a histogram."""

    step: int | None = None
    source: str = ""
    task: int | None = None
    node: str = ""
    reward_from: float = -math.inf
    reward_to: float = math.inf
    tokens_from: float = 0
    tokens_to: float = math.inf
    page: int = 0


class StepIndex:
    """Indexes of the steps that were looked at last; a step's index is made again when files were added to it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[tuple[int, ...], list[GroupIndex]]] = OrderedDict()

    def of(self, run: RunDir, step: int, files: Sequence[Kept]) -> list[GroupIndex]:
        numbers = tuple(kept.lease.submission for kept in files)
        before, groups = self._kept.pop(step, ((), []))
        if before != numbers:
            new = [kept for kept in files if kept.lease.submission not in set(before)]
            still = [group for group in groups if group.submission in set(numbers)]
            groups = still + [group for kept in new for group in _index(run, kept)]
        self._kept[step] = numbers, groups
        while len(self._kept) > INDEXED:
            self._kept.popitem(last=False)
        return groups


def rollouts_document(db: Connection, files: RunFiles, index: StepIndex, query: RolloutQuery) -> dict[str, object]:
    """Histograms over the whole step, and one page of groups that fit the query, most telling first."""
    assert files.run is not None
    steps = kept_steps(db)
    if not steps:
        return {"steps": [], "step": None}
    chosen = query.step if query.step in steps else None
    kept = [one for one in kept_files(db, files.run, steps[-1] if chosen is None else chosen) if one.accept]
    if chosen is None:  # the newest step that has something to show
        for chosen in reversed(steps[-8:]):
            kept = [one for one in kept_files(db, files.run, chosen) if one.accept]
            if kept:
                break
    assert chosen is not None
    groups = index.of(files.run, chosen, kept[:MAX_FILES])
    pool = [group for group in groups if _fits_group(group, query)]
    rewards = [reward for group in pool for reward in group.rewards if reward is not None]
    lengths = [float(length) for group in pool for length in group.lengths]
    highest = max(rewards, default=-math.inf), max(lengths, default=-math.inf)
    shown = sorted((group for group in pool if _fits_samples(group, query, *highest)), key=lambda group: -group.spread)
    page = min(query.page, max(0, -(-len(shown) // PER_PAGE) - 1))
    return {
        "steps": steps_near(steps, chosen),
        "step": chosen,
        "gone": query.step if query.step != chosen else None,
        "left_out": max(0, len(kept) - MAX_FILES),
        "files": min(len(kept), MAX_FILES),
        "samples": sum(len(group.lengths) for group in groups),
        "sources": sorted({group.source for group in groups})[:50],
        "nodes": sorted({group.node for group in groups})[:200],
        "rewards": _bins(rewards),
        "lengths": _bins(lengths),
        "mean_reward": short(fmean(rewards)) if rewards else None,
        "mean_tokens": short(fmean(lengths)) if lengths else None,
        "found": len(shown),
        "page": page,
        "per_page": PER_PAGE,
        "groups": [_row(group, files.run) for group in shown[page * PER_PAGE : (page + 1) * PER_PAGE]],
    }


def steps_near(steps: Sequence[int], chosen: int) -> list[int]:
    """The newest steps and those about the chosen one, so that every step can be reached from every other."""
    at, half = steps.index(chosen), STEPS_SHOWN // 2
    return sorted({*steps[max(0, at - half) : at + half], *steps[-half:]})


def group_document(db: Connection, files: RunFiles, step: int, submission: int, group: int) -> dict[str, object] | None:
    """The answers to one prompt side by side; None if they are not (or no longer) there."""
    found = _group(db, files, step, submission, group)
    if found is None:
        return None
    kept, samples = found
    assert files.run is not None
    decoder = decoder_of(files.run.base_model)
    return {
        "step": step,
        "submission": submission,
        "group": group,
        "node": kept.lease.node,
        "version": kept.lease.version,
        "source": _marked(samples[0].source, files.run, UNVERIFIED),
        "task": samples[0].task,
        "prompt": decoder.text(samples[0].prompt.tolist())[:20_000],
        "samples": [sample_document(sample, decoder, tokens=True) for sample in samples[:64]],
    }


def answer_text(
    db: Connection, files: RunFiles, step: int, submission: int, group: int, sample: int
) -> dict[str, object] | None:
    """One answer in full, up to 4 MiB of text."""
    found = _group(db, files, step, submission, group)
    if found is None or not 0 <= sample < len(found[1]):
        return None
    assert files.run is not None
    return {"text": decoder_of(files.run.base_model).text(found[1][sample].completion.tolist())[:MAX_WHOLE]}


def sample_document(sample: Rollout, decoder: Decoder, *, tokens: bool = False) -> dict[str, object]:
    """A sample as text and numbers; with its tokens and their log-probs if asked for."""
    ids = sample.completion[:MAX_DECODED].tolist()
    text = decoder.text(ids)
    drawn = np.nan_to_num(sample.logprobs[:MAX_DECODED], nan=0.0, neginf=-99.0, posinf=0.0)
    logprobs = _beside_tokens(sample, drawn)[:MAX_STRIP]
    document: dict[str, object] = {
        "sample": sample.sample,
        "reward": None if sample.reward is None else finite(sample.reward),
        "advantage": finite(sample.advantage),
        "parts": {public_text(name): short(value) for name, value in list(_parts(sample).items())[:12]},
        "tokens": len(sample.completion),
        "finish": sample.finish,
        "error": public_text(sample.error),
        "text": text[:MAX_CHARACTERS],
        "is_cut": len(text) > MAX_CHARACTERS or len(sample.completion) > MAX_DECODED,
        "mean_logprob": short(float(drawn[:MAX_STRIP].mean())) if len(drawn) else None,
    }
    if tokens:
        document["logprobs"] = [round(float(value), 2) for value in logprobs]
        document["entropy"] = [round(value, 2) for value in running_mean(-logprobs)]
        document["ids"] = ids[:MAX_STRIP]
        document["pieces"] = decoder.pieces(ids[:MAX_STRIP])
    return document


def _beside_tokens(sample: Rollout, drawn: Logprobs) -> Logprobs:
    """A log-prob for each token: 0 for those that an environment inserted, which nobody drew."""
    if not len(sample.runs):
        return drawn
    spread = np.zeros(len(sample.completion), np.float32)
    places = drawn_places(sample.runs, len(sample.completion))[: len(drawn)]
    spread[places] = drawn[: len(places)]
    return spread


def running_mean(values: "np.ndarray[tuple[int], np.dtype[np.float32]]", window: int = SMOOTH) -> list[float]:
    """Each value averaged with those about it."""
    if len(values) == 0:
        return []
    sums = np.cumsum(np.concatenate(([0.0], values.astype(np.float64))))
    starts = np.maximum(np.arange(len(values)) - window // 2, 0)
    ends = np.minimum(np.arange(len(values)) + window // 2 + 1, len(values))
    return [float(value) for value in (sums[ends] - sums[starts]) / (ends - starts)]


def _parts(sample: Rollout) -> dict[str, float]:
    """Those that are numbers: a file may say NaN, which is not JSON and which no browser reads."""
    try:
        found = read_parts(sample.parts)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _group(
    db: Connection, files: RunFiles, step: int, submission: int, group: int
) -> tuple[Kept, list[Rollout]] | None:
    assert files.run is not None
    kept = next(
        (one for one in kept_files(db, files.run, step) if one.accept and one.lease.submission == submission), None
    )
    if kept is None:
        return None
    samples = [sample for sample in _read(files.run, kept) if sample.group == group]
    return (kept, samples) if samples else None


def _read(run: RunDir, kept: Kept) -> list[Rollout]:
    """An accepted file's samples. Nothing is judged here: a validator did that."""
    sampling = run.config.sampling
    room = kept.lease.groups * sampling.group_size
    room *= sample_room(sampling.max_prompt_tokens, sampling.max_new_tokens, run.config.max_turns)
    try:
        table = READER.read(kept.path, room)
        if not table.schema.remove_metadata().equals(SCHEMA.remove_metadata()):
            return []
        return rollouts_as_written(kept.path.name, table)
    except (OSError, RolloutError, UnreadError):
        return []


def _index(run: RunDir, kept: Kept) -> Iterable[GroupIndex]:
    for number, samples in groupby(_read(run, kept), key=lambda sample: sample.group):
        group = list(samples)
        yield GroupIndex(
            kept.lease.submission,
            number,
            kept.lease.node,
            kept.lease.version,
            public_text(group[0].source),
            group[0].task,
            tuple(None if sample.reward is None else finite(sample.reward) for sample in group),
            tuple(len(sample.completion) for sample in group),
        )


def _fits_group(group: GroupIndex, query: RolloutQuery) -> bool:
    return (
        (not query.source or group.source == query.source)
        and (query.task is None or group.task == query.task)
        and (not query.node or group.node == query.node)
    )


def _fits_samples(group: GroupIndex, query: RolloutQuery, best: float, longest: float) -> bool:
    """Whether a sample is in both bars, as the histograms count."""
    rewards = [-math.inf if reward is None else reward for reward in group.rewards]
    return any(
        is_in_bin(reward, query.reward_from, query.reward_to, best)
        and is_in_bin(length, query.tokens_from, query.tokens_to, longest)
        for reward, length in zip(rewards, group.lengths, strict=True)
    )


def _marked(source: str, run: RunDir, mark: str = "unverified") -> str:
    """A source's name, with a mark where nobody plays its episodes again."""
    shown = public_text(source)
    return f"{shown}, {mark}" if source in run.config.unverified else shown


def _row(group: GroupIndex, run: RunDir) -> dict[str, object]:
    rewards = [reward for reward in group.rewards if reward is not None]
    return {
        "submission": group.submission,
        "group": group.group,
        "node": group.node,
        "version": group.version,
        "source": _marked(group.source, run),
        "task": group.task,
        "mean": short(fmean(rewards)) if rewards else None,
        "rewards": list(group.rewards[:64]),
        "lengths": [min(group.lengths), max(group.lengths)],
    }


def _bins(values: Sequence[float]) -> list[list[float]]:
    return [[low, high, count] for low, high, count in histogram(values, BINS)]
