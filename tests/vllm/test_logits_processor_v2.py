"""The V2 interface draws as specified: the processor is built as vLLM builds it, the batch is laid out by hand."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm has it")

from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import build_custom_logits_processors

from shoal import toploc
from shoal.doctor.steps.vllm_v2_by_hand import batch_of, processor_of, runner_states
from shoal.generate.sampling import NoiseStream, choose
from shoal.generate.vllm.asked import Asked
from shoal.generate.vllm.captured_states import CAPTURED

VOCAB = 300


def params(asked: Asked) -> SamplingParams:
    return SamplingParams(temperature=0.0, extra_args=asked.extra_args)


def test_tokens_log_probs_and_proofs_are_as_specified_whatever_row_a_request_is_in() -> None:
    processor = processor_of(runner_states([5, 9, 3], VOCAB))
    asked = [Asked(100 + slot, (1 << 63) + slot, slot, 0.7, proof=True) for slot in range(3)]
    assert [processor.add_request(slot, params(asked[slot])) for slot in range(3)] == [True] * 3
    generator = torch.Generator().manual_seed(0)
    model = SimpleNamespace(compute_logits=lambda states_BD: states_BD)
    CAPTURED.watch(model, builds=True)
    states: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    for step in range(40):
        order = [int(slot) for slot in torch.randperm(3, generator=generator)]
        logits = 4 * torch.randn(3, VOCAB, generator=generator)
        hidden = torch.randn(3, 32, generator=generator)
        model.compute_logits(hidden)
        for row, slot in enumerate(order):
            states[slot].append(hidden[row])
        left = processor.apply(logits.clone(), batch_of(order, [[5, 9, 3][slot] + step for slot in order]))
        for row, slot in enumerate(order):
            bits = NoiseStream(asked[slot].seed, asked[slot].sample, VOCAB, step).next()
            token, logp = choose(logits[row : row + 1] / 0.7, [bits])
            assert left[row].argmax() == token[0]
            assert left[row].max() == logp[0]
    for slot in range(3):
        assert CAPTURED.take(100 + slot, 40) == toploc.build(torch.stack(states[slot]).bfloat16())


def test_a_row_in_the_middle_of_a_prompt_is_left_alone_and_has_no_place_in_the_proof() -> None:
    processor = processor_of(runner_states([50], VOCAB))
    processor.add_request(0, params(Asked(7, 1, 0, 1.0, proof=True)))
    model = SimpleNamespace(compute_logits=lambda states_BD: states_BD)
    CAPTURED.watch(model, builds=True)
    logits, last = torch.randn(1, VOCAB), torch.randn(1, 16)
    model.compute_logits(torch.zeros(1, 16))
    assert torch.equal(processor.apply(logits.clone(), batch_of([0], [49])), logits)
    model.compute_logits(last)
    processor.apply(logits.clone(), batch_of([0], [50]))
    assert CAPTURED.take(7, 1) == toploc.build(last.bfloat16())


def test_a_slot_that_is_used_again_has_nothing_of_the_request_before() -> None:
    processor = processor_of(runner_states([4], VOCAB))
    processor.add_request(0, params(Asked(1, 1, 0, 1.0, proof=False)))
    assert not processor.add_request(0, SamplingParams(temperature=0.0))
    logits = torch.randn(1, VOCAB)
    assert torch.equal(processor.apply(logits.clone(), batch_of([0], [4])), logits)


@pytest.mark.parametrize(
    "other", ["shoal.generate.vllm.logits_processor_v1:SeededNoiseV1"], ids=["a class of the other interface"]
)
def test_vllm_refuses(other: str) -> None:
    with pytest.raises(ValueError, match="is not a subclass"):
        build_custom_logits_processors(None, runner_states([4], VOCAB), False, [other])
