import math

import pytest
import torch

from shoal.rl.advantages import group_advantages, has_signal


def test_advantages_are_in_units_of_the_population_deviation() -> None:
    # 1 0 0 0: mean 1/4, variance ((3/4)^2 + 3 (1/4)^2) / 4 = 3/16, deviation sqrt(3)/4.
    # The right answer: (3/4) / (sqrt(3)/4) = sqrt(3); the others: -(1/4) / (sqrt(3)/4) = -1/sqrt(3).
    advantages_GS = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    expected_GS = torch.tensor([[math.sqrt(3)] + [-1 / math.sqrt(3)] * 3])
    torch.testing.assert_close(advantages_GS, expected_GS, rtol=1e-5, atol=0)


def test_the_deviation_is_floored_at_one_millionth() -> None:
    # 0 and 2e-6: mean 1e-6, deviation 1e-6, so +-1e-6 / (1e-6 + 1e-6) = +-1/2 rather than +-1.
    advantages_GS = group_advantages(torch.tensor([[0.0, 2e-6]], dtype=torch.float64))
    torch.testing.assert_close(advantages_GS, torch.tensor([[-0.5, 0.5]], dtype=torch.float64))


def test_without_normalising_advantages_are_only_centred() -> None:
    # 3 1: mean 2. 10 0 and 20 0 differ in scale and keep it.
    advantages_GS = group_advantages(torch.tensor([[3.0, 1.0], [10.0, 0.0], [20.0, 0.0]]), normalise=False)
    torch.testing.assert_close(advantages_GS, torch.tensor([[1.0, -1.0], [5.0, -5.0], [10.0, -10.0]]))


def test_each_group_is_measured_against_itself_alone() -> None:
    both_GS = group_advantages(torch.tensor([[1.0, 0.0], [100.0, 50.0]]))
    torch.testing.assert_close(both_GS, torch.tensor([[1.0, -1.0], [1.0, -1.0]]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("normalise", [True, False])
def test_a_group_of_equal_rewards_gives_exactly_zero(normalise: bool) -> None:
    # 16 times 0.1 has a float32 mean that is not 0.1: without care the rounding would be taught.
    rewards_GS = torch.full((3, 16), 0.1) * torch.tensor([[0.0], [1.0], [7.0]])
    assert torch.equal(group_advantages(rewards_GS, normalise=normalise), torch.zeros(3, 16))


def test_a_group_of_one_gives_zero() -> None:
    assert torch.equal(group_advantages(torch.tensor([[5.0]])), torch.tensor([[0.0]]))


def test_a_group_has_signal_when_one_reward_differs() -> None:
    rewards_GS = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [-0.3, -0.3, -0.2997]])
    assert has_signal(rewards_GS).tolist() == [False, False, True, True]


def test_rewards_that_differ_by_rounding_have_no_signal() -> None:
    next_after_one = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)).item()
    rewards_GS = torch.tensor([[1.0, next_after_one], [0.0, 1e-9], [0.0, 1e-7], [1000.0, 1000.0 + 6.2e-5]])
    assert has_signal(rewards_GS).tolist() == [False, False, True, False]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_silences_its_own_group_only(poison: float) -> None:
    rewards_GS = torch.tensor([[poison, 1.0], [1.0, 0.0]])
    assert has_signal(rewards_GS).tolist() == [False, True]
    assert group_advantages(rewards_GS)[0].tolist() == [0.0, 0.0]
