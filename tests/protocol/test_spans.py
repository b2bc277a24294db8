"""A file may name the versions that its answers went on with: newer ones, in order, at few places, in runs that allow
it."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shoal.errors import RolloutError
from shoal.protocol.lease import Lease
from shoal.protocol.rollout import logprobs_of, tokens_of
from shoal.protocol.rollout_rules import Limits
from shoal.protocol.spans import PLACES, Span, Swap, span_tokens
from shoal.protocol.submission import Submission, groups_with_signal, read_rollouts, write_rollouts
from tests.support.submissions import ROOT, make_lease, make_submission

LONG = Limits(group_size=4, vocab=260, max_prompt_tokens=16, max_new_tokens=100, span_tokens=32)
OTHER = "cd" * 32
LEASE = make_lease(version=3, step=5)


def long_submission(swaps: tuple[Swap, ...], tokens: int = 80) -> Submission:
    made = make_submission(LEASE)
    ids, logps = tokens_of([5] * (tokens - 1) + [1]), logprobs_of([-1.0] * tokens)
    rollouts = [replace(rollout, completion=ids, logprobs=logps) for rollout in made.rollouts]
    return replace(made, rollouts=rollouts, swaps=swaps)


def read(submission: Submission, path: Path, limits: Limits = LONG, lease: Lease = LEASE) -> Submission:
    file = path / "0000.parquet"
    file.write_bytes(write_rollouts(submission, groups_with_signal(submission)))
    return read_rollouts(file, lease, limits)


def test_the_versions_of_a_file_are_read_as_they_were_written(tmp_path: Path) -> None:
    swaps = (Swap(32, 4, OTHER), Swap(64, 5, ROOT))
    found = read(long_submission(swaps), tmp_path)
    assert found.swaps == swaps
    assert found.spans == [Span(3, ROOT, 0, 32), Span(4, OTHER, 32, 64), Span(5, ROOT, 64, None)]


@pytest.mark.parametrize(
    ("swaps", "said"),
    [
        ([Swap(32, 3, ROOT)], "version 3 follows version 3; only newer ones may"),
        ([Swap(32, 2, ROOT)], "version 2 follows version 3; only newer ones may"),
        ([Swap(32, 5, ROOT), Swap(64, 4, ROOT)], "version 4 follows version 5; only newer ones may"),
        ([Swap(32, 6, ROOT)], "goes on with version 6; for step 5 versions 3..5 are allowed"),
        ([Swap(0, 4, ROOT)], "version 4 begins at token 0, and version 3 at 0: each must have tokens of its own"),
        ([Swap(-32, 4, ROOT)], "version 4 begins at token -32, and version 3 at 0"),
        ([Swap(64, 4, ROOT), Swap(64, 5, ROOT)], "version 5 begins at token 64, and version 4 at 64"),
        ([Swap(64, 4, ROOT), Swap(32, 5, ROOT)], "version 5 begins at token 32, and version 4 at 64"),
        ([Swap(33, 4, ROOT)], "versions change at token 33; they may at multiples of 32 below 100"),
        ([Swap(128, 4, ROOT)], "versions change at token 128; they may at multiples of 32 below 100"),
        ([Swap(96, 4, ROOT)], "version 4 begins at token 96, and its longest answer has 80"),
    ],
)
def test_what_no_worker_may_do_is_refused_by_name(swaps: list[Swap], said: str, tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match=re.escape(said)):
        read(long_submission(tuple(swaps)), tmp_path)


def test_in_a_run_without_in_flight_a_file_keeps_the_version_of_its_lease(tmp_path: Path) -> None:
    with pytest.raises(
        RolloutError, match=r"go on with version 4, and workers.in_flight is false: they keep version 3"
    ):
        read(long_submission((Swap(32, 4, ROOT),)), tmp_path, replace(LONG, span_tokens=0))


@pytest.mark.parametrize(
    "said",
    [b"", b"{}", b"7", b"[7]", b"[[32, 4]]", b'[[32, 4, "ab"]]', b'[[32.0, 4, "%s"]]' % ROOT.encode(), b"[" * 9000],
)
def test_swaps_that_are_not_a_list_of_such_are_refused(said: bytes, tmp_path: Path) -> None:
    file = tmp_path / "0000.parquet"
    table = pq.read_table(io.BytesIO(write_rollouts(long_submission(()), 2)))
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"shoal.swaps": said}), file)
    with pytest.raises(RolloutError, match=r"are not a list of \[FIRST, VERSION, ROOT\]"):
        read_rollouts(file, LEASE, LONG)


@pytest.mark.parametrize("longest", [33, 70, 512, 513, 4096, 32768, 100_000])
def test_there_are_few_places_at_which_versions_change_and_each_ends_a_chunk(longest: int) -> None:
    every = span_tokens(longest)
    assert every % 32 == 0
    assert 1 <= len(range(every, longest, every)) <= PLACES
