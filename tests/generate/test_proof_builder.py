"""A proof that is built while an answer is generated has the bytes of one built from all its states at the end."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal import toploc
from shoal.generate.proof_builder import CHUNK, ProofBuilder


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
        assert building.held < CHUNK, "a full chunk is reduced at once"
    assert building.proof() == toploc.build(states_TD)
