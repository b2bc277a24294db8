"""From submissions to micro-batches: every sample once, under its own prompt, within the budget."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.rollout import Rollout, tokens_of
from shoal.protocol.submission import Submission
from shoal.train.batch import Group, MicroBatch, deal, pack, sort_groups
from tests.support.submissions import make_lease, make_rollout, make_submission

BUDGET = 40


def make_group(key: int, prompt: int, lengths: Sequence[int]) -> Group:
    """A group none of whose tokens, advantages or log-probs occur twice anywhere in a batch of such groups."""
    base = 10_000 * (key + 1)
    samples = []
    for number, length in enumerate(lengths):
        tokens = [base + 100 * (number + 1) + place for place in range(length)]
        samples.append(
            make_rollout(0, number, completion=tokens, logprobs=[-float(token) for token in tokens], prompt=[])
        )
    advantages = [base + 0.5 + number for number in range(len(lengths))]
    return Group(tokens_of(range(base, base + prompt)), samples, advantages, version=0)


@st.composite
def groups(draw: st.DrawFn) -> list[Group]:
    made = []
    for key in range(draw(st.integers(0, 6))):
        prompt = draw(st.integers(1, 20))
        # The longest sample must fit, as the config makes sure: its last token is not fed.
        lengths = draw(st.lists(st.integers(1, BUDGET - prompt + 1), min_size=1, max_size=8))
        made.append(make_group(key, prompt, lengths))
    return made


def loss_tokens(batch: MicroBatch) -> dict[int, list[tuple[int, int, float, float]]]:
    """For each sample of a micro-batch: (source, target, advantage, engine's log-prob) of its loss tokens, in order."""
    rows = zip(
        batch.sample_A.tolist(),
        batch.source_A.tolist(),
        batch.target_A.tolist(),
        batch.advantage_A.tolist(),
        batch.engine_logp_A.tolist(),
        strict=True,
    )
    samples: dict[int, list[tuple[int, int, float, float]]] = {}
    for sample, *rest in rows:
        samples.setdefault(sample, []).append((rest[0], rest[1], rest[2], rest[3]))
    return samples


@given(groups())
def test_every_sample_is_packed_exactly_once(made: list[Group]) -> None:
    packed = Counter(
        tuple(target for _, target, _, _ in tokens)
        for batch in pack(made, BUDGET)
        for tokens in loss_tokens(batch).values()
    )
    assert packed == Counter(tuple(sample.completion.tolist()) for group in made for sample in group.samples)


@given(groups())
def test_no_micro_batch_is_over_the_budget_or_empty(made: list[Group]) -> None:
    for batch in pack(made, BUDGET):
        assert 1 <= batch.ids_1T.shape[1] <= BUDGET
        assert batch.ids_1T.shape == (1, batch.layout.tokens)


@given(groups())
def test_every_token_keeps_the_advantage_and_log_prob_of_its_own_sample(made: list[Group]) -> None:
    wanted = {
        int(sample.completion[0]): (advantage, sample.logprobs.tolist())
        for group in made
        for sample, advantage in zip(group.samples, group.advantages, strict=True)
    }
    for batch in pack(made, BUDGET):
        for tokens in loss_tokens(batch).values():
            advantage, logprobs = wanted[tokens[0][1]]
            assert {a for _, _, a, _ in tokens} == {advantage}
            assert [p for _, _, _, p in tokens] == logprobs


@given(groups())
def test_each_token_is_predicted_from_the_one_before_it(made: list[Group]) -> None:
    prompts = {int(sample.completion[0]): group.prompt.tolist() for group in made for sample in group.samples}
    for batch in pack(made, BUDGET):
        ids = batch.ids_1T[0].tolist()
        for tokens in loss_tokens(batch).values():
            targets = [target for _, target, _, _ in tokens]
            sources = [ids[source] for source, _, _, _ in tokens]
            assert sources == [prompts[targets[0]][-1], *targets[:-1]]


@given(groups())
def test_positions_count_on_from_the_prompt_for_every_answer(made: list[Group]) -> None:
    prompts = {int(sample.completion[0]): group.prompt.tolist() for group in made for sample in group.samples}
    for batch in pack(made, BUDGET):
        positions = batch.layout.positions_1T[0].tolist()
        for tokens in loss_tokens(batch).values():
            size = len(prompts[tokens[0][1]])
            assert [positions[source] for source, _, _, _ in tokens] == list(range(size - 1, size - 1 + len(tokens)))


def test_the_prompt_of_a_group_is_packed_once() -> None:
    [batch] = pack([make_group(0, prompt=10, lengths=[3, 5, 1])], BUDGET)
    # 10 of the prompt, then 2, 4 and 0: the last token of an answer is not fed.
    assert batch.ids_1T.shape == (1, 16)


def test_a_group_larger_than_the_budget_is_cut_with_a_prompt_for_each_piece() -> None:
    # 10 + 4 x 15 tokens; two answers fit beside the prompt, a third does not.
    batches = pack([make_group(0, prompt=10, lengths=[16, 16, 16, 16])], BUDGET)
    assert [batch.ids_1T.shape[1] for batch in batches] == [40, 40]
    assert all(batch.ids_1T[0, :10].tolist() == list(range(10_000, 10_010)) for batch in batches)
    assert [len(loss_tokens(batch)) for batch in batches] == [2, 2]


def test_a_sample_that_fills_the_budget_exactly_fits() -> None:
    [batch] = pack([make_group(0, prompt=20, lengths=[21])], BUDGET)
    assert batch.ids_1T.shape == (1, BUDGET)


def test_a_sample_that_no_budget_holds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"length 41, allowed 1\.\.40"):
        pack([make_group(0, prompt=20, lengths=[22])], BUDGET)


@given(groups(), st.integers(1, 6), st.integers(0, 3))
def test_dealing_gives_every_group_to_exactly_one_batch_of_nearly_equal_size(
    made: list[Group], parts: int, seed: int
) -> None:
    dealt = deal(made, parts, Random(seed))
    assert sorted(group.prompt[0] for part in dealt for group in part) == [group.prompt[0] for group in made]
    sizes = [len(part) for part in dealt]
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1


def test_dealing_follows_from_the_seed_and_leaves_its_input_alone() -> None:
    made = [make_group(key, 3, [2, 2]) for key in range(20)]
    kept = list(made)
    assert deal(made, 3, Random(5)) == deal(made, 3, Random(5)) != deal(made, 3, Random(6))
    assert made == kept


# Sorting


def submission_of(*rewards: Sequence[float | None], version: int = 3) -> Submission:
    """A submission with a group for each list of rewards; None is a scorer that failed."""
    samples: list[Rollout] = []
    for group, row in enumerate(rewards):
        for sample, reward in enumerate(row):
            error = "" if reward is not None else f"group {group} sample {sample} broke"
            samples.append(make_rollout(group, sample, reward=None if reward is None else float(reward), error=error))
    return replace(make_submission(make_lease(groups=len(rewards)), version=version), rollouts=samples)


def test_groups_without_signal_are_dropped_and_counted_by_kind() -> None:
    result = sort_groups(
        [submission_of([1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]), submission_of([0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5])],
        normalise=True,
    )
    assert (result.seen, result.all_right, result.all_wrong, result.failed) == (5, 1, 3, 0)
    assert [[s.reward for s in group.samples] for group in result.signal] == [[0, 1, 0, 1]]


def test_without_the_online_filter_scored_groups_fill_a_step_and_those_without_signal_push_nowhere() -> None:
    result = sort_groups([submission_of([1, 1, 1, 1], [0, 1, 0, 1], [0, None, 0, 0], [0, 0, 0, 0])], normalise=True)
    assert (result.filling(online_filter=True), result.filling(online_filter=False)) == (1, 4)
    assert [s.reward for group in result.trained(online_filter=True) for s in group.samples] == [0, 1, 0, 1]
    everything = result.trained(online_filter=False)
    assert [[s.reward for s in group.samples] for group in everything] == [[0, 1, 0, 1], [1] * 4, [0] * 4]
    assert [group.advantages for group in everything[1:]] == [[0.0] * 4, [0.0] * 4]


def test_advantages_are_the_trainers_own_and_not_the_workers() -> None:
    submission = submission_of([0, 1, 0, 1])
    lied = replace(submission, rollouts=[replace(r, advantage=100.0) for r in submission.rollouts])
    [group] = sort_groups([lied], normalise=True).signal
    assert group.advantages == pytest.approx([-1, 1, -1, 1], abs=1e-5)
    [group] = sort_groups([lied], normalise=False).signal
    assert group.advantages == pytest.approx([-0.5, 0.5, -0.5, 0.5])


def test_a_group_with_a_failed_scorer_is_dropped_with_the_first_error() -> None:
    result = sort_groups([submission_of([0, None, None, 1], [0, 1, 0, 1], [None, 0, 1, 0])], normalise=True)
    assert (result.seen, result.failed, len(result.signal)) == (3, 2, 1)
    assert result.error == "group 0 sample 1 broke"


def test_what_the_policy_earns_is_counted_with_and_without_signal() -> None:
    result = sort_groups([submission_of([1, 1, 1, 1], [0, 1, 0, 0.5], [None, 0, 0, 0])], normalise=True)
    # Eleven scored samples: 4 + 1 + 0.5 in reward, five of them solved.
    assert result.reward == pytest.approx(5.5 / 11)
    assert result.solve_rate == pytest.approx(5 / 11)


def test_groups_keep_their_prompt_and_the_version_they_were_made_with() -> None:
    result = sort_groups([submission_of([0, 1, 0, 1], [1, 0, 0, 0], version=2)], normalise=True)
    assert [(group.version, group.prompt.tolist()) for group in result.signal] == [(2, [5, 6, 7]), (2, [5, 6, 8])]
    assert [[s.group for s in group.samples] for group in result.signal] == [[0] * 4, [1] * 4]


def test_nothing_sorted_is_nothing_and_no_division_by_zero() -> None:
    result = sort_groups([], normalise=True)
    assert (result.seen, result.signal, result.reward, result.solve_rate) == (0, [], 0.0, 0.0)


def test_every_scorer_failing_is_no_division_by_zero() -> None:
    result = sort_groups([submission_of([None, None], [None, None])], normalise=True)
    assert (result.failed, result.reward, result.solve_rate) == (2, 0.0, 0.0)


rewards = st.lists(st.sampled_from([0.0, 0.25, 1.0, None]), min_size=4, max_size=4)


@given(st.lists(rewards, min_size=1, max_size=6))
def test_every_group_is_of_exactly_one_kind(rows: list[list[float | None]]) -> None:
    result = sort_groups([submission_of(*rows)], normalise=True)
    assert result.seen == len(rows)
    assert len(result.signal) + result.all_right + result.all_wrong + result.failed == result.seen
    for group in result.signal:
        assert sum(group.advantages) == pytest.approx(0, abs=1e-4)
        assert all(torch.tensor(group.advantages).isfinite())
