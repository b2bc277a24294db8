"""What every `RolloutStore` promises, held against the coordinator's and against the fake that tests of roles use."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from shoal.client.rollout_store import SwarmStore
from shoal.errors import RolloutError
from shoal.protocol.lease import Lease
from shoal.protocol.pacing import StepCount
from shoal.protocol.rollout_rules import Limits
from shoal.protocol.stores import RolloutStore
from shoal.protocol.submission import Submission, write_rollouts
from shoal.protocol.version_directory import DirectoryChannel
from tests.support.coordinator_in_process import World, good_file, key_of, make_config, world_at
from tests.support.memory_store import MemoryStore, Records
from tests.support.submissions import LIMITS, ROOT, judge_formats, make_lease, make_rollout, make_submission

STEPS = 20


class Run(Protocol):
    """A run with nodes that have names; time can be moved on."""

    def announce(self, number: int) -> None: ...

    def lease(self, name: str, version: int = 0) -> Lease | None: ...

    def put(self, name: str, lease: Lease, data: bytes) -> None: ...

    def wait(self, seconds: float) -> None: ...

    def judge(self) -> RolloutStore: ...

    def trainer(self, limits: Limits | None = LIMITS) -> RolloutStore:
        """As after a restart: one that has seen nothing yet."""
        ...


class InMemory:
    def __init__(self, path: Path, **changes: Any) -> None:
        self._records, self._path, self._config = Records(path / "uploads"), path, make_config(**changes)
        self._now = 0.0

    def announce(self, number: int) -> None:
        pass

    def lease(self, name: str, version: int = 0) -> Lease | None:
        return self.judge().lease(name, version)

    def put(self, name: str, lease: Lease, data: bytes) -> None:
        self.judge().put(lease, data)

    def wait(self, seconds: float) -> None:
        self._now += seconds

    def judge(self) -> RolloutStore:
        return self.trainer()

    def trainer(self, limits: Limits | None = LIMITS) -> RolloutStore:
        channel = DirectoryChannel(self._path / "weights", keep=1)
        return MemoryStore(
            self._records, self._config, channel, limits, root_of=lambda _: ROOT, clock=lambda: self._now
        )


class AtCoordinator:
    def __init__(self, world: World) -> None:
        self._world, self._restarts = world, 0

    def announce(self, number: int) -> None:
        self._world.announce(number)

    def lease(self, name: str, version: int = 0) -> Lease | None:
        return self._world.lease(name, version)

    def put(self, name: str, lease: Lease, data: bytes) -> None:
        self._world.store(key_of(name)).put(lease, data)

    def wait(self, seconds: float) -> None:
        self._world.clock.ahead += seconds

    def judge(self) -> RolloutStore:
        return self._world.validator

    def trainer(self, limits: Limits | None = LIMITS) -> RolloutStore:
        self._restarts += 1
        cache = self._world.path / "cache" / f"trainer-{self._restarts}"
        return SwarmStore(self._world.trainer._link, cache, limits, lambda _: ROOT)


Start = Callable[..., AbstractContextManager[Run]]


@pytest.fixture(params=["coordinator", "memory"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Starts a run with one thing changed; version 0 is announced."""

    @contextmanager
    def begin(**changes: Any) -> Iterator[Run]:
        if request.param == "memory":
            yield InMemory(tmp_path, **changes)
            return
        with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", **changes) as world:
            world.announce()
            yield AtCoordinator(world)

    return begin


@pytest.fixture
def run(start: Start) -> Iterator[Run]:
    with start() as run:
        yield run


def take(run: Run, name: str, version: int = 0) -> Lease:
    lease = run.lease(name, version)
    assert lease is not None
    return lease


def take_all(run: Run, version: int) -> list[Lease]:
    """Leases to ever new nodes until none is left."""
    leases: list[Lease] = []
    while (lease := run.lease(f"node-{version}-{len(leases)}", version)) is not None:
        leases.append(lease)
        assert len(leases) < 100
    return leases


def hand_in(run: Run, name: str, lease: Lease, signal: int | None = None) -> None:
    run.put(name, lease, good_file(lease, signal))


def accepted(run: Run, step: int) -> list[Submission]:
    """What a trainer that was just started has of a step, once formats were judged."""
    judge_formats(run.judge(), 0, STEPS)
    return list(run.trainer().accepted(step))


def test_a_lease_is_for_the_smallest_short_step_and_the_one_version_that_its_node_asked_with(run: Run) -> None:
    early = take(run, "a")
    assert (early.run, early.step, early.version, early.groups) == ("test", 0, 0, 2)
    run.announce(5)
    lease = take(run, "b", version=5)
    assert (lease.step, lease.version) == (5, 5)


@pytest.mark.parametrize("async_level", [0, 2])
def test_no_lease_is_given_for_a_step_beyond_version_plus_async_level(start: Start, async_level: int) -> None:
    with start(async_level=async_level) as run:
        run.announce(3)
        leases = take_all(run, version=3)
        assert sorted({lease.step for lease in leases}) == list(range(3, 4 + async_level))
        assert all(lease.step - lease.version <= async_level for lease in leases)


def test_no_lease_is_given_beyond_the_last_step(run: Run) -> None:
    run.announce(STEPS - 1)
    assert {lease.step for lease in take_all(run, version=STEPS - 1)} == {STEPS - 1}
    run.announce(STEPS)
    assert run.lease("late", STEPS) is None


def test_leases_that_are_out_are_counted_and_files_count_instead_of_theirs(run: Run) -> None:
    assert [(lease.step, lease.submission) for lease in take_all(run, version=0)] == [
        (step, number) for step in range(3) for number in range(2)
    ]
    assert run.trainer().count(0) == StepCount(seen=0, signal=0, leased=4)
    hand_in(run, "node-0-0", take(run, "node-0-0"))
    assert run.trainer().count(0) == StepCount(seen=2, signal=2, leased=2)


def test_a_step_never_sees_more_groups_than_it_may(start: Start) -> None:
    with start(async_level=0) as run:
        for number in range(100):
            lease = run.lease(f"node-{number}")
            if lease is None:
                break
            hand_in(run, f"node-{number}", lease, signal=0)
        assert run.trainer().count(0) == StepCount(seen=12, signal=0, leased=0)


def test_a_node_gets_its_lease_back_until_it_is_handed_in_or_has_expired(run: Run) -> None:
    lease = take(run, "a")
    assert take(run, "b") != lease
    assert take(run, "a") == lease
    hand_in(run, "a", lease)
    second = take(run, "a")
    assert (second.step, second.submission) != (lease.step, lease.submission)
    run.wait(601)
    with pytest.raises(RolloutError, match="expired"):
        hand_in(run, "a", second)
    third = take(run, "a")
    assert (third.step, third.submission) != (second.step, second.submission)


def test_a_lease_is_good_for_one_file_and_the_same_bytes_may_come_again(run: Run) -> None:
    lease = take(run, "a")
    hand_in(run, "a", lease)
    hand_in(run, "a", lease)
    assert run.trainer().count(0).seen == lease.groups
    with pytest.raises(RolloutError, match="already submitted with other bytes; a lease is good for one file"):
        hand_in(run, "a", lease, signal=0)


def test_a_submission_is_accepted_as_it_was_made_once_and_again_after_a_restart(run: Run) -> None:
    lease = take(run, "a")
    hand_in(run, "a", lease)
    trainer = run.trainer()
    assert list(trainer.accepted(0)) == []
    judge_formats(run.judge(), 0, 0)
    assert list(trainer.accepted(0)) == [make_submission(lease)]
    assert list(trainer.accepted(0)) == []
    assert list(run.trainer().accepted(0)) == [make_submission(lease)]


def test_a_submission_of_one_step_is_not_seen_in_another(run: Run) -> None:
    for number, lease in enumerate(take_all(run, version=0)):
        hand_in(run, f"node-0-{number}", lease)
    judge_formats(run.judge(), 0, STEPS)
    trainer = run.trainer()
    seen = [(step, submission.lease.step) for step in range(4) for submission in trainer.accepted(step)]
    assert seen == [(0, 0), (0, 0), (1, 1), (1, 1), (2, 2), (2, 2)]


LIES: dict[str, dict[str, Any]] = {
    "another lease": {"lease": make_lease(step=0, submission=0)},
    "older than allowed": {"version": 2},
    "older than its lease's": {"version": 4},
    "newer than its lease's": {"version": 6},
    "no version": {"version": -1},
    "other weights": {"weights": "cd" * 32},
    "no weights": {"weights": ""},
    "one sample eight times": {"rollouts": [make_rollout(0, 0)] * 8},
}


def test_a_file_that_lies_about_its_origin_is_never_trained_on_and_counts_for_nothing(start: Start) -> None:
    with start(train={"groups_per_step": 18}) as run:
        run.announce(5)
        for name, changes in LIES.items():
            lease = take(run, name, version=5)
            run.put(name, lease, write_rollouts(replace(make_submission(lease), **changes), lease.groups))
        good = take(run, "honest", version=5)
        hand_in(run, "honest", good)
        assert run.trainer().count(5) == StepCount(seen=18, signal=18), "they count until they are judged"
        assert [submission.lease for submission in accepted(run, 5)] == [good]
        assert run.trainer().count(5) == StepCount(seen=2, signal=2)
        assert take(run, "next", version=5).step == 5, "their places are filled again"


def test_a_group_whose_scorer_failed_is_accepted_as_data_without_signal(run: Run) -> None:
    lease = take(run, "a")
    good = make_submission(lease)
    failed = [replace(r, reward=None, error="it broke") if (r.group, r.sample) == (0, 1) else r for r in good.rollouts]
    submission = replace(good, rollouts=failed)
    run.put("a", lease, write_rollouts(submission, 1))
    assert accepted(run, 0) == [submission]


def test_a_store_without_limits_counts_but_cannot_judge(run: Run) -> None:
    hand_in(run, "a", take(run, "a"))
    judge_formats(run.judge(), 0, 0)
    plain = run.trainer(limits=None)
    assert plain.count(0).seen == 2
    with pytest.raises(ValueError, match="opened without limits"):
        list(plain.accepted(0))


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_nodes_do_no_step_gets_leases_for_more_than_it_may_see(start: Start, seed: int) -> None:
    """A random walk of nodes that take leases, hand in and die, while versions are published."""
    steps, level, rng = 4, 2, random.Random(seed)
    with start(steps=steps, async_level=level) as run:
        version, held, nodes = 0, dict[str, Lease](), 0
        for _ in range(60):
            move = rng.choice(["take"] * 4 + ["hand in"] * 4 + ["publish"] * 3 + ["die"])
            if move == "take":
                nodes += 1
                lease = run.lease(f"node-{nodes}", version)
                if lease is not None:
                    assert version <= lease.step <= min(version + level, steps - 1)
                    assert max(0, lease.step - level) <= lease.version == version
                    held[f"node-{nodes}"] = lease
            elif move == "hand in" and held:
                name = rng.choice(sorted(held))
                lease = held.pop(name)
                hand_in(run, name, lease, signal=rng.choice([0, lease.groups, lease.groups]))
            elif move == "die" and held:
                held.clear()
                run.wait(601)  # their leases expire
            elif move == "publish" and run.trainer().count(version).signal >= 4:
                version += 1
                run.announce(version)
            counts = [run.trainer().count(step) for step in range(steps)]
            assert all(count.seen + count.leased <= 12 for count in counts)
        assert version, "nothing was published: the walk tried little"


def test_nodes_that_ask_at_once_never_get_the_same_lease_nor_more_than_a_step_needs(small_world: World) -> None:
    small_world.announce()
    names = [f"racer-{number}" for number in range(16)]
    for name in names:
        small_world.store(key_of(name))
    with ThreadPoolExecutor(8) as pool:
        leases = [lease for lease in pool.map(small_world.lease, names) if lease is not None]
    assert sorted((lease.step, lease.submission) for lease in leases) == [(s, n) for s in range(3) for n in range(2)]
