"""Group-relative advantages: how much better each answer was than the others to the same prompt."""

import torch
from torch import Tensor

# Keeps a group whose rewards hardly differ from being divided by almost nothing; INTELLECT-2, arXiv:2505.07291.
STD_FLOOR = 1e-6

# Rewards closer than this are the same reward.
REWARD_TOLERANCE = 1e-8

# Rewards that are equal on paper differ by a few roundings when they were summed in another order.
ROUNDINGS = 4


def group_advantages(rewards_GS: Tensor, *, normalise: bool = True) -> Tensor:
    """Each reward minus its group's mean, in units of the group's standard deviation.

    The deviation is the population's (divided by S, not S - 1): the group is all there is, and a group of one gives 0
    rather than NaN. `normalise=False` leaves the deviation out, which is Dr. GRPO (arXiv:2503.20783): dividing by it
    makes nearly solved and nearly hopeless prompts weigh as much as undecided ones.

    A group without signal gives exactly 0, never amplified rounding noise.
    """
    centred_GS = rewards_GS - rewards_GS.mean(dim=1, keepdim=True)
    if normalise:
        centred_GS = centred_GS / (rewards_GS.std(dim=1, correction=0, keepdim=True) + STD_FLOOR)
    return torch.where(has_signal(rewards_GS)[:, None], centred_GS, 0.0)


def has_signal(rewards_GS: Tensor) -> Tensor:
    """True for each group whose rewards differ by more than rounding: the others teach nothing.

    A group with a reward that is not finite has no signal.
    """
    spread_G = rewards_GS.amax(dim=1) - rewards_GS.amin(dim=1)
    rounding_G = ROUNDINGS * torch.finfo(rewards_GS.dtype).eps * rewards_GS.abs().amax(dim=1)
    return spread_G > REWARD_TOLERANCE + rounding_G
