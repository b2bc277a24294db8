"""Whatever is changed in an honest submission, some check sees it."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.protocol.rollout import Rollout
from shoal.protocol.submission import Submission, groups_with_signal, write_rollouts
from tests.support.model_and_checks import World, with_sample
from tests.support.submissions import changed


@st.composite
def edited_lists(draw: st.DrawFn, values: list[Any], value: st.SearchStrategy[Any]) -> list[Any]:
    """One entry changed, added, left out or moved."""
    place = draw(st.integers(0, len(values) - 1))
    kind = draw(st.sampled_from(["change", "add", "drop", "swap"]))
    if kind == "change":
        return [*values[:place], draw(value), *values[place + 1 :]]
    if kind == "add":
        return [*values[:place], draw(value), *values[place:]]
    if kind == "drop":
        return [*values[:place], *values[place + 1 :]]
    other = draw(st.integers(0, len(values) - 1))
    moved = list(values)
    moved[place], moved[other] = moved[other], moved[place]
    return moved


@st.composite
def edited_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Bits flipped anywhere but in the constant coefficient's low byte: one more there is one more in every last bit,
    as honest noise may be."""
    places = [n for n in range(len(data)) if n != 3]
    flipped = bytearray(data)
    for place in draw(st.lists(st.sampled_from(places), min_size=1, max_size=4, unique=True)):
        flipped[place] ^= draw(st.integers(1, 255))
    return bytes(flipped)


tokens = st.integers(0, 259)
logprobs = st.floats(-30, 0, width=32) | st.just(math.nan)
rewards = st.none() | st.floats(-2, 2, width=32) | st.just(math.nan)


@st.composite
def edits(draw: st.DrawFn, sample: Rollout) -> dict[str, Any]:
    """A change of one field."""
    field = draw(
        st.sampled_from(
            [
                "completion",
                "logprobs",
                "reward",
                "advantage",
                "prompt",
                "task",
                "source",
                "finish",
                "proof",
                "group",
                "sample",
            ]
        )
    )
    new: Any
    match field:
        case "completion" | "prompt":
            new = draw(edited_lists(getattr(sample, field).tolist(), tokens))
        case "logprobs":
            new = draw(edited_lists(sample.logprobs.tolist(), logprobs))
        case "reward":
            new = draw(rewards)
        case "advantage":
            new = draw(st.floats(-3, 3, width=32))
        case "task" | "group" | "sample":
            new = draw(st.integers(0, 2**31 - 1) | st.integers(0, 3))
        case "source":
            new = draw(st.text(max_size=8))
        case "finish":
            new = draw(st.sampled_from(["eos", "length", "other"]))
        case _:
            new = draw(edited_bytes(sample.proof) | st.binary(max_size=300))
    return {field: new, "error": "failed"} if field == "reward" and new is None else {field: new}


def close(before: Rollout, after: Rollout) -> bool:
    """Whether an edit is within what honest workers may differ by."""
    if changed(before, logprobs=[], advantage=0.0) != changed(after, logprobs=[], advantage=0.0):
        return False
    near = len(before.logprobs) == len(after.logprobs)
    near = near and all(abs(a - b) < 0.01 for a, b in zip(before.logprobs, after.logprobs, strict=False))
    return near and abs(before.advantage - after.advantage) < 1e-5


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_change_of_any_field_of_any_sample_is_rejected(world: World, honest: Submission, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(honest.rollouts) - 1))
    edited = with_sample(honest, number, **data.draw(edits(honest.rollouts[number])))
    passed = world.verdict_on(edited) is None
    assert passed <= close(honest.rollouts[number], edited.rollouts[number])


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_samples_in_any_other_order_are_rejected(world: World, honest: Submission, data: st.DataObject) -> None:
    """Numbered again, as a cheater would who hopes to pass: only equal answers may change places."""
    order = data.draw(st.permutations(range(len(honest.rollouts))))
    places = [(r.group, r.sample) for r in honest.rollouts]
    moved = [
        replace(honest.rollouts[n], group=group, sample=sample)
        for n, (group, sample) in zip(order, places, strict=True)
    ]
    passed = world.verdict_on(replace(honest, rollouts=moved)) is None
    alike = [replace(a, proof=b"") == replace(b, proof=b"") for a, b in zip(moved, honest.rollouts, strict=True)]
    assert passed <= all(alike)


def test_groups_in_another_order_are_rejected(world: World, honest: Submission) -> None:
    half = len(honest.rollouts) // 2
    turned = [replace(r, group=1 - r.group) for r in honest.rollouts[half:] + honest.rollouts[:half]]
    finding = world.verdict_on(replace(honest, rollouts=turned))
    assert finding is not None
    assert finding.check == "tasks"


def test_a_group_more_or_less_is_rejected(world: World, honest: Submission) -> None:
    half = len(honest.rollouts) // 2
    for rollouts in (honest.rollouts[:half], honest.rollouts + [replace(r, group=2) for r in honest.rollouts[:half]]):
        finding = world.verdict(write_rollouts(replace(honest, rollouts=rollouts), 1), honest.lease)
        assert finding is not None
        assert finding.check == "format"


@pytest.mark.parametrize(
    "change", [{"version": 0}, {"version": 2}, {"version": 7}, {"weights": "a0" * 32}, {"weights": ""}]
)
def test_another_version_than_the_one_it_was_made_with_is_rejected(
    world: World, honest: Submission, change: dict[str, Any]
) -> None:
    finding = world.verdict_on(replace(honest, **change))
    assert finding is not None
    assert finding.check in ("version", "format")


def test_the_file_of_one_lease_is_rejected_under_any_other(world: World, honest: Submission) -> None:
    data = write_rollouts(honest, groups_with_signal(honest))
    assert world.verdict(data, honest.lease) is None
    for change in ({"submission": 1}, {"node": "other"}, {"run": "other"}, {"beacon": 8}, {"groups": 3}, {"step": 1}):
        other = replace(honest.lease, **change)
        finding = world.verdict(data, other)
        assert finding is not None
        assert finding.check == "format"
        if other.groups != honest.lease.groups or "node" in change:
            continue  # a draw belongs to no key; the coordinator takes a lease's file from its own node alone
        assert world.verdict_on(replace(honest, lease=other)) is not None
