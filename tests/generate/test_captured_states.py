"""Proofs grow from what vLLM samples, step by step, and a device is waited for as seldom as that allows."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from shoal import toploc
from shoal.devices import META, to_numpy
from shoal.generate import proof_builder
from shoal.generate.proof_builder import CHUNK
from shoal.generate.vllm.asked import Asked
from shoal.generate.vllm.captured_states import CapturedStates
from shoal.generate.vllm.draw import Noise, Row

HIDDEN, VOCAB = 48, 16


def generate(captured: CapturedStates, answers: int, tokens: int) -> list[Tensor]:
    """Answers side by side, in rows that change from step to step; the states of each."""
    model = SimpleNamespace(compute_logits=lambda states_BD: states_BD)
    captured.watch(model, builds=True)
    generator = torch.Generator().manual_seed(1)
    noises = [Noise(Asked(number, 7, number, 1.0, proof=True), VOCAB) for number in range(answers)]
    states_ATD = torch.randn(answers, tokens, HIDDEN, generator=generator).bfloat16()
    for position in range(tokens):
        order = torch.randperm(answers, generator=generator)
        model.compute_logits(states_ATD[order, position])
        captured.hand_over([Row(row, noises[int(own)], position) for row, own in enumerate(order)], answers)
    return list(states_ATD)


@pytest.mark.parametrize("tokens", [1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_proofs_are_those_of_all_states_and_none_is_held_longer_than_a_chunk(tokens: int) -> None:
    captured = CapturedStates()
    states = generate(captured, 5, tokens)
    assert [captured.take(number, tokens) for number in range(5)] == [toploc.build(own) for own in states]
    assert captured.most_held == min(tokens, CHUNK)


def test_chunks_that_end_in_one_step_cost_one_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = [0]

    def counted(x: Tensor) -> object:
        waits[0] += 1
        return to_numpy(x)

    monkeypatch.setattr(proof_builder, "to_numpy", counted)
    monkeypatch.setattr(proof_builder, "CPU", META)  # as if they were on a GPU
    generate(CapturedStates(), 40, 3 * CHUNK)
    assert waits == [2]
