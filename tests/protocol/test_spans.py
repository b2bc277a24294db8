"""A file may name the versions that its answers went on with: newer ones, in order, at few places, in runs that allow
it."""

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shoal.crypto.keys import Key
from shoal.errors import RolloutError
from shoal.protocol.lease import Lease
from shoal.protocol.rollout import logprobs_of, tokens_of
from shoal.protocol.rollout_rules import Limits
from shoal.protocol.spans import SPANS, Span, SpanLease, span_tokens
from shoal.protocol.submission import Submission, groups_with_signal, read_rollouts, write_rollouts
from tests.support.submissions import ROOT, make_lease, make_submission

LONG = Limits(group_size=4, vocab=260, max_prompt_tokens=16, max_new_tokens=100, span_tokens=32)
OTHER = "cd" * 32
LEASE = make_lease(version=3, step=5)
KEY, STRANGER = Key.create(), Key.create()


def span(first: int, version: int, root: str = ROOT) -> SpanLease:
    return SpanLease(first, version, root, beacon=11 * abs(first)).signed(LEASE, KEY)


def long_submission(later: Sequence[SpanLease], tokens: int = 80) -> Submission:
    made = make_submission(LEASE)
    ids, logps = tokens_of([5] * (tokens - 1) + [1]), logprobs_of([-1.0] * tokens)
    rollouts = [replace(rollout, completion=ids, logprobs=logps) for rollout in made.rollouts]
    return replace(made, rollouts=rollouts, later=tuple(later))


def read(submission: Submission, path: Path, limits: Limits = LONG, lease: Lease = LEASE) -> Submission:
    file = path / "0000.parquet"
    file.write_bytes(write_rollouts(submission, groups_with_signal(submission)))
    return read_rollouts(file, lease, limits)


def test_the_versions_of_a_file_are_read_as_they_were_written(tmp_path: Path) -> None:
    later = (span(32, 4, OTHER), span(64, 5))
    found = read(long_submission(later), tmp_path)
    assert found.later == later
    assert found.spans == [Span(3, ROOT, 0, 32), Span(4, OTHER, 32, 64), Span(5, ROOT, 64, None)]
    same = read(long_submission([span(32, 3), span(64, 4, OTHER)]), tmp_path)
    assert same.spans == [Span(3, ROOT, 0, 64), Span(4, OTHER, 64, None)]


@pytest.mark.parametrize(
    ("later", "said"),
    [
        ([(32, 2), (64, 3)], "version 2 follows version 3; no older one may"),
        ([(32, 5), (64, 4)], "version 4 follows version 5; no older one may"),
        ([(32, 3), (64, 6)], "goes on with version 6; for step 5 versions 3..5 are allowed"),
        ([(0, 4), (32, 4)], "span 1 begins at token 0; spans have 32 tokens, and answers at most 100"),
        ([(-32, 4), (64, 4)], "span 1 begins at token -32; spans have 32 tokens"),
        ([(32, 4), (32, 5)], "span 2 begins at token 32; spans have 32 tokens"),
        ([(64, 4), (32, 5)], "span 1 begins at token 64; spans have 32 tokens"),
        ([(33, 4), (64, 4)], "span 1 begins at token 33; spans have 32 tokens"),
        (
            [(32, 4), (64, 4), (96, 4), (128, 4)],
            "span 4 begins at token 128; spans have 32 tokens",
        ),
        ([(32, 4), (64, 4), (96, 4)], "names 3 spans after the first, and its longest answer, of 80 tokens, has 2"),
        ([(32, 4)], "names 1 spans after the first, and its longest answer, of 80 tokens, has 2"),
        ([], "names 0 spans after the first, and its longest answer, of 80 tokens, has 2"),
    ],
)
def test_what_no_worker_may_do_is_refused_by_name(later: list[tuple[int, int]], said: str, tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match=re.escape(said)):
        read(long_submission([span(*one) for one in later]), tmp_path)


def test_a_span_lease_is_what_its_coordinator_signed_for_that_lease() -> None:
    given = span(32, 4)
    given.check(LEASE, KEY.address)
    lies = [
        replace(given, first=64),
        replace(given, version=5),
        replace(given, weights=OTHER),
        replace(given, beacon=5),
        replace(given, signature=""),
        SpanLease(32, 4, ROOT, 352).signed(LEASE, STRANGER),
    ]
    for false in lies:
        with pytest.raises(RolloutError, match="the lease of its span from token"):
            false.check(LEASE, KEY.address)
    with pytest.raises(RolloutError, match="not by"):
        given.check(replace(LEASE, submission=1), KEY.address)


def test_every_span_has_noise_of_its_own() -> None:
    leases = [LEASE, replace(LEASE, submission=1)]
    seeds = {span(first, 4).seed(lease) for first in (32, 64) for lease in leases}
    seeds |= {SpanLease(32, 4, ROOT, beacon).seed(LEASE) for beacon in range(3)}
    assert len(seeds | {lease.seed for lease in leases}) == 4 + 3 + 2
    assert span(32, 4).seed(LEASE) == span(32, 5, OTHER).seed(LEASE), "the version does not change the noise"


def test_in_a_run_without_in_flight_a_file_keeps_the_version_of_its_lease(tmp_path: Path) -> None:
    with pytest.raises(
        RolloutError, match=r"go on with version 4, and workers.in_flight is false: they keep version 3"
    ):
        read(long_submission([span(32, 4)]), tmp_path, replace(LONG, span_tokens=0))


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{}",
        b"7",
        b"[7]",
        b"[[32, 4]]",
        b'[[32, 4, "ab", 1]]',
        b'[[32.0, 4, "%s", 1]]' % ROOT.encode(),
        b'[[32, 4, "%s", -1]]' % ROOT.encode(),
        b'[[32, 4, "%s", 1, 7]]' % ROOT.encode(),
        b"[" * 9000,
    ],
)
def test_swaps_that_are_not_a_list_of_such_are_refused(said: bytes, tmp_path: Path) -> None:
    file = tmp_path / "0000.parquet"
    table = pq.read_table(io.BytesIO(write_rollouts(long_submission([]), 2)))
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"shoal.spans": said}), file)
    with pytest.raises(RolloutError, match=r"are not a list of \[FIRST, VERSION, ROOT, BEACON, SIGNATURE\]"):
        read_rollouts(file, LEASE, LONG)


@pytest.mark.parametrize("longest", [33, 70, 512, 513, 4096, 32768, 100_000])
def test_there_are_few_spans_and_each_ends_with_a_chunk(longest: int) -> None:
    every = span_tokens(longest)
    assert every % 32 == 0
    assert 2 <= len(range(0, longest, every)) <= SPANS
