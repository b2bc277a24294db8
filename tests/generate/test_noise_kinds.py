"""Noise kinds: a stock server's tokens can be redrawn by a judge, and only under the kind that the run names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from shoal.config import SamplingConfig
from shoal.generate.noise_kinds import VllmNoise, as_words, open_noise, server_seed
from shoal.generate.sampling import gumbel
from shoal.protocol.submission import Submission
from tests.support.model_and_checks import World, build_world, lease_of

VECTORS = Path(__file__).parents[1] / "data" / "vllm_0_32_noise.json"


def vectors() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(VECTORS.read_text())["rows"]
    return rows


@pytest.mark.parametrize("row", vectors(), ids=lambda row: f"seed {row['seed']}")
def test_hashes_and_noise_are_those_of_vllms_own_kernel(row: dict[str, Any]) -> None:
    """Recorded from its kernel in Triton's interpreter; tests/vllm runs that kernel itself."""
    hashes = VllmNoise(row["seed"], len(row["hashes"]), row["position"]).hashes()
    assert hashes.tolist() == row["hashes"]
    assert np.abs(gumbel(as_words(hashes)) - np.array(row["noise"])).max() < 1e-5


def vllm_noise(hashes: Any) -> Any:
    """vLLM's float32 arithmetic, written out: a series below a quarter, a logarithm with a floor above it."""
    f = np.float32
    u = (hashes >> np.uint32(16)).astype(f) * f(2**-16) + ((hashes & np.uint32(65535)).astype(f) + f(0.5)) * f(2**-32)
    series = np.zeros_like(u)
    for power in range(8, 0, -1):
        series = f(1 / power) + u * series
    direct = np.log(np.maximum(f(1) - u, f(2**-24)))
    return -np.log(-np.where(u < f(0.25), -u * series, direct))


def test_noise_keeps_to_vllms_rounding_also_at_the_ends_of_the_range() -> None:
    ends = np.concatenate([np.arange(4096), 2**32 - 1 - np.arange(4096), 2**30 - 2048 + np.arange(4096)])
    hashes = np.concatenate([ends, np.random.default_rng(1).integers(0, 2**32, 100_000)]).astype(np.uint32)
    off = np.abs(gumbel(as_words(hashes)) - vllm_noise(hashes))
    assert off.max() < 4e-4
    assert off[vllm_noise(hashes) > -2].max() < 1e-5
    # Without the rounding, noise near the lower end would be off by a third of a nat.
    assert np.abs(gumbel(~hashes) - vllm_noise(hashes)).max() > 0.3


def test_each_sample_and_position_has_noise_of_its_own_and_it_is_gumbels() -> None:
    first = open_noise("vllm-0.32", 7, 0, 5000, 12)
    rows = [first.next(), first.next(), open_noise("vllm-0.32", 7, 1, 5000, 12).next()]
    assert not any(np.array_equal(a, b) for a, b in ((rows[0], rows[1]), (rows[0], rows[2])))
    assert np.array_equal(rows[1], open_noise("vllm-0.32", 7, 0, 5000, 13).next()), "the position is the prompt's end"
    values = gumbel(np.concatenate(rows))
    assert abs(values.mean() - 0.5772) < 0.05
    assert abs(values.var() - np.pi**2 / 6) < 0.1


def test_a_servers_seed_is_never_one_that_vllm_takes_as_no_seed() -> None:
    seeds = {server_seed(lease, sample) for lease in (0, 1, 2**64 - 1) for sample in range(100)}
    assert len(seeds) == 300
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.fixture(scope="module")
def stock() -> World:
    return build_world("long", noise="vllm-0.32")


@pytest.fixture(scope="module")
def ours() -> World:
    return build_world("long")


def test_a_judge_accepts_what_the_named_kind_draws_and_rejects_another_kind(stock: World, ours: World) -> None:
    honest = stock.honest()
    assert stock.verdict_on(honest) is None
    drawn: Submission = ours.honest()
    assert [r.completion.tolist() for r in drawn.rollouts] != [r.completion.tolist() for r in honest.rollouts]
    for judge, file in ((stock, drawn), (ours, honest)):
        finding = judge.verdict_on(file)
        assert finding is not None
        assert finding.check == "sampling"


def test_an_attack_is_caught_under_a_servers_noise_too(stock: World) -> None:
    lease = lease_of(stock)
    finding = stock.verdict(stock.file(stock.maker("temperature"), lease), lease)
    assert finding is not None
    assert finding.check == "sampling"


def test_a_kind_of_noise_without_seeded_sampling_is_refused() -> None:
    with pytest.raises(ValidationError, match="each worker draws its own noise"):
        SamplingConfig(mode="free", noise="vllm-0.32")
