"""Groups of random rollouts for the steps that train."""

from random import Random

import torch

from shoal.config import RunConfig
from shoal.protocol.rollout import bare_rollout
from shoal.rl.advantages import group_advantages
from shoal.train.batch import Group

OLD = -1  # a version that is not here to compare log-probs with
TOKENS = 200


def random_groups(config: RunConfig, *, full: bool) -> list[Group]:
    """A step's groups; `full` ones have the longest prompts and answers, others uneven ones."""
    rng, sampling = Random(0), config.sampling
    groups = []
    for number in range(config.train.groups_per_step * config.train.optimizer_steps):
        longest = sampling.max_prompt_tokens
        prompt = [rng.randrange(2, TOKENS) for _ in range(longest if full else rng.randint(1, longest))]
        lengths = [
            sampling.max_new_tokens if full else rng.randint(1, sampling.max_new_tokens)
            for _ in range(sampling.group_size)
        ]
        answers = [[rng.randrange(2, TOKENS) for _ in range(length)] for length in lengths]
        samples = [bare_rollout(prompt, answer, [-5.0] * len(answer)) for answer in answers]
        advantages_1S = group_advantages(torch.tensor([[rng.random() for _ in samples]]))
        groups.append(Group(samples[0].prompt, samples, advantages_1S[0].tolist(), OLD, number))
    return groups
