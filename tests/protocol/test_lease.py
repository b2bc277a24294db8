"""A lease: whatever is made under it follows from it, and nothing else passes for one."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import RolloutError
from shoal.protocol.lease import Lease
from tests.support.submissions import make_lease

leases = st.builds(
    Lease,
    run=st.text(),
    node=st.text(),
    step=st.integers(0, 2**31),
    submission=st.integers(0, 2**31),
    version=st.integers(0, 2**31),
    groups=st.integers(1, 2**20),
    beacon=st.integers(0, 2**64 - 1),
    deadline=st.floats(0, 1e12),
    draw_of=st.just("") | st.builds("{}/{}".format, st.integers(0, 2**31), st.integers(0, 2**31)),
)


@given(leases)
def test_a_lease_survives_its_json(lease: Lease) -> None:
    assert Lease.from_json(lease.to_json()) == lease


@given(st.binary() | st.text())
def test_noise_is_refused_as_a_lease(noise: bytes | str) -> None:
    with pytest.raises(RolloutError, match="not a lease"):
        Lease.from_json(noise)


@pytest.mark.parametrize(
    "change",
    [
        {"step": "3"},
        {"step": 3.0},
        {"step": True},
        {"submission": None},
        {"groups": [2]},
        {"beacon": 1e300},
        {"node": 5},
        {"run": None},
        {"deadline": "tomorrow"},
        {"deadline": None},
        {"deadline": float("nan")},
        {"deadline": float("inf")},
        {"deadline": 10**400},
        {"draw_of": None},
        {"draw_of": "3"},
        {"draw_of": "-3/1"},
        {"draw_of": "\u0663/1"},
        {"unknown": 1},
    ],
)
def test_a_field_of_the_wrong_type_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(RolloutError, match="not a lease"):
        Lease.from_json(json.dumps(asdict(make_lease()) | change))


@pytest.mark.parametrize("field", ["run", "node", "step", "submission", "version", "groups", "beacon", "deadline"])
def test_a_missing_field_is_refused(field: str) -> None:
    fields = asdict(make_lease())
    del fields[field]
    with pytest.raises(RolloutError, match=field):
        Lease.from_json(json.dumps(fields))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "null", "[]", "3"])
def test_json_that_is_no_lease_is_refused_without_a_crash(text: str) -> None:
    with pytest.raises(RolloutError, match="not a lease"):
        Lease.from_json(text)


def test_the_seed_follows_from_run_beacon_step_and_submission_alone() -> None:
    lease = make_lease()
    same = replace(lease, deadline=0.0, groups=99, version=1)
    assert same.seed == lease.seed
    others = [
        replace(lease, run="other"),
        replace(lease, beacon=8),
        replace(lease, step=4),
        replace(lease, submission=1),
    ]
    assert len({lease.seed, *(other.seed for other in others)}) == 5


@given(lease=leases, key=st.text())
def test_no_key_has_a_better_draw_than_another(lease: Lease, key: str) -> None:
    other = replace(lease, node=key)
    assert other.seed == lease.seed
    assert [other.task_index(group) for group in range(4)] == [lease.task_index(group) for group in range(4)]


@given(lease=leases, step=st.integers(0, 2**31), number=st.integers(0, 2**31))
def test_a_draw_that_is_given_again_is_the_same_whichever_lease_gives_it(lease: Lease, step: int, number: int) -> None:
    first = replace(lease, draw_of="")
    again = replace(first, step=step, submission=number, node="another", draw_of=f"{first.step}/{first.submission}")
    assert again.seed == first.seed
    assert again.drawn_at == (first.step, first.submission)


def test_no_two_leases_of_a_run_share_a_seed() -> None:
    seeds = {
        make_lease(node=f"worker-{number % 12}", step=step, submission=number).seed
        for step in range(25)
        for number in range(144)
    }
    assert len(seeds) == 25 * 144


def test_the_tasks_of_a_lease_are_drawn_apart() -> None:
    indices = [make_lease(submission=n).task_index(group) for n in range(20) for group in range(32)]
    assert len(set(indices)) == len(indices)
    assert all(0 <= index < 2**32 for index in indices)


@given(named=st.integers(0, 50), span=st.integers(0, 8), version=st.integers(-5, 70))
def test_every_version_but_the_one_that_a_lease_names_is_refused_by_number(named: int, span: int, version: int) -> None:
    lease = make_lease(version=named, step=named + span)
    if version == named:
        lease.check_version(version)
    else:
        with pytest.raises(RolloutError, match=rf"used version {version}, it is for version {named}$"):
            lease.check_version(version)
