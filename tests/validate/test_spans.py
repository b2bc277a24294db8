"""Answers that go on with a newer version: each version's tokens are computed with it, and no other claim passes."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from shoal.protocol.rates.shipped import default_rates
from shoal.protocol.spans import SpanLease
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission, groups_with_signal
from shoal.protocol.verdict import Finding
from shoal.rundir import RunDir
from shoal.train.batch import pack, sort_groups, staleness
from shoal.validate.calibrate.answers import Answers
from shoal.validate.calibrate.tally import Tally
from shoal.validate.evidence.bundle import bundle_of, read_bundle, write_bundle
from shoal.validate.numerics.account import BAN_NATS
from shoal.validate.numerics.bets import Bets, Noise
from shoal.validate.numerics.judge import VOID_NATS, Weighed
from shoal.validate.spans import Part, parts_of
from tests.support.in_flight import early_lease, flown
from tests.support.model_and_checks import VERSIONS, World, build_world, weights

OTHER_STATES = {"sampling", "logprobs", "computation"}


@pytest.fixture(scope="module")
def world() -> World:
    return build_world("long", in_flight=True)


@pytest.fixture(scope="module")
def honest(world: World) -> Submission:
    return flown(world, early_lease(world))


def test_a_file_of_two_versions_is_accepted_and_has_tokens_of_both(world: World, honest: Submission) -> None:
    assert [(span.first, span.version) for span in honest.later] == [(32, 1), (64, 1)]
    assert [(span.version, span.first) for span in honest.spans] == [(0, 0), (1, 32)]
    assert max(len(rollout.completion) for rollout in honest.rollouts) > 64
    assert world.verdict_on(honest) is None


def test_what_is_drawn_in_spans_by_one_version_is_the_same_with_and_without_a_change(world: World) -> None:
    """With the same weights on both sides of a change a file is the one that is made in turns, token for token."""
    lease, newer = early_lease(world), weights("long")[1]
    maker = world.maker()
    maker.span_of = lambda _lease, first, version: SpanLease(first, version, VERSIONS[1].root, beacon=1000 + first)
    whole = maker.make(replace(lease, version=1), VERSIONS[1])
    pieces = flown(world, lease, both=(newer, newer))
    for one, other in zip(whole.rollouts, pieces.rollouts, strict=True):
        assert np.array_equal(one.completion, other.completion)
        assert np.allclose(one.logprobs, other.logprobs, atol=1e-4)
        assert len(one.proof) == len(other.proof)


def claims(honest: Submission, *versions: int) -> tuple[SpanLease, ...]:
    """The file's spans, said to be other versions'."""
    pairs = zip(honest.later, versions, strict=True)
    return tuple(replace(span, version=number, weights=VERSIONS[number].root) for span, number in pairs)


@pytest.mark.parametrize("versions", [(0, 0), (0, 1)], ids=["one version for all", "a later change than there was"])
def test_a_false_claim_about_who_drew_what_is_caught(
    world: World, honest: Submission, versions: tuple[int, int]
) -> None:
    found = world.verdict_on(replace(honest, later=claims(honest, *versions)))
    assert found is not None
    assert found.check in OTHER_STATES


def test_noise_that_the_coordinator_did_not_draw_is_caught(world: World, honest: Submission) -> None:
    """A beacon of one's own gives other noise; a false one beside the right answers, too, is another claim."""
    found = world.verdict_on(replace(honest, later=(replace(honest.later[0], beacon=5), *honest.later[1:])))
    assert found is not None
    assert found.check == "sampling"


def test_answers_that_change_where_each_of_them_likes_are_caught(world: World) -> None:
    """Every second answer keeps the older version for a span more, and the file names one version for all."""
    found = world.verdict_on(flown(world, early_lease(world), stays=lambda number: number % 2 == 0))
    assert found is not None
    assert found.check in OTHER_STATES


def test_a_version_that_was_never_published_is_named(world: World, honest: Submission) -> None:
    found = world.verdict_on(replace(honest, later=tuple(replace(span, weights="ee" * 32) for span in honest.later)))
    assert found is not None
    assert found.check == "version"
    assert "version 1 is what was published under that number" in found.rule


def test_evidence_names_the_versions_and_is_read_as_it_was_written(
    world: World, honest: Submission, tmp_path: Path
) -> None:
    finding = Finding("sampling", "rule", "claimed", "found", 0)
    bundle = bundle_of(world.config, tmp_path / "none", honest.lease, honest, finding)
    write_bundle(bundle, tmp_path / "step-000001-0000.json")
    again = read_bundle(tmp_path / "step-000001-0000.json")
    assert again.submission.later == honest.later
    assert next(world.checks.costly([again.submission], world.load)) is None
    world.load(VERSIONS[1])


def test_tokens_are_as_old_as_the_version_that_drew_them(honest: Submission) -> None:
    groups = sort_groups([honest], normalise=True)
    chosen = groups.signal + groups.flat
    lengths = [len(sample.completion) for group in chosen for sample in group.samples]
    old = sum(min(length, 32) for length in lengths)
    assert staleness(1, chosen).mean == pytest.approx(old / sum(lengths))
    assert staleness(1, chosen).largest == 1
    drawn_A = np.concatenate([batch.version_A.numpy() for batch in pack(chosen, 4096)])
    assert (drawn_A == 0).sum() == old
    assert groups_with_signal(honest) == len(groups.signal)


def test_an_answer_has_not_ended_where_its_version_changes(world: World, honest: Submission) -> None:
    """With free sampling, an end that nobody drew would be evidence against an honest machine."""
    ended = {n for n, rollout in enumerate(honest.rollouts) if rollout.finish == "eos" and len(rollout.completion) > 32}
    rollouts = [replace(rollout, finish="eos") for rollout in honest.rollouts]  # whatever the model draws
    first, second = parts_of(replace(honest, rollouts=rollouts), world.checks.policy.hidden_size)
    for number, sample in zip(first.numbers, first.samples, strict=True):
        went_on = len(honest.rollouts[number].completion) > 32
        assert sample.finish == ("length" if went_on else "eos")
    assert all(sample.finish == "eos" for sample in second.samples)
    assert ended <= set(second.numbers)


def test_files_of_other_machines_are_calibrated_version_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    world = build_world("long", "bfloat16", in_flight=True, max_new_tokens=48)
    made, numbers = flown(world, early_lease(world)), world.checks.numbers
    assert numbers is not None

    def count(versions: dict[int, Version]) -> tuple[Tally, float]:
        run = cast("RunDir", SimpleNamespace(config=world.config, path=Path("run"), channel=lambda: None))
        answers = Answers(run, _policy=world.checks.policy)

        def load(_: Answers, part: Part) -> Noise:
            world.load(versions[part.version.number])
            numbers.measure(part.version.root, world.checks._prompts)
            assert numbers.noise is not None
            return numbers.noise

        monkeypatch.setattr(Answers, "_load", load)
        weighed = answers._count(made, "one/two", Bets(default_rates()))
        return answers.tallies["one/two"], weighed.total

    tally, nats = count({version.number: version for version in VERSIONS})
    wrong, _ = count(dict.fromkeys((0, 1), VERSIONS[0]))
    assert tally.tokens == wrong.tokens == sum(len(rollout.completion) for rollout in made.rollouts)
    assert nats < VOID_NATS
    assert (tally.squares / tally.tokens) ** 0.5 < 2 < (wrong.squares / wrong.tokens) ** 0.5


def test_in_bfloat16_each_version_is_weighed_with_its_own_weights() -> None:
    """What is weighed with other weights than its own, be it the first version's tokens or the second's, is blame."""
    world = build_world("long", "bfloat16", in_flight=True, max_new_tokens=48)
    made = flown(world, early_lease(world))

    def nats(wrong: int | None) -> Weighed:
        def load(version: Version) -> None:
            world.load(version)
            if version.number == wrong:
                generator = torch.Generator().manual_seed(0)
                own = world.checks.policy.weights().items()
                off = {name: w + 0.02 * torch.randn(w.shape, generator=generator) for name, w in own}
                world.checks.policy.set_weights(off, "other weights")

        return world.checks.weigh(made, alternatives=(), load=load)

    right = nats(None)
    assert right.tokens == sum(len(rollout.completion) for rollout in made.rollouts)
    assert right.total < VOID_NATS
    assert nats(0).total > BAN_NATS
    assert nats(1).total > BAN_NATS
