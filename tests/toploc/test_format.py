"""Encoding and decoding are inverse to each other, and nothing that no builder makes is decoded."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal import toploc
from shoal.toploc import PRIME, Proof


@st.composite
def lists_of_proofs(draw: st.DrawFn) -> tuple[list[Proof], int]:
    points = draw(st.integers(1, 20))
    sizes = [points] * draw(st.integers(0, 4)) + [draw(st.integers(1, points))]
    number = st.integers(0, PRIME - 1)
    proofs = [
        Proof(draw(st.integers(32769, PRIME)), tuple(draw(st.lists(number, min_size=n, max_size=n)))) for n in sizes
    ]
    return proofs, points


@given(lists_of_proofs())
def test_decode_undoes_encode(case: tuple[list[Proof], int]) -> None:
    proofs, points = case
    assert toploc.decode(toploc.encode(proofs), points) == proofs


def test_a_decoded_proof_maps_positions_to_the_bits_of_values_and_knows_its_degree() -> None:
    states = torch.tensor([[1.0, 2.0, 0.0, -1.0]])
    (proof,) = toploc.decode(toploc.build(states, k=3), 3)
    assert [proof(i) for i in (0, 1, 3)] == [0x3F80, 0x4000, 0xBF80]
    assert proof.degree == 2
    assert Proof(PRIME, (0, 0)).degree == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"\xff\xd9",  # the published package reads beyond its end
        bytes(6),  # modulus 0: the published package's own null proof, which its verification divides by
        b"\xff\xda\x00\x00\x00\x00",
        b"\x80\x00\x00\x00\x00\x00",
        b"\xff\xd9\xff\xd9\x00\x00",
        b"\xff\xd9\x00\x00\x00\x00\xff\xd9",
    ],
)
def test_what_no_builder_makes_is_not_decoded(data: bytes) -> None:
    with pytest.raises(toploc.ToplocError):
        toploc.decode(data, 2)


@pytest.mark.parametrize("proof", [Proof(0, (1,)), Proof(PRIME, ()), Proof(PRIME, (PRIME,)), Proof(PRIME, (-1,))])
def test_what_cannot_be_decoded_is_not_encoded(proof: Proof) -> None:
    with pytest.raises(toploc.ToplocError):
        toploc.encode([proof])
