"""The store of rollouts: leases by the rules, one file a lease, and bad files that cost nobody but their sender."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import RolloutError
from shoal.files import sha256_file
from shoal.protocol.directory_store import DirectoryStore, Rules
from shoal.protocol.lease import Lease
from shoal.protocol.pacing import StepCount
from shoal.protocol.submission import Submission, write_rollouts
from shoal.protocol.verdict import Verdict
from tests.support.submissions import LIMITS, ROOT, judge_formats, make_lease, make_rollout, make_submission

RULES = Rules(
    run="test",
    beacon=7,
    steps=20,
    async_level=2,
    groups_per_step=4,
    most_groups=12,
    groups_per_submission=2,
    lease_s=600,
)


class Store(DirectoryStore):
    """A store that keeps what it refused, as the trainer does in its metrics; formats are judged at once."""

    def __init__(self, path: Path, root_of: Callable[[int], str | None] = lambda _: ROOT, **rules: Any) -> None:
        self.path = path
        self.told: list[tuple[str, str]] = []
        super().__init__(
            path, replace(RULES, **rules), LIMITS, root_of, lambda file, why: self.told.append((file, why))
        )

    def accepted(self, step: int) -> Iterator[Submission]:
        judge_formats(self, step, step)
        return super().accepted(step)

    def take(self, node: str, version: int = 0) -> Lease:
        lease = self.lease(node, version)
        assert lease is not None
        return lease

    def take_all(self, version: int) -> list[Lease]:
        """Leases to ever new nodes until none is left."""
        leases: list[Lease] = []
        while lease := self.lease(f"node-{len(leases)}", version):
            leases.append(lease)
            assert len(leases) < 1000
        return leases

    def hand_in(self, lease: Lease, version: int | None = None, signal: int | None = None) -> Path:
        """Hands in a good file, all of whose groups have signal, and gives its path."""
        submission = make_submission(lease, version=version)
        self.put(lease, write_rollouts(submission, lease.groups if signal is None else signal))
        return self.file(lease)

    def file(self, lease: Lease) -> Path:
        return self.path / f"step-{lease.step:06d}" / f"{lease.submission:04d}.parquet"

    def accepted_numbers(self, step: int) -> list[int]:
        return [submission.lease.submission for submission in self.accepted(step)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "rollouts")


# Leases and pacing


def test_a_lease_allows_the_versions_its_step_accepts(store: Store) -> None:
    lease = store.take("a", version=5)
    assert (lease.step, lease.oldest, lease.newest) == (5, 3, 5)
    early = store.take("b", version=0)
    assert (early.step, early.oldest, early.newest) == (0, 0, 0)


@pytest.mark.parametrize("async_level", [0, 1, 2, 4])
def test_no_lease_is_given_for_a_step_beyond_version_plus_async_level(tmp_path: Path, async_level: int) -> None:
    store = Store(tmp_path, async_level=async_level)
    leases = store.take_all(version=3)
    assert sorted({lease.step for lease in leases}) == list(range(3, 4 + async_level))
    assert all(lease.newest - lease.oldest <= async_level for lease in leases)


def test_no_lease_is_given_beyond_the_last_step(store: Store) -> None:
    assert {lease.step for lease in store.take_all(version=19)} == {19}
    assert store.lease("late", 20) is None


def test_leases_that_are_out_are_counted(store: Store) -> None:
    leases = store.take_all(version=0)
    assert [lease.step for lease in leases] == [0, 0, 1, 1, 2, 2]
    assert store.count(0) == StepCount(seen=0, signal=0, leased=4)


def test_the_numbers_of_a_step_are_issued_in_order(store: Store) -> None:
    assert [(lease.step, lease.submission) for lease in store.take_all(version=0)[:4]] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def test_what_was_handed_in_counts_instead_of_its_lease(store: Store) -> None:
    first, _second = store.take("a"), store.take("b")
    store.hand_in(first)
    assert store.count(0) == StepCount(seen=2, signal=2, leased=2)


def test_groups_without_signal_call_for_more_leases(store: Store) -> None:
    for node in ("a", "b"):
        store.hand_in(store.take(node), signal=0)
    assert store.take("c").step == 0


def test_without_the_online_filter_they_do_not(tmp_path: Path) -> None:
    store = Store(tmp_path, online_filter=False)
    for node in ("a", "b"):
        store.hand_in(store.take(node), signal=0)
    assert store.take("c").step == 1


def test_a_step_never_sees_more_groups_than_it_may(tmp_path: Path) -> None:
    store = Store(tmp_path, async_level=0)
    for number in range(100):
        lease = store.lease(f"node-{number}", 0)
        if lease is None:
            break
        store.hand_in(lease, signal=0)
    assert store.count(0) == StepCount(seen=12, signal=0, leased=0)


def test_an_expired_lease_returns_to_the_pool(tmp_path: Path) -> None:
    slow = Store(tmp_path, async_level=0, lease_s=0.05)
    assert len(slow.take_all(version=0)) == 2
    time.sleep(0.1)
    assert slow.count(0).leased == 0
    again = Store(tmp_path, async_level=0).take_all(version=0)
    assert [lease.submission for lease in again] == [2, 3]


def test_a_restarted_node_gets_its_own_lease_back(store: Store) -> None:
    lease = store.take("a")
    store.take("b")
    assert Store(store.path).take("a") == lease


def test_a_restarted_node_does_not_get_back_what_it_handed_in(store: Store) -> None:
    lease = store.take("a")
    store.hand_in(lease)
    assert store.take("a").submission != lease.submission


def test_a_restarted_node_does_not_get_back_an_expired_lease(tmp_path: Path) -> None:
    lease = Store(tmp_path, lease_s=0.01).take("a")
    time.sleep(0.05)
    assert Store(tmp_path).take("a").submission == lease.submission + 1


def test_a_node_whose_step_has_passed_gets_a_lease_of_a_step_to_come(store: Store) -> None:
    old = store.take("a", version=0)
    new = store.take("a", version=5)
    assert (old.step, new.step) == (0, 5)


def test_a_lease_that_somebody_deleted_does_not_hold_the_others_up(store: Store) -> None:
    first, _ = store.take("a"), store.take("b")
    (store.path / "step-000000" / f"{first.submission:04d}.lease.json").unlink()
    assert store.take("c").submission == 0


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"run": 1}', b"\xff"])
def test_a_damaged_lease_is_nobodys_lease(store: Store, content: bytes) -> None:
    first = store.take("a")
    (store.path / "step-000000" / f"{first.submission:04d}.lease.json").write_bytes(content)
    assert store.count(0).leased == 0
    assert store.take("a").submission == 1


def test_a_lease_file_under_another_number_counts_for_nothing(store: Store) -> None:
    store.take("a")
    folder = store.path / "step-000000"
    for name in ("0009", "00000", "٠٠٠٠", "x"):
        shutil.copy(folder / "0000.lease.json", folder / f"{name}.lease.json")
    assert store.count(0).leased == 2


class Interrupted(Store):
    """A store whose counting takes so long that rivals take all leases meanwhile."""

    def count(self, step: int) -> StepCount:
        count = super().count(step)
        Store(self.path, async_level=0).take_all(version=0)
        return count


def test_leases_taken_by_others_while_a_node_counts_are_not_overlooked(tmp_path: Path) -> None:
    assert Interrupted(tmp_path, async_level=0).lease("slow", 0) is None
    assert Store(tmp_path).count(0).leased == RULES.groups_per_step


TAKE = """
import sys, time
from pathlib import Path
from shoal.protocol.directory_store import DirectoryStore, Rules
path, me, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
rules = Rules("test", 7, 1000, 2, 40, 400, 2, 600.0)
store = DirectoryStore(path, rules)
(path / f"ready-{me}").touch()
while not (path / "go").exists():
    time.sleep(0.001)
for number in range(rounds):
    lease = store.lease(f"{me}-{number}", 0)
    if lease is None:
        break
    print(lease.step, lease.submission, lease.groups, lease.node)
"""


def test_racing_processes_never_get_the_same_number_nor_more_than_a_step_needs(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    racers = [
        subprocess.Popen([sys.executable, "-c", TAKE, str(tmp_path), name, "30"], stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("ready-*"))) < len(names) and time.monotonic() < deadline:
        time.sleep(0.01)
    (tmp_path / "go").touch()
    lines = [line.split() for racer in racers for line in racer.communicate(timeout=60)[0].splitlines()]
    assert [racer.returncode for racer in racers] == [0] * len(racers)
    places = [(int(step), int(number)) for step, number, _, _ in lines]
    # 40 groups a step, 2 a lease, three steps in reach: 60 leases in all.
    assert sorted(places) == [(step, number) for step in range(3) for number in range(20)]


@settings(max_examples=25)
@given(data=st.data(), async_level=st.integers(0, 3))
def test_whatever_nodes_do_no_step_gets_leases_for_more_than_it_needs(
    data: st.DataObject, async_level: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A random walk of nodes taking, handing in, dying, and versions coming out."""
    store = Store(tmp_path_factory.mktemp("walk"), async_level=async_level, steps=4)
    version = 0
    held: list[Lease] = []
    for _ in range(data.draw(st.integers(5, 20))):
        match data.draw(st.sampled_from(["take", "take", "hand in", "die", "publish"])):
            case "take":
                lease = store.lease(f"node-{data.draw(st.integers(0, 3))}", version)
                if lease is not None and lease not in held:
                    assert version <= lease.step <= min(version + async_level, 3)
                    assert lease.oldest == max(0, lease.step - async_level)
                    held.append(lease)
            case "hand in" if held:
                lease = held.pop(data.draw(st.integers(0, len(held) - 1)))
                store.hand_in(lease, signal=data.draw(st.integers(0, lease.groups)))
            case "die" if held:
                held.pop()  # its lease stays out until it expires
            case "publish" if store.count(version).signal >= 4:
                version += 1
        for step in range(4):
            count = store.count(step)
            assert count.seen + count.leased <= RULES.most_groups
    places = [path.relative_to(store.path) for path in store.path.glob("*/*.lease.json")]
    assert len(places) == len(set(places))


# Handing in


def test_a_lease_is_good_for_one_file(store: Store) -> None:
    lease = store.take("a")
    before = store.hand_in(lease).read_bytes()
    with pytest.raises(RolloutError, match="lease step 0 submission 0 of a: was already submitted"):
        store.hand_in(replace(lease), signal=0)
    assert store.file(lease).read_bytes() == before


def test_a_late_file_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path, lease_s=0.01)
    lease = store.take("a")
    time.sleep(0.05)
    with pytest.raises(RolloutError, match=r"expired \d+ s ago; its work went elsewhere"):
        store.hand_in(lease)
    assert not store.file(lease).exists()


@pytest.mark.parametrize(
    "change",
    [
        {"node": "thief"},
        {"step": 1},
        {"submission": 7},
        {"groups": 200},
        {"newest": 9},
        {"deadline": 1e12},
        {"beacon": 8},
        {"run": "other"},
    ],
)
def test_a_lease_that_was_never_issued_is_refused(store: Store, change: dict[str, Any]) -> None:
    lease = replace(store.take("a"), **change)
    with pytest.raises(RolloutError, match="never issued, or to another node"):
        store.put(lease, b"anything")
    assert list(store.path.rglob("*.parquet")) == []


# Judging


def test_a_submission_is_accepted_as_it_was_made(store: Store) -> None:
    lease = store.take("a", version=3)
    store.hand_in(lease, version=2)
    assert list(store.accepted(3)) == [make_submission(lease, version=2)]
    assert store.told == []


def test_a_submission_is_accepted_once(store: Store) -> None:
    store.hand_in(store.take("a"))
    assert store.accepted_numbers(0) == [0]
    assert store.accepted_numbers(0) == []
    store.hand_in(store.take("b"))
    assert store.accepted_numbers(0) == [1]


def test_a_submission_of_one_step_is_not_seen_in_another(store: Store) -> None:
    for lease in store.take_all(version=0):
        store.hand_in(lease)
    seen = [(step, s.lease.step) for step in range(4) for s in store.accepted(step)]
    assert seen == [(0, 0), (0, 0), (1, 1), (1, 1), (2, 2), (2, 2)]


def test_after_a_restart_the_same_submissions_are_accepted_again(store: Store) -> None:
    for node in ("a", "b"):
        store.hand_in(store.take(node))
    assert store.accepted_numbers(0) == Store(store.path).accepted_numbers(0) == [0, 1]


def spoil(path: Path, how: str) -> None:
    """Makes a good file a bad one."""
    data = path.read_bytes()
    table = pq.read_table(path)
    match how:
        case "truncated":
            path.write_bytes(data[: len(data) // 2])
        case "without its last byte":
            path.write_bytes(data[:-1])
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("not parquet at all")
        case "a directory":
            path.unlink()
            path.mkdir()
        case "a dangling link":
            path.unlink()
            path.symlink_to("nowhere")
        case "foreign parquet":
            pq.write_table(pa.table({"a": [1, 2, 3]}), path)
        case "without footer":
            pq.write_table(table.replace_schema_metadata(None), path)
        case "altered data":
            middle = data.index(b"PAR1") + 60
            path.write_bytes(data[:middle] + bytes(b ^ 255 for b in data[middle : middle + 8]) + data[middle + 8 :])
        case "another column":
            pq.write_table(table.append_column("note", pa.array(["x"] * table.num_rows)), path)
        case "too few samples":
            pq.write_table(table.slice(0, table.num_rows - 1), path)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("truncated", "not a readable Parquet file"),
        ("without its last byte", "not a readable Parquet file"),
        ("empty", "not a readable Parquet file"),
        ("text", "not a readable Parquet file"),
        ("a directory", "not a readable Parquet file"),
        ("a dangling link", "not a readable Parquet file"),
        ("foreign parquet", "schema version None"),
        ("without footer", "schema version None"),
        ("altered data", "damaged"),
        ("another column", "its columns are"),
        ("too few samples", "7 samples, the lease is for 8"),
    ],
)
def test_a_bad_file_is_refused_with_its_reason_and_the_good_ones_are_accepted(
    store: Store, how: str, reason: str
) -> None:
    bad, good = store.take("a"), store.take("b")
    spoil(store.hand_in(bad), how)
    store.hand_in(good)
    assert store.accepted_numbers(0) == [good.submission]
    [(file, why)] = store.told
    assert file == "step-000000/0000.parquet"
    assert reason in why


def hand_in_forged(store: Store, under: Lease, /, **changes: Any) -> None:
    """Under a good lease, a file that is good in itself but says something else of its origin."""
    submission = replace(make_submission(under), **changes)
    store.put(under, write_rollouts(submission, under.groups))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lease": make_lease(step=0, submission=0)}, "made under another lease than lease step 5 submission 0 of a"),
        ({"version": 2}, r"used version 2, allowed 3..5"),
        ({"version": 6}, r"used version 6, allowed 3..5"),
        ({"version": -1}, r"used version -1, allowed 3..5"),
        ({"weights": "cd" * 32}, "made with weights 'cdcdcdcdcdcd' as version 5, which is 'abababababab'"),
        ({"weights": ""}, "made with weights ''"),
        ({"rollouts": [make_rollout(0, 0)] * 8}, "numbered group 0 sample 0, expected (0, 1)"),
    ],
)
def test_a_file_that_lies_about_its_origin_is_refused(store: Store, changes: dict[str, Any], reason: str) -> None:
    lease = store.take("a", version=5)
    hand_in_forged(store, lease, **changes)
    assert store.accepted_numbers(5) == []
    assert reason in store.told[0][1]


def test_a_file_made_with_a_version_that_was_retracted_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path, root_of=lambda _: None)
    store.hand_in(store.take("a"))
    assert store.accepted_numbers(0) == []
    assert "which is 'not here any more'" in store.told[0][1]


@pytest.mark.parametrize("name", ["0001", "00000", "0000 copy", "٠٠٠٠", "-001", "x" * 247, "9" * 247, ".hidden"])
def test_a_copy_under_another_name_is_never_used(store: Store, name: str) -> None:
    path = store.hand_in(store.take("a"))
    shutil.copy(path, path.with_name(f"{name}.parquet"))
    assert store.accepted_numbers(0) == [0]
    assert [file for file, _ in store.told] == [f"step-000000/{name}.parquet"]
    assert store.count(0) == StepCount(seen=2, signal=2)


def test_a_file_in_the_folder_of_another_step_is_refused(store: Store) -> None:
    lease = store.take("a", version=0)
    path = store.hand_in(lease)
    other = store.take("b", version=5)
    shutil.copy(path, store.file(other))
    assert store.accepted_numbers(5) == []
    assert "made under another lease" in store.told[0][1]


def test_a_lease_copied_along_with_its_file_makes_no_second_submission(store: Store) -> None:
    path = store.hand_in(store.take("a"))
    shutil.copy(path, path.with_name("0001.parquet"))
    shutil.copy(path.with_name("0000.lease.json"), path.with_name("0001.lease.json"))
    assert store.accepted_numbers(0) == [0]
    assert "no lease was issued for submission 1 of step 0" in store.told[0][1]


def test_a_refused_file_does_not_count_and_a_new_lease_is_granted(store: Store) -> None:
    first, second = store.take("a"), store.take("b")
    hand_in_forged(store, first, weights="cd" * 32)
    store.hand_in(second)
    assert store.count(0) == StepCount(seen=4, signal=4), "it counts until it is judged"
    assert store.accepted_numbers(0) == [1]
    assert store.count(0) == StepCount(seen=2, signal=2)
    again = store.take("c")
    assert (again.step, again.submission) == (0, 2)


def test_another_process_hears_of_the_refusal(store: Store) -> None:
    other = Store(store.path)
    hand_in_forged(store, store.take("a"), weights="cd" * 32)
    assert other.count(0).seen == 2
    store.accepted_numbers(0)
    assert other.count(0).seen == 0


def test_a_file_nobody_can_read_calls_for_a_new_lease_at_once(store: Store) -> None:
    for node in ("a", "b"):
        spoil(store.hand_in(store.take(node)), "truncated")
    assert store.count(0) == StepCount()
    assert store.take("c").submission == 2


@pytest.mark.parametrize("signal", [0, 1])
def test_a_false_count_of_groups_with_signal_cannot_hold_the_run_up(store: Store, signal: int) -> None:
    lease = store.take("a")
    store.hand_in(lease, signal=signal)  # all of its groups have signal
    assert store.accepted_numbers(0) == []
    assert f"claims {signal} groups with signal, it has 2" in store.told[0][1]


def test_a_group_with_a_failed_scorer_has_no_signal(store: Store) -> None:
    lease = store.take("a")
    good = make_submission(lease)
    failed = [replace(r, reward=None, error="it broke") if (r.group, r.sample) == (0, 1) else r for r in good.rollouts]
    submission = replace(good, rollouts=failed)
    store.put(lease, write_rollouts(submission, 1))
    assert list(store.accepted(0)) == [submission]


def rewrite_footer(path: Path, **footer: bytes) -> None:
    table = pq.read_table(path)
    metadata = dict(table.schema.metadata) | {f"shoal.{key}".encode(): value for key, value in footer.items()}
    pq.write_table(table.replace_schema_metadata(metadata), path)


@pytest.mark.parametrize(
    "summary",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"groups": 1e999, "signal": 0}',
        b'{"groups": -5, "signal": -9}',
        b'{"groups": 2, "signal": 3}',
        b'{"groups": 1000000, "signal": 1000000}',
        b"[" * 50_000,
        b'{"groups": "two", "signal": null}',
    ],
)
def test_a_summary_that_is_nonsense_stops_neither_counting_nor_judging(store: Store, summary: bytes) -> None:
    bad, good = store.take("a"), store.take("b")
    rewrite_footer(store.hand_in(bad), summary=summary)
    store.hand_in(good)
    store.count(0)
    assert store.accepted_numbers(0) == [1]
    assert store.count(0) == StepCount(seen=2, signal=2)


@pytest.mark.parametrize("version", [b"", b"new", "²".encode(), b"9" * 5000, b"\xff", b"0x0"])
def test_a_version_that_is_no_number_is_refused(store: Store, version: bytes) -> None:
    rewrite_footer(store.hand_in(store.take("a")), version=version)
    assert store.accepted_numbers(0) == []
    assert "is not a number" in store.told[0][1]


def test_a_worker_without_limits_counts_but_cannot_judge(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.hand_in(store.take("a"))
    worker = DirectoryStore(tmp_path, RULES)
    assert worker.count(0).seen == 2
    with pytest.raises(ValueError, match="opened without limits"):
        worker.read(worker.waiting(0, 0)[0])


def test_verdicts_are_left_beside_the_files(store: Store) -> None:
    good, bad = store.take("a"), store.take("b")
    store.hand_in(good)
    spoil(store.hand_in(bad), "empty")
    store.accepted_numbers(0)
    verdicts = [json.loads(store.file(lease).with_suffix(".verdict.json").read_text()) for lease in (good, bad)]
    assert verdicts[0]["accept"] is True
    assert verdicts[0]["sha256"] == sha256_file(store.file(good))
    assert verdicts[1]["accept"] is False
    assert "not a readable Parquet file" in verdicts[1]["reason"]


def test_a_damaged_verdict_is_as_good_as_none(store: Store) -> None:
    path = store.hand_in(store.take("a"))
    for content in ("", "{", "[]", "{}"):
        path.with_suffix(".verdict.json").write_text(content)
        assert Store(store.path).count(0).seen == 2


def test_steps_that_are_long_trained_are_forgotten(store: Store) -> None:
    for version in (0, 5, 9):
        store.hand_in(store.take("a", version))
    (store.path / "step-notes").mkdir()
    store.forget(before=9)
    assert sorted(folder.name for folder in store.path.iterdir()) == ["step-000009", "step-notes"]


def test_a_lease_on_disk_is_the_lease_that_was_given(store: Store) -> None:
    lease = store.take("a")
    assert json.loads((store.path / "step-000000" / "0000.lease.json").read_text()) == asdict(lease)


# Things that nobody of ours put there


def plant(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "file":
            path.write_bytes(b"foreign")
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
            (path / "file").write_bytes(b"foreign")
        case "link":
            path.symlink_to("nowhere")


def test_a_file_in_the_place_of_a_step_is_set_aside(store: Store) -> None:
    for kind, step in (("file", 0), ("link", 1), ("pipe", 2)):
        plant(store.path / f"step-{step:06d}", kind)
    leases = store.take_all(version=0)
    assert {lease.step for lease in leases} == {0, 1, 2}
    assert store.accepted_numbers(0) == []
    assert len(list(store.path.glob(".foreign-*"))) == 3


@pytest.mark.parametrize("kind", ["file", "pipe", "directory", "link"])
@pytest.mark.parametrize(
    "name",
    ["0000.lease.json", "0000.parquet", "0000.verdict.json", "999999999.lease.json", "9999999999.lease.json", "00.x"],
)
def test_whatever_lies_among_the_rollouts_a_step_is_filled_and_judged(tmp_path: Path, name: str, kind: str) -> None:
    store = Store(tmp_path, async_level=0)
    plant(tmp_path / "step-000000" / name, kind)
    for lease in store.take_all(version=0):
        store.hand_in(lease)
    assert store.count(0) == StepCount(seen=4, signal=4, leased=0)
    assert len(store.accepted_numbers(0)) == 2
    assert store.lease("late", 0) is None


@pytest.mark.parametrize("kind", ["pipe", "directory", "link"])
def test_a_verdict_can_be_given_whatever_stands_in_its_place(store: Store, kind: str) -> None:
    path = store.hand_in(store.take("a"))
    path.write_bytes(b"PAR1")
    plant(path.with_suffix(".verdict.json"), kind)
    assert store.accepted_numbers(0) == []
    assert json.loads(path.with_suffix(".verdict.json").read_text())["accept"] is False


@pytest.mark.parametrize("change", [{"groups": 10**9}, {"deadline": 1e300}, {"run": "other"}, {"beacon": 8}])
def test_a_lease_that_this_run_does_not_give_holds_nothing_up(store: Store, change: dict[str, Any]) -> None:
    lease = store.take("a")
    forged = store.path / "step-000000" / "0000.lease.json"
    forged.write_text(json.dumps(asdict(lease) | change))
    assert store.count(0).leased == 0


def test_names_that_are_no_steps_stop_no_clearing(store: Store) -> None:
    for name in ("step-1x", "step-²", "step-1", "step-99999999999"):
        (store.path / name).mkdir(parents=True)
    store.hand_in(store.take("a", 0))
    store.forget(before=9)
    assert len(list(store.path.iterdir())) == 4


def test_a_verdict_that_comes_late_brings_no_forgotten_step_back(store: Store) -> None:
    lease = store.lease("a", 0)
    assert lease is not None
    store.put(lease, b"x")
    (upload,) = store.waiting(0, 0)
    store.forget(1)
    store.judge(upload, Verdict(True, "00", audited=False))
    assert not upload.path.parent.exists()
