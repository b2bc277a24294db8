"""A proof that is built while an answer is generated has the bytes of one built from all its states at the end."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal import toploc
from shoal.devices import META
from shoal.errors import ModelError
from shoal.generate import proof_builder
from shoal.generate.proof_builder import CHUNK, ProofBuilder, chunk_proofs


def states_of(tokens: int, hidden: int, kind: str, seed: int) -> torch.Tensor:
    """bf16 states; of `few` values most are equal in magnitude, so that ranks are decided by position."""
    rng = np.random.default_rng(seed)
    if kind == "few":
        bits = rng.choice(np.array([0, 0x8000, 1, 0x3F80, 0xBF80, 0x7F7F], np.uint16), (tokens, hidden))
    else:
        bits = rng.integers(0, 0x7F80, (tokens, hidden)) | rng.choice([0, 0x8000], (tokens, hidden))
    return torch.from_numpy(bits.astype(np.uint16).view(np.int16)).view(torch.bfloat16)


@given(st.integers(1, 100), st.integers(1, 90), st.sampled_from(["few", "any"]), st.integers(0, 2**32))
def test_the_bytes_are_those_of_all_states_at_once(tokens: int, hidden: int, kind: str, seed: int) -> None:
    states_TD = states_of(tokens, hidden, kind, seed)
    building = ProofBuilder()
    for state_D in states_TD:
        building.add(state_D)
        assert building.held <= CHUNK
    assert building.proof() == toploc.build(states_TD)


@given(st.integers(1, 100), st.integers(0, 2**32), st.data())
def test_states_that_are_computed_again_are_counted_once_and_the_last_ones_hold(
    tokens: int, seed: int, data: st.DataObject
) -> None:
    """As after a preemption, and where an engine samples in the middle of a prompt and throws the token away."""
    states_TD = states_of(tokens, 40, "any", seed)
    building = ProofBuilder()
    for position, state_D in enumerate(states_TD):
        if data.draw(st.booleans()):
            building.put(position, torch.zeros_like(state_D))
        building.put(position, state_D)
        before = data.draw(st.integers(0, position))
        building.put(before, states_TD[before])
        assert building.tokens == position + 1
    assert building.proof(tokens) == toploc.build(states_TD)


@given(st.integers(1, 100), st.integers(0, 2**32))
def test_a_token_that_was_drawn_and_not_handed_out_is_not_proven(tokens: int, seed: int) -> None:
    states_TD = states_of(tokens + 1, 40, "any", seed)
    building = ProofBuilder()
    for state_D in states_TD:
        building.add(state_D)
    assert building.proof(tokens) == toploc.build(states_TD[:tokens])


def test_a_lost_state_is_an_error_and_never_a_shorter_proof() -> None:
    building = ProofBuilder()
    building.add(torch.ones(8).bfloat16())
    with pytest.raises(ModelError, match="token 2 came after that of token 0; one was lost"):
        building.put(2, torch.ones(8).bfloat16())
    with pytest.raises(ModelError, match="an answer of 2 tokens, of which the states of 1 came"):
        building.proof(2)


@given(
    st.integers(0, 9),
    st.integers(1, CHUNK),
    st.integers(1, 90),
    st.sampled_from(["few", "any"]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_chunks_that_are_built_together_are_as_if_each_were_alone(
    count: int, tokens: int, hidden: int, kind: str, seed: int, gpu: bool
) -> None:
    chunks = [states_of(tokens, hidden, kind, seed + number) for number in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof_builder, "AT_ONCE", 4 * tokens * hidden)
        if gpu:  # which takes several at once
            patch.setattr(proof_builder, "CPU", META)
        assert chunk_proofs([list(chunk) for chunk in chunks]) == [toploc.build(chunk) for chunk in chunks]
