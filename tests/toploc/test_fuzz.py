"""A hundred thousand rubbish proofs, none of which crashes anything or is accepted."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal import toploc
from shoal.toploc import PRIME

CHUNKS, CHUNK, HIDDEN, K = 25_000, 4, 24, 32
STATES = torch.randn(CHUNKS * CHUNK, HIDDEN, generator=torch.Generator().manual_seed(0)).bfloat16()
HONEST = np.frombuffer(toploc.build(STATES, CHUNK, K), ">u2").reshape(CHUNKS, K + 1)


def random_bytes(random: np.random.Generator) -> NDArray[Any]:
    return random.integers(0, 65536, HONEST.shape)


def well_formed(random: np.random.Generator) -> NDArray[Any]:
    numbers = random.integers(0, PRIME, HONEST.shape)
    numbers[:, 0] = PRIME
    return numbers


def one_number_changed(random: np.random.Generator) -> NDArray[Any]:
    """Any but the constant coefficient: one more there is one more in every last bit, as honest noise may be."""
    numbers = HONEST.astype(np.int64)
    place = random.choice([0, *range(2, K + 1)], CHUNKS)
    rows = np.arange(CHUNKS)
    numbers[rows, place] = (numbers[rows, place] + random.integers(1, 65536, CHUNKS)) % 65536
    return numbers


def cut_to_zero(random: np.random.Generator) -> NDArray[Any]:
    """All from some coefficient on is 0, down to the constant and the zero polynomial."""
    numbers = HONEST.copy()
    numbers[np.arange(K + 1)[None] > random.integers(0, K, (CHUNKS, 1))] = 0
    return numbers


def another_chunk(random: np.random.Generator) -> NDArray[Any]:
    return np.roll(HONEST, int(random.integers(1, CHUNKS)), axis=0)


@pytest.mark.parametrize("make", [random_bytes, well_formed, one_number_changed, cut_to_zero, another_chunk])
def test_rubbish_is_never_accepted(make: object) -> None:
    assert callable(make)
    rubbish = make(np.random.default_rng(1)).astype(">u2").tobytes()
    results = toploc.verify(STATES, rubbish, CHUNK, K)
    assert len(results) == CHUNKS
    assert not any(toploc.accepts(result) for result in results)


def test_honest_proofs_of_the_same_states_are_accepted() -> None:
    assert toploc.accepts(toploc.verify(STATES, HONEST.tobytes(), CHUNK, K))


@given(st.binary(max_size=600), st.integers(1, 9), st.integers(1, 40), st.integers(1, 9), st.integers(1, 140))
def test_bytes_of_any_length_for_any_shape_give_one_result_a_chunk(
    proofs: bytes, tokens: int, hidden: int, chunk: int, k: int
) -> None:
    results = toploc.verify(STATES[:tokens, :hidden].reshape(tokens, -1), proofs, chunk, k)
    assert len(results) == -(-tokens // chunk)
    if len(proofs) != toploc.proof_size(tokens, min(hidden, HIDDEN), chunk, k):
        assert not any(toploc.accepts(result) for result in results)
