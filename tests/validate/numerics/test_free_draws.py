"""Bets on free draws are fair to every honest way, and win against tokens that were not drawn by the distribution."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.models.load import Policy, load
from shoal.validate.numerics.account import BAN_NATS
from shoal.validate.numerics.free_draws import FREE_BETS, Draws, free_nats
from shoal.validate.numerics.honest_answers import EXACT, Drawn, computed, honest_answers
from shoal.validate.numerics.observe import own_noise
from shoal.validate.numerics.ways import WAYS
from shoal.validate.recompute import TILTS, UNLIKELY
from tests.support.model_and_checks import model_dir

ANSWERS, PROMPT, TOKENS = 32, 6, 64
SPREAD = 2.0


@pytest.fixture(scope="module")
def policy() -> Policy:
    """bfloat16 weights, widened, and spread out so that some tokens are likely and others are not."""
    wide = load(model_dir("short"))
    wide.set_weights({name: w.bfloat16().float() for name, w in wide.weights().items()}, "bfloat16")
    return wide


@pytest.fixture(scope="module")
def texts(policy: Policy) -> list[Drawn]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, policy.vocab, (ANSWERS, PROMPT + TOKENS), generator=generator).tolist()
    return [Drawn(row[:PROMPT], row[PROMPT:], (7, number)) for number, row in enumerate(ids)]


def draws_of(logp_TV: Tensor, tokens_T: Tensor) -> Draws:
    p_TV = logp_TV.exp()
    return Draws(
        logp_TV.gather(1, tokens_T[:, None])[:, 0].numpy(),
        torch.stack([torch.logsumexp((1 + s) * logp_TV, dim=1) for s in TILTS], dim=1).numpy(),
        p_TV.pow(2).sum(1).numpy(),
        torch.stack([p_TV.where(logp_TV < np.log(u), 0.0).sum(1) for u in UNLIKELY], dim=1).numpy(),
        p_TV[:, 0].numpy(),
        (),
        logp_TV.shape[1],
    )


@pytest.mark.parametrize("way", [name for name in WAYS if name != "float32"])
def test_what_powers_of_probabilities_win_is_lost_on_average_in_every_way(
    policy: Policy, texts: list[Drawn], way: str
) -> None:
    """The expectation is computed, not drawn: by the rounded distribution, token for token."""
    temperature = 1 / SPREAD
    noise = own_noise(honest_answers(policy, WAYS["flash"], texts[:8], temperature)).gap
    truth, own = (computed(policy, kind, texts, temperature).scaled for kind in (EXACT, WAYS[way]))
    expected = dict.fromkeys(TILTS, 0.0)
    for true_TV, own_TV in zip(truth, own, strict=True):
        logp_TV, drawn_TV = (torch.log_softmax(x.double(), dim=1) for x in (true_TV, own_TV))
        tokens_T = torch.zeros(len(logp_TV), dtype=torch.long)
        won = free_nats([draws_of(logp_TV, tokens_T)], noise)
        for tilt in TILTS:
            # What is won on average: that of these tokens, with the expected power in the place of theirs.
            power = torch.logsumexp(drawn_TV + tilt * logp_TV, dim=1).sum() - tilt * logp_TV[:, 0].sum()
            expected[tilt] += won[f"tilt {tilt:g}"] + float(power)
    assert max(expected.values()) < 0, expected


def distributions(rng: np.random.Generator, tokens: int, vocab: int = 200) -> Tensor:
    return torch.log_softmax(torch.from_numpy(rng.normal(0, 2.5, (tokens, vocab))), dim=1)


def file_of(rng: np.random.Generator, noise: float, times: float) -> dict[str, float]:
    """A file of 1,024 tokens, drawn from distributions that are rounded, at so many times the temperature."""
    logp_TV = distributions(rng, 1024)
    rounded_TV = logp_TV + noise * torch.from_numpy(rng.standard_normal(logp_TV.shape))
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 30)))
    tokens_T = torch.multinomial(torch.softmax(rounded_TV / times, dim=1), 1, generator=generator)[:, 0]
    return free_nats([draws_of(logp_TV, tokens_T)], 0.03)


def test_an_honest_file_has_more_than_x_nats_less_often_than_e_to_the_minus_x() -> None:
    rng = np.random.default_rng(1)
    files = [file_of(rng, 0.045, 1.0) for _ in range(150)]
    for bet in FREE_BETS:
        won = np.array([file[bet] for file in files])
        assert all((won > x).mean() <= np.exp(-x) for x in (1, 2, 3)), bet


@pytest.mark.parametrize("times", [0.8, 1.2])
def test_another_temperature_is_found(times: float) -> None:
    rng = np.random.default_rng(2)
    assert max(sum(file_of(rng, 0.03, times)[bet] for _ in range(2)) for bet in FREE_BETS) > BAN_NATS


def test_answers_that_end_where_they_should_not_are_found() -> None:
    logp_TV = distributions(np.random.default_rng(3), 64)
    drawn = draws_of(logp_TV, torch.zeros(64, dtype=torch.long))
    early = replace(drawn, ends_T=np.full(64, 1e-4), ended_at=(63,))
    assert free_nats([early] * 8, 0.03)["ends"] > BAN_NATS
    assert free_nats([replace(early, ended_at=())] * 8, 0.03)["ends"] < 0
