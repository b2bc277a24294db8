"""Other weights for a while: in place, tensor by tensor, and what was there comes back to the bit."""

from functools import partial
from pathlib import Path

import pytest
import torch

from shoal.errors import ModelError
from shoal.models.load import Policy, load_as
from shoal.models.weights import MappedWeights, read_weights
from shoal.plan.live_bytes import LiveBytes
from shoal.validate.numerics.alternatives import ROUNDED, with_weights


@pytest.fixture
def folder(tmp_path: Path, tiny_policy: Policy) -> Path:
    """A version whose files are float32, of a run whose weights are bfloat16."""
    target = tmp_path / "model"
    tiny_policy.model.save_pretrained(target)
    tiny_policy.tokenizer.save_pretrained(target)
    return target


@pytest.fixture
def judge(folder: Path) -> Policy:
    return load_as(folder, "bfloat16", "float32")


def rounded(name: str, _parameter: str, tensor: torch.Tensor) -> torch.Tensor:
    return ROUNDED[name](tensor)


def copies(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.weights().items()}


def same(policy: Policy, weights: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, weights[name]) for name, tensor in policy.weights().items())


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("name", ROUNDED)
def test_weights_come_back_to_the_bit(judge: Policy, folder: Path, name: str, mapped: bool) -> None:
    before, own = copies(judge), read_weights(folder, "bfloat16") if mapped else None
    expected = {parameter: ROUNDED[name](tensor) for parameter, tensor in before.items()}
    with with_weights(judge, lambda _, tensor: ROUNDED[name](tensor), name, own):
        assert same(judge, expected)
        assert not same(judge, before)
    assert same(judge, before)


@pytest.mark.parametrize("mapped", [True, False])
def test_weights_come_back_when_a_change_fails_half_way(judge: Policy, folder: Path, mapped: bool) -> None:
    before, own = copies(judge), read_weights(folder, "bfloat16") if mapped else None
    last = list(before)[-1]

    def change(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor[:1] if name == last else tensor * 2

    with (
        pytest.raises(ModelError, match=rf"other: {last} has shape"),
        with_weights(judge, change, "other", own),
    ):
        pass
    assert same(judge, before)


def test_other_weights_take_the_memory_of_one_tensor(judge: Policy, folder: Path) -> None:
    """Beside four bytes per parameter; without the version's files there is a copy of all."""
    weights = judge.weights()
    model, largest = (f(4 * tensor.numel() for tensor in weights.values()) for f in (sum, max))
    peaks = {}
    for own in (read_weights(folder, "bfloat16"), None):
        with LiveBytes(weights.values()) as live:
            for name in ROUNDED:
                with with_weights(judge, partial(rounded, name), "other", own):
                    pass
        peaks[own is None] = live.peak
    assert peaks[False] <= model + 3 * largest
    assert peaks[True] >= 2 * model


def test_a_version_of_another_format_is_converted_one_tensor_at_a_time(folder: Path) -> None:
    own = read_weights(folder, "bfloat16")
    assert isinstance(own, MappedWeights)
    shapes, largest = own.shapes(), max(size.numel() for size in own.shapes().values())
    with LiveBytes() as live:
        for name in own:
            assert own[name].dtype == torch.bfloat16
    assert len(shapes) == len(own)
    assert live.peak <= 2 * (2 + 4) * largest  # the file's own pages are seen once as well
