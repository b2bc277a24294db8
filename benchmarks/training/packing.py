"""Section `pack` of the benchmark `sharding`: files of 4 M tokens read, checked, sorted and packed, against the same
with tokens as Python lists.

Both sides read the same Parquet files through the isolated reader and end with all tensors of the micro-batches. What
attention adds to each, the layout, is the same for both and left out. Each side runs in a process of its own, some
times over: `pack_vs_lists` compares the least CPU time of the two, the reader's included, and `pack_heap_gb` is how far
the process's peak resident memory is above what it had before, in the first round.
"""

import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.cpu_usage import cpu_below
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Op
from shoal.protocol.lease import Lease
from shoal.protocol.parquet_reader import READER
from shoal.protocol.rollout import bare_rollout
from shoal.protocol.rollout_rules import Limits
from shoal.protocol.submission import Submission, groups_with_signal, read_rollouts, write_rollouts
from shoal.rl.advantages import group_advantages
from shoal.rl.bin_packing import first_fit_decreasing
from shoal.rollout_size import proof_room, sample_room
from shoal.train.batch import pack, sort_groups

PROMPT, ANSWER, GROUP, GROUPS_A_FILE, FILES = 512, 8192, 16, 8, 4
VOCAB = 151_936
TIMES = 3
Batches = list[tuple[Tensor, ...]]
"""The tensors of each micro-batch, its tokens first."""


@dataclass(frozen=True, slots=True)
class Size:
    """A step: so many files of groups of GROUP answers of up to so many tokens."""

    answer: int
    files: int

    @property
    def limits(self) -> Limits:
        return Limits(GROUP, VOCAB, PROMPT, self.answer)

    @property
    def budget(self) -> int:
        return 4 * (PROMPT + self.answer)


def bench_packing(quick: bool, progress: Progress) -> BenchResult:
    size = Size(256, 1) if quick else Size(ANSWER, FILES)
    with tempfile.TemporaryDirectory(prefix="shoal-pack-") as scratch:
        progress.stage("packing: writing a step's files")
        tokens = write_step(Path(scratch), size)
        found = {}
        for side in SIDES:
            progress.stage(f"packing: {side}")
            found[side] = measure_side(side, Path(scratch), size.answer) if quick else _measure(side, scratch, size)
    ours, lists = found["arrays"], found["lists"]
    if ours["sum"] != lists["sum"]:
        raise AssertionError(f"the two sides packed other tokens: {ours['sum']} and {lists['sum']}")
    values = {
        "pack_tokens": tokens,
        "pack_cpu_s": ours["cpu_s"],
        "pack_lists_cpu_s": lists["cpu_s"],
        "pack_heap_gb": ours["heap_gb"],
        "pack_lists_heap_gb": lists["heap_gb"],
    }
    ratios = {"pack_vs_lists": lists["cpu_s"] / ours["cpu_s"]}
    bars: dict[str, tuple[Op, float]] = {"pack_vs_lists": (">=", 5.0), "pack_heap_gb": ("<=", 0.3)}
    return BenchResult("packing", ratios, values, {} if quick else bars)


def _measure(side: str, folder: str, size: Size) -> dict[str, float]:
    """What `measure_side` finds in a new process, whose memory nothing else has filled before."""
    command = [sys.executable, "-m", "benchmarks.training.packing", side, folder, str(size.answer)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def lease_of(number: int) -> Lease:
    return Lease("bench", "worker", 0, number, 0, GROUPS_A_FILE, 7, 2e9)


def write_step(folder: Path, size: Size) -> int:
    """Files of random answers, which compress as little as real log-probs and proofs do; their tokens in all."""
    rng = np.random.default_rng(0)
    total = 0
    for number in range(size.files):
        rollouts = []
        for group in range(GROUPS_A_FILE):
            prompt = rng.integers(0, VOCAB, PROMPT, np.int32)
            for sample in range(GROUP):
                length = size.answer - int(rng.integers(0, size.answer // 16))
                total += length
                drawn = bare_rollout([], [], proof=rng.bytes(proof_room(length)))
                rollouts.append(
                    replace(
                        drawn,
                        group=group,
                        sample=sample,
                        prompt=prompt,
                        completion=rng.integers(0, VOCAB, length, np.int32),
                        logprobs=-rng.exponential(0.5, length).astype(np.float32),
                        reward=float(sample % 2),
                    )
                )
        submission = Submission(lease_of(number), 0, "", rollouts)
        data = write_rollouts(submission, groups_with_signal(submission))
        (folder / f"{number:04d}.parquet").write_bytes(data)
    return total


def pack_arrays(paths: Sequence[Path], size: Size) -> Batches:
    submissions = [read_rollouts(path, lease_of(n), size.limits) for n, path in enumerate(paths)]
    groups = sort_groups(submissions, normalise=True).signal
    return [tuple(vars(batch).values()) for batch in pack(groups, size.budget)]


def pack_lists(paths: Sequence[Path], size: Size) -> Batches:
    """The same with a list of Python numbers for every sample's tokens and log-probs."""
    limits = size.limits
    groups = []
    for path in paths:
        READER.read(path, None)
        room = GROUPS_A_FILE * GROUP * sample_room(limits.max_prompt_tokens, limits.max_new_tokens)
        rows = READER.read(path, room).to_pylist()
        for row in rows:
            for ids, most in ((row["prompt"], PROMPT), (row["completion"], size.answer)):
                assert 1 <= len(ids) <= most
                assert not [i for i in ids if i is None or not 0 <= i < VOCAB]
            assert not [p for p in row["logprobs"] if p is None or not -1e4 <= p <= 1e-4]
        for begin in range(0, len(rows), GROUP):
            samples = rows[begin : begin + GROUP]
            assert all(sample["prompt"] == samples[0]["prompt"] for sample in samples)
            rewards_1S = torch.tensor([[sample["reward"] for sample in samples]])
            groups.append((samples, group_advantages(rewards_1S)[0].tolist()))
    pieces = [piece for group in groups for piece in _list_pieces(*group, size.budget)]
    sizes = [PROMPT + sum(len(s["completion"]) - 1 for s in samples) for samples, _ in pieces]
    return [_list_batch([pieces[i] for i in bin_]) for bin_ in first_fit_decreasing(sizes, size.budget)]


def _list_pieces(samples: list[Any], advantages: list[float], budget: int) -> Iterable[tuple[list[Any], list[float]]]:
    first, used = 0, PROMPT
    for number, sample in enumerate(samples):
        cost = len(sample["completion"]) - 1
        if used + cost > budget and number > first:
            yield samples[first:number], advantages[first:number]
            first, used = number, PROMPT
        used += cost
    yield samples[first:], advantages[first:]


def _list_batch(pieces: Sequence[tuple[list[Any], list[float]]]) -> tuple[Tensor, ...]:
    ids: list[int] = []
    source = []
    for samples, _ in pieces:
        ids += samples[0]["prompt"]
        prompt_end = len(ids) - 1
        for sample in samples:
            start = len(ids)
            ids += sample["completion"][:-1]
            source.append(torch.cat([torch.tensor([prompt_end]), torch.arange(start, len(ids))]))
    flat = [(s, a) for samples, advantages in pieces for s, a in zip(samples, advantages, strict=True)]
    lengths = torch.tensor([len(s["completion"]) for s, _ in flat])
    return (
        torch.tensor([ids]),
        torch.cat(source),
        torch.tensor([token for s, _ in flat for token in s["completion"]]),
        torch.arange(len(flat)).repeat_interleave(lengths),
        torch.tensor([a for _, a in flat]).repeat_interleave(lengths),
        torch.tensor([p for s, _ in flat for p in s["logprobs"]]),
        torch.zeros(len(flat), dtype=torch.long).repeat_interleave(lengths),
        torch.zeros(len(flat), dtype=torch.long).repeat_interleave(lengths),
    )


SIDES: dict[str, Callable[[Sequence[Path], Size], Batches]] = {
    "arrays": pack_arrays,
    "lists": pack_lists,
}


def measure_side(side: str, folder: Path, answer: int) -> dict[str, float]:
    """The least CPU time of some rounds, and how far memory grew in the first."""
    paths = sorted(folder.glob("*.parquet"))
    size = Size(answer, len(paths))
    READER.read(paths[0], None)  # starts the reader
    spent, heap, total = [], 0.0, 0
    for round_ in range(TIMES):
        gc.collect()
        before = _memory("VmRSS")
        began = time.process_time() + cpu_below()
        batches = SIDES[side](paths, size)
        spent.append(time.process_time() + cpu_below() - began)
        heap = heap if round_ else (_memory("VmHWM") - before) / 1e9
        total = sum(int(ids_1T.sum()) for ids_1T, *_ in batches)
        del batches
    return {"cpu_s": min(spent), "heap_gb": heap, "sum": total}


def _memory(what: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) << 10


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure_side(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))  # noqa: T201
