"""The rollout record: what honest workers write is read back, and everything else is named and refused."""

import io
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import RolloutError, UnreadError
from shoal.protocol import parquet_reader as decode
from shoal.protocol import submission as record
from shoal.protocol.lease import Lease
from shoal.protocol.parquet_reader import READER, Reader
from shoal.protocol.rollout import RAGGED, SCHEMA, Columns, Rollout, logprobs_of, tokens_of
from shoal.protocol.rollout_rules import MAX_TEXT, Limits
from shoal.protocol.submission import Submission, groups_with_signal, read_rollouts, write_rollouts
from shoal.rollout_size import file_room, proof_room
from tests.support.submissions import LIMITS, ROOT, changed, make_lease, make_rollout, make_submission

LEASE = make_lease(deadline=2e9)
GOOD = make_submission(LEASE)
GOOD_BYTES = write_rollouts(GOOD, 2)

tokens = st.integers(0, LIMITS.vocab - 1)
float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def submissions(draw: st.DrawFn) -> Submission:
    """Any submission that keeps the rules."""
    groups, version = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rollouts = []
    for group in range(groups):
        prompt = tokens_of(draw(st.lists(tokens, min_size=1, max_size=LIMITS.max_prompt_tokens)))
        source, task = draw(st.text()), draw(st.integers(0, 2**32))
        for sample in range(LIMITS.group_size):
            completion = tokens_of(draw(st.lists(tokens, min_size=1, max_size=LIMITS.max_new_tokens)))
            size = len(completion)
            reward = draw(st.none() | st.floats(-1e6, 1e6, width=32))
            rollouts.append(
                Rollout(
                    group=group,
                    sample=sample,
                    source=source,
                    task=task,
                    prompt=prompt,
                    completion=completion,
                    logprobs=logprobs_of(draw(st.lists(st.floats(-10000, 0, width=32), min_size=size, max_size=size))),
                    finish=draw(st.sampled_from(["eos", "length"])),
                    reward=reward,
                    advantage=draw(float32),
                    error=draw(st.text(min_size=1)) if reward is None else "",
                    proof=draw(st.binary(max_size=258)),
                )
            )
    lease = make_lease(groups=groups, version=version, node=draw(st.text()), deadline=draw(st.floats(0, 1e12)))
    return Submission(lease, version, draw(st.text("0123456789abcdef", min_size=1)), rollouts)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0000.parquet"


def read(path: Path, data: bytes, limits: Limits = LIMITS) -> Submission:
    path.write_bytes(data)
    return read_rollouts(path, LEASE, limits)


def good_table() -> Any:
    return pq.read_table(io.BytesIO(GOOD_BYTES))


def with_row(number: int, change: dict[str, Any], signal: int = 2) -> bytes:
    """The good file with one sample changed, to values that no array of ours can hold as well."""
    rows = good_table().to_pylist()
    rows[number] |= change
    summary = json.dumps({"groups": 2, "signal": signal})
    return write_table(pa.Table.from_pylist(rows, SCHEMA), {b"shoal.summary": summary.encode()})


def with_footer(**footer: bytes | None) -> bytes:
    """The good file with keys of its footer changed, or removed where None is given."""
    table = good_table()
    metadata = dict(table.schema.metadata) | {f"shoal.{key}".encode(): value for key, value in footer.items()}
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({k: v for k, v in metadata.items() if v is not None}), buffer)
    return buffer.getvalue()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(submission=submissions())
def test_what_is_written_is_read_back(submission: Submission, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "0000.parquet"
    signal = groups_with_signal(submission)
    path.write_bytes(write_rollouts(submission, signal))
    assert read_rollouts(path, submission.lease, LIMITS) == submission


def test_tokens_of_a_file_are_views_of_one_buffer_and_a_group_shares_its_prompt(path: Path) -> None:
    table = good_table()
    columns = Columns.of(table)
    for name in ("prompt", "completion", "logprobs"):
        values = getattr(columns, name).values
        assert values.__array_interface__["data"][0] == table[name].chunk(0).values.buffers()[1].address
    first, second, *_, last = read(path, GOOD_BYTES).rollouts
    assert second.prompt is first.prompt is not last.prompt
    assert (first.completion.dtype.name, first.logprobs.dtype.name) == ("int32", "float32")
    assert np.shares_memory(first.completion.base, second.completion.base)
    with pytest.raises(ValueError, match="read-only"):
        first.completion[0] = 7


def test_a_file_in_several_row_groups_is_the_same_file(path: Path) -> None:
    buffer = io.BytesIO()
    pq.write_table(good_table(), buffer, row_group_size=3)
    assert read(path, buffer.getvalue()) == GOOD


def test_the_first_sample_that_breaks_a_rule_is_named_whichever_rule_it_is(path: Path) -> None:
    rows = good_table().to_pylist()
    rows[5] |= {"completion": [1, 2, 999]}
    rows[3] |= {"advantage": math.nan, "finish": "stop"}
    with pytest.raises(RolloutError, match="sample 3: finish 'stop' is neither"):
        read(path, write_table(pa.Table.from_pylist(rows, SCHEMA)))


@pytest.mark.parametrize("tokens", [1, 8, 33, 2048])
def test_the_largest_file_that_an_honest_worker_writes_is_within_the_bound(path: Path, tokens: int) -> None:
    """Noise throughout, which does not compress, and text of the widest characters."""
    rng, limits = np.random.default_rng(0), replace(LIMITS, vocab=1 << 31, max_prompt_tokens=16, max_new_tokens=tokens)
    lease = make_lease(groups=1)
    prompt = rng.integers(0, 1 << 31, 16, np.int32)
    rollouts = [
        changed(
            make_rollout(0, sample),
            prompt=prompt,
            completion=rng.integers(0, 1 << 31, tokens, np.int32),
            logprobs=-rng.exponential(1.0, tokens),
            source="\U0001f41f" * MAX_TEXT,
            proof=rng.bytes(proof_room(tokens)),
            reward=None,
            error="\U0001f420" * MAX_TEXT,
        )
        for sample in range(4)
    ]
    submission = Submission(lease, lease.version, ROOT, rollouts)
    path.write_bytes(write_rollouts(submission, 0))
    assert path.stat().st_size <= file_room(4, 16, tokens)
    assert read_rollouts(path, lease, limits) == submission


def test_a_file_is_ordinary_parquet_with_the_columns_of_the_schema(path: Path) -> None:
    path.write_bytes(GOOD_BYTES)
    table = pq.read_table(path)
    assert table.column_names == SCHEMA.names
    rows = [asdict(rollout) for rollout in GOOD.rollouts]
    assert table.to_pylist() == [row | {name: row[name].tolist() for name in RAGGED} for row in rows]
    assert json.loads(table.schema.metadata[b"shoal.lease"]) == asdict(LEASE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"group": 1}, "numbered group 1 sample 2, expected (0, 2)"),
        ({"sample": 3}, "numbered group 0 sample 3, expected (0, 2)"),
        ({"prompt": []}, "prompt of 0 tokens, allowed 1..16"),
        ({"prompt": [1] * 17}, "prompt of 17 tokens, allowed 1..16"),
        ({"prompt": [5, 6, 260]}, "prompt holds token 260, allowed 0..259"),
        ({"prompt": [5, -1, 7]}, "prompt holds token -1, allowed 0..259"),
        ({"prompt": [5, None, 7]}, "prompt holds token None, allowed 0..259"),
        ({"prompt": [5, 6, 8]}, "answers another prompt than the first sample of its group"),
        ({"task": 99}, "answers another prompt than the first sample of its group"),
        ({"source": "other"}, "answers another prompt than the first sample of its group"),
        ({"completion": [], "logprobs": []}, "completion of 0 tokens, allowed 1..8"),
        ({"completion": [1] * 9, "logprobs": [-1.0] * 9}, "completion of 9 tokens, allowed 1..8"),
        ({"completion": [1, 2, 2**31 - 1]}, "completion holds token 2147483647, allowed 0..259"),
        ({"completion": [1, None, 1]}, "completion holds token None, allowed 0..259"),
        ({"logprobs": [-1.0, -1.0]}, "2 log-probs for 3 tokens"),
        ({"logprobs": [-1.0, -1.0, 0.5]}, "log-prob 0.5 is not in -10000..0"),
        ({"logprobs": [-1.0, -1.0, -20000.0]}, "log-prob -20000.0 is not in -10000..0"),
        ({"logprobs": [-1.0, -1.0, math.nan]}, "log-prob nan is not in -10000..0"),
        ({"logprobs": [-1.0, -1.0, -math.inf]}, "log-prob -inf is not in -10000..0"),
        ({"logprobs": [-1.0, -1.0, None]}, "log-prob None is not in -10000..0"),
        ({"finish": "stop"}, 'finish \'stop\' is neither "eos" nor "length"'),
        ({"reward": math.nan}, "reward nan is not in -1000000..1000000"),
        ({"reward": math.inf}, "reward inf is not in"),
        ({"reward": -(2.0**40)}, "reward -1099511627776.0 is not in -1000000..1000000"),
        ({"reward": None}, "reward None with error ''; exactly one must be given"),
        ({"error": "broke"}, "reward 0.0 with error 'broke'; exactly one must be given"),
        ({"advantage": math.nan}, "advantage nan is not finite"),
        ({"advantage": math.inf}, "advantage inf is not finite"),
        ({"parts": "[1]"}, "parts '[1]' is not a JSON object of numbers"),
        ({"parts": '{"task": ' + "9" * 400 + "}"}, 'parts \'{"task": 999'),  # larger than any float
    ],
)
def test_a_value_out_of_bounds_is_named_with_its_sample_and_the_rule(
    path: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(RolloutError, match=re.escape(f"0000.parquet sample 2: {said}")):
        read(path, with_row(2, change))


@pytest.mark.parametrize(
    ("change", "limits"),
    [
        ({"completion": [1] * 8, "logprobs": [-1.0] * 8}, LIMITS),
        ({"completion": [259, 0, 259]}, LIMITS),
        ({"logprobs": [0.0, 5e-5, -9999.0]}, LIMITS),
        ({"reward": -1e6}, LIMITS),
        ({"finish": "length"}, LIMITS),
        ({"reward": None, "error": "broke"}, LIMITS),
        ({"proof": b""}, LIMITS),
    ],
)
def test_a_value_on_its_bound_is_accepted(path: Path, change: dict[str, Any], limits: Limits) -> None:
    submission = read(path, with_row(7, change, signal=1 if change.get("error") else 2), limits)
    for key, value in change.items():
        kept = getattr(submission.rollouts[-1], key)
        kept = kept.tolist() if isinstance(value, list) else kept
        assert kept == (pytest.approx(value) if key == "logprobs" else value)


@pytest.mark.parametrize(
    ("footer", "said"),
    [
        ({"schema": None}, "schema version None, this program reads '6'; use the same release of shoal on both sides"),
        ({"lease": None}, "not a lease"),
        ({"lease": b"\xff\xfe"}, "not a lease"),
        ({"lease": b"[" * 100_000}, "not a lease"),
        ({"lease": replace(LEASE, node="other").to_json().encode()}, "made under another lease than lease step 3"),
        ({"lease": replace(LEASE, deadline=9e9).to_json().encode()}, "made under another lease"),
        ({"version": None}, "version None is not a number"),
        ({"version": b"two"}, "version 'two' is not a number"),
        ({"version": "²".encode()}, "version '²' is not a number"),
        ({"version": b"1" * 5000}, "is not a number"),
        ({"version": b"0"}, "used version 0, it is for version 3"),
        ({"version": b"2"}, "used version 2, it is for version 3"),
        ({"version": b"4"}, "used version 4, it is for version 3"),
        ({"version": b"-2"}, "used version -2, it is for version 3"),
        ({"summary": None}, "no summary in its footer"),
        ({"summary": b'{"groups": 3, "signal": 2}'}, "claims 3 groups, the lease is for 2"),
        ({"summary": b'{"groups": 2, "signal": 3}'}, "claims 3 groups with signal out of 2"),
        ({"summary": b'{"groups": 2, "signal": -1}'}, "claims -1 groups with signal out of 2"),
        ({"summary": b'{"groups": 1e999, "signal": 1}'}, "no summary in its footer"),
    ],
)
def test_a_footer_that_breaks_a_rule_is_named(path: Path, footer: dict[str, bytes | None], said: str) -> None:
    with pytest.raises(RolloutError, match=re.escape(said)):
        read(path, with_footer(**footer))


def test_a_footer_key_that_is_no_text_is_not_a_crash(path: Path) -> None:
    table = good_table()
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"\xff\xfe": b"\xff"}), buffer)
    assert read(path, buffer.getvalue()) == GOOD


def write_table(table: pa.Table, footer: dict[bytes, bytes] | None = None) -> bytes:
    """A table under the good file's footer, or with some of that changed."""
    buffer = io.BytesIO()
    good = pq.read_schema(io.BytesIO(GOOD_BYTES)).metadata
    pq.write_table(table.replace_schema_metadata({**good, **(footer or {})}), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("how", ["missing", "extra", "renamed", "reordered", "wider", "nullable"])
def test_a_schema_that_differs_at_all_is_refused(path: Path, how: str) -> None:
    table = good_table()
    match how:
        case "missing":
            table = table.drop_columns(["reward"])
        case "extra":
            table = table.append_column("hidden", pa.array([0] * table.num_rows))
        case "renamed":
            table = table.rename_columns([f"{name}s" for name in table.column_names])
        case "reordered":
            table = table.select(table.column_names[::-1])
        case "wider":
            table = table.set_column(0, pa.field("group", pa.int64(), nullable=False), table["group"].cast(pa.int64()))
        case "nullable":
            table = table.cast(pa.schema([field.with_nullable(True) for field in table.schema]))
    with pytest.raises(RolloutError, match=r"0000\.parquet: its columns are \["):
        read(path, write_table(table))


@pytest.mark.parametrize("rows", [0, 7, 9])
def test_a_number_of_samples_other_than_the_leases_is_refused(path: Path, rows: int) -> None:
    table = good_table()
    table = pa.concat_tables([table, table]).slice(0, rows)
    with pytest.raises(RolloutError, match=f"{rows} samples, the lease is for 8"):
        read(path, write_table(table))


def test_a_file_of_another_group_size_is_refused(path: Path) -> None:
    with pytest.raises(RolloutError, match="8 samples, the lease is for 6"):
        read(path, GOOD_BYTES, replace(LIMITS, group_size=3))


def test_text_that_is_not_utf8_is_refused_without_a_crash(path: Path) -> None:
    table = good_table()
    noise = pa.array([b"\xff\xfe"] * table.num_rows, pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(noise), noise.buffers())
    table = table.set_column(2, SCHEMA.field("source"), text)
    with pytest.raises(RolloutError, match="damaged"):
        read(path, write_table(table))


def test_a_small_file_that_unfolds_to_far_more_than_samples_can_be_is_refused(path: Path) -> None:
    data = bomb(2_000_000)
    assert len(data) < 200_000
    with pytest.raises(RolloutError, match=r"unfolds to (\d+ bytes, allowed|far more)"):
        read(path, data)


def bomb(values_a_sample: int) -> bytes:
    """A good file but for prompts of so many zeros, which take next to no room in it."""
    values = pa.array(np.zeros(8 * values_a_sample, np.int32))
    prompts = pa.ListArray.from_arrays(pa.array(np.arange(9, dtype=np.int32) * values_a_sample), values)
    table = good_table()
    return write_table(table.set_column(4, SCHEMA.field("prompt"), prompts))


MEASURE = """
import resource, sys
from pathlib import Path
from shoal.errors import RolloutError
from shoal.protocol.parquet_reader import READER
from shoal.protocol.lease import Lease
from shoal.protocol.rollout_rules import Limits
from shoal.protocol.submission import read_rollouts
try:
    read_rollouts(Path(sys.argv[1]), Lease.from_json(sys.argv[2]), Limits(*map(int, sys.argv[3:])))
except RolloutError as error:
    print(error)
READER.close()
peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]  # ru_maxrss knows what forked us, too
print(int(peak) >> 10, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
def test_a_bomb_is_refused_within_little_memory(path: Path) -> None:
    path.write_bytes(bomb(8_000_000))
    assert path.stat().st_size < 50_000
    limits = [str(value) for value in astuple(LIMITS)]
    command = [sys.executable, "-c", MEASURE, str(path), LEASE.to_json(), *limits]
    said, peaks = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "unfolds to" in said
    assert all(int(peak) < 200 for peak in peaks.split()), peaks


def test_thousands_of_altered_files_end_nothing(path: Path) -> None:
    """Footer bytes above all: they say how much there is to read, and of what kind."""
    rng, refused = random.Random(0), 0
    for _ in range(3000):
        data = bytearray(GOOD_BYTES)
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(len(data) // 2 if rng.random() < 0.7 else 4, len(data) - 8)] = rng.randrange(256)
        path.write_bytes(data)
        try:
            assert_within_limits(read_rollouts(path, LEASE, LIMITS))
        except (RolloutError, UnreadError):
            refused += 1
    assert refused > 2000
    assert read(path, GOOD_BYTES) == GOOD


def test_an_honest_file_is_read_though_somebody_killed_the_reader(path: Path) -> None:
    assert read(path, GOOD_BYTES) == GOOD
    child = READER._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    assert child.code(5.0) == -signal.SIGKILL
    assert read(path, GOOD_BYTES) == GOOD


def test_a_file_that_takes_too_long_is_unread_and_nobodys_fault(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode.READER.close()  # one that runs already may answer in no time at all
    monkeypatch.setattr(decode, "READ_S", 0.0)
    with pytest.raises(UnreadError, match="could not be read here, twice: its reader ended, or took longer than 0 s"):
        read(path, GOOD_BYTES)


def test_a_file_that_needs_more_memory_than_a_reader_has_is_read_with_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = Reader._ask

    def tight(self: Reader, where: Path, most: int | None, memory: int) -> Any:
        asked.append(memory)
        return ({"unread": "it takes more memory"}, b"") if memory == 1 else ask(self, where, most, memory)

    monkeypatch.setattr(Reader, "_ask", tight)
    assert read(path, GOOD_BYTES) == GOOD
    assert asked == [1, decode.MORE_MEMORY] * 2


def test_a_file_of_another_release_is_not_for_this_one_to_judge(path: Path) -> None:
    with pytest.raises(UnreadError, match="schema version '1', this program reads '6'; use the same release"):
        read(path, with_footer(schema=b"1"))


@pytest.mark.parametrize("kind", ["pipe", "directory", "dangling link", "link"])
def test_only_a_regular_file_is_opened(path: Path, kind: str) -> None:
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case _:
            path.symlink_to("good" if kind == "link" else "nowhere")
            (path.parent / "good").write_bytes(GOOD_BYTES)
    with pytest.raises(RolloutError, match="not a readable Parquet file"):
        read_rollouts(path, LEASE, LIMITS)


def test_a_file_larger_than_any_submission_is_refused_unread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MAX_BYTES", 100)
    with pytest.raises(RolloutError, match=f"{len(GOOD_BYTES)} bytes, at most 100 are read"):
        read(path, GOOD_BYTES)


def test_a_file_that_is_gone_is_named(path: Path) -> None:
    with pytest.raises(RolloutError, match=r"0000\.parquet: not a readable Parquet file"):
        read_rollouts(path, LEASE, LIMITS)


@pytest.mark.parametrize("size", [0, 1, 4, 8, 12, 100, len(GOOD_BYTES) - 1])
def test_a_truncated_file_is_refused(path: Path, size: int) -> None:
    with pytest.raises(RolloutError, match="not a readable Parquet file"):
        read(path, GOOD_BYTES[:size])


def assert_within_limits(submission: Submission) -> None:
    assert submission.lease == LEASE
    assert submission.version == LEASE.version
    assert len(submission.rollouts) == LEASE.groups * LIMITS.group_size
    for number, rollout in enumerate(submission.rollouts):
        assert (rollout.group, rollout.sample) == divmod(number, LIMITS.group_size)
        assert 1 <= len(rollout.prompt) <= LIMITS.max_prompt_tokens
        assert 1 <= len(rollout.completion) == len(rollout.logprobs) <= LIMITS.max_new_tokens
        assert all(0 <= token < LIMITS.vocab for token in [*rollout.prompt, *rollout.completion])
        assert all(-1e4 <= p <= 1e-4 for p in rollout.logprobs)
        assert rollout.finish in ("eos", "length")
        assert (rollout.reward is None) == bool(rollout.error)
        assert rollout.reward is None or abs(rollout.reward) <= 1e6
        assert math.isfinite(rollout.advantage)


places = st.integers(0, 2**16 - 1)


@settings(max_examples=400)
@given(flips=st.lists(st.tuples(places, st.integers(1, 255)), min_size=1, max_size=6), end=st.none() | places)
def test_a_damaged_file_is_refused_or_harmless_but_never_a_crash(
    flips: list[tuple[int, int]], end: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(GOOD_BYTES)
    for place, byte in flips:
        data[place * len(data) >> 16] ^= byte
    path = tmp_path_factory.getbasetemp() / "damaged.parquet"
    path.write_bytes(data if end is None else data[: end * len(data) >> 16])
    try:
        submission = read_rollouts(path, LEASE, LIMITS)
    except (RolloutError, UnreadError):
        pass
    else:
        assert_within_limits(submission)


def test_a_byte_altered_in_the_samples_is_noticed(path: Path) -> None:
    """Pages carry checksums: a bad disk cannot change a reward or a token."""
    path.write_bytes(GOOD_BYTES)
    metadata = pq.read_metadata(path).row_group(0)
    column = metadata.column(SCHEMA.names.index("reward"))
    start = column.dictionary_page_offset or column.data_page_offset
    body = range(start + column.total_compressed_size - 6, start + column.total_compressed_size)
    for position in body:
        data = bytearray(GOOD_BYTES)
        data[position] ^= 1
        with pytest.raises(RolloutError, match="damaged"):
            read(path, bytes(data))


def test_a_lease_of_any_other_kind_is_not_the_files_lease(path: Path) -> None:
    path.write_bytes(GOOD_BYTES)
    for field, value in asdict(LEASE).items():
        change: dict[str, Any] = {field: f"{value}x" if isinstance(value, str) else value + 1}
        other = replace(LEASE, **change)
        with pytest.raises(RolloutError, match="made under another lease"):
            read_rollouts(path, other, LIMITS)
    assert isinstance(read_rollouts(path, LEASE, LIMITS).lease, Lease)
    assert read_rollouts(path, LEASE, LIMITS).weights == ROOT
