"""Settings per request: each row is drawn as if it were alone, and the run's own draws stay as they were."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.generate.decoding import Decoding, draw_rows, nucleus
from shoal.generate.engine import Request
from shoal.generate.sampling import NoiseStream
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy, load
from tests.support.architectures import save_random

VOCAB = 40
SETTINGS = (Decoding(0.0), Decoding(1.0), Decoding(0.7), Decoding(1.0, 0.5), Decoding(2.0, 0.9))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    directory: Path = save_random(tmp_path_factory.mktemp("decoding"), "llama")
    return load(directory)


def test_rows_with_different_settings_are_drawn_as_if_each_were_alone() -> None:
    logits_BV = 3 * torch.randn(25, VOCAB, generator=torch.Generator().manual_seed(1))
    decodings = [SETTINGS[row % len(SETTINGS)] for row in range(25)]
    bits = [None if own.is_greedy else NoiseStream(7, row, VOCAB).next() for row, own in enumerate(decodings)]
    together = draw_rows(logits_BV, decodings, bits)
    for row in range(25):
        alone = draw_rows(logits_BV[row : row + 1], [decodings[row]], [bits[row]])
        assert (int(together[0][row]), float(together[1][row])) == (int(alone[0]), float(alone[1]))
    assert together[0][0] == logits_BV[0].argmax()


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=30), st.floats(0.001, 0.999))
@settings(max_examples=60)
def test_a_nucleus_is_the_smallest_set_of_likeliest_tokens_that_has_the_probability(
    logits: list[float], top_p: float
) -> None:
    left_V = torch.isfinite(nucleus(torch.tensor([logits]), top_p)[0])
    probs_V = torch.tensor(logits).softmax(0)
    kept, dropped = probs_V[left_V], probs_V[~left_V]
    assert len(kept) >= 1
    assert float(kept.sum()) >= top_p - 1e-5
    assert float(kept.sum() - kept.min()) < top_p + 1e-5
    assert not len(dropped) or float(dropped.max()) <= float(kept.min())


def test_a_request_with_the_engines_own_settings_draws_what_the_engine_draws(policy: Policy) -> None:
    plain = [Request((5, 6, 7), 9, sample, 12) for sample in range(6)]
    own = [replace(request, decoding=Decoding(0.8)) for request in plain]
    greedy = [replace(request, decoding=Decoding(0.0)) for request in plain]
    engine = TorchEngine(policy, max_batch=4, max_len=32, temperature=0.8, proofs=False)
    expected = {c.key: c for c in engine.generate(plain)}
    found = {c.key: c for c in engine.generate([*own, *greedy])}
    for key, answer in expected.items():
        assert found[key].tokens == answer.tokens
        assert found[key].logprobs == pytest.approx(answer.logprobs, abs=1e-5)  # other rows beside it: other sums
    assert len({tuple(found[key].tokens) for key in range(6, 12)}) == 1


def test_tokens_of_streamed_requests_are_told_while_they_run_and_of_no_others(policy: Policy) -> None:
    engine = TorchEngine(policy, max_batch=4, max_len=64, temperature=1.0, proofs=False)
    engine.submit(1, Request((5, 6), 9, 0, 8, streamed=True))
    engine.submit(2, Request((5, 6), 9, 0, 8))
    told: list[list[int]] = []
    done = []
    while engine.running:
        done += engine.step()
        for key, tokens, logprobs in engine.so_far():
            assert key == 1
            assert len(tokens) == len(logprobs)
            told.append(list(tokens))
    whole = next(c.tokens for c in done if c.key == 1)
    assert [len(tokens) for tokens in told] == sorted({len(tokens) for tokens in told})
    assert len(told) >= len(whole) - 2
    assert all(whole[: len(tokens)] == tokens for tokens in told)
