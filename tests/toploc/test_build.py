"""The bytes are those of the published package and of a plain reference, whatever form the states come in."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal import toploc
from shoal.errors import ToplocError
from shoal.toploc import PRIME, Proof

VECTORS = np.load(Path(__file__).parents[1] / "data" / "toploc.npz")
CASES = sorted({name.split("/")[0] for name in VECTORS})


def bf16(values: torch.Tensor) -> NDArray[np.uint16]:
    bits: NDArray[np.uint16] = values.bfloat16().contiguous().view(torch.int16).numpy().view(np.uint16)
    return bits


def reference(bits_TH: NDArray[np.uint16], chunk: int, k: int) -> bytes:
    """The definition, written down: sort, find the modulus, interpolate by Lagrange's formula."""
    proofs = []
    for start in range(0, len(bits_TH), chunk):
        flat = bits_TH[start : start + chunk].reshape(-1).tolist()
        top = sorted(range(len(flat)), key=lambda i: (-(flat[i] & 0x7FFF), i))[:k]
        modulus = next(m for m in range(PRIME, 32768, -1) if len({i % m for i in top}) == len(top))
        proofs.append(Proof(modulus, lagrange([i % modulus for i in top], [flat[i] for i in top])))
    return toploc.encode(proofs)


def lagrange(x: list[int], y: list[int]) -> tuple[int, ...]:
    total = [0] * len(x)
    for i, at in enumerate(x):
        basis, scale = [1], y[i]
        for other in x[:i] + x[i + 1 :]:
            basis = [(a - other * b) % PRIME for a, b in zip([0, *basis], [*basis, 0], strict=True)]
            scale = scale * pow(at - other, -1, PRIME) % PRIME
        total = [(t + scale * b) % PRIME for t, b in zip(total, basis, strict=True)]
    return tuple(total)


@pytest.mark.parametrize("case", CASES)
def test_the_bytes_are_those_of_the_published_package(case: str) -> None:
    states, proofs, shape = (VECTORS[f"{case}/{part}"] for part in ("acts", "proofs", "shape"))
    assert toploc.build(states, *shape) == proofs.tobytes()
    assert toploc.accepts(toploc.verify(states, proofs.tobytes(), *shape))


@st.composite
def shaped_states(draw: st.DrawFn) -> tuple[NDArray[np.uint16], int, int]:
    tokens, hidden = draw(st.integers(1, 40)), draw(st.integers(1, 90))
    bits = draw(st.sampled_from(["few values", "any value"]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    if bits == "few values":  # ties everywhere, zeros of both signs
        states = random.choice(np.array([0, 0x8000, 1, 0x3F80, 0xBF80, 0x7F7F], np.uint16), (tokens, hidden))
    else:
        states = random.integers(0, 0x7F80, (tokens, hidden), np.uint16) | random.choice([0, 0x8000], (tokens, hidden))
    return states.astype(np.uint16), draw(st.integers(1, 45)), draw(st.integers(1, 70))


@given(shaped_states())
def test_any_shape_gives_the_bytes_of_the_definition_and_verifies_without_error(
    case: tuple[NDArray[np.uint16], int, int],
) -> None:
    states, chunk, k = case
    proofs = toploc.build(states, chunk, k)
    assert proofs == reference(states, chunk, k)
    assert len(proofs) == toploc.proof_size(states.shape[0], states.shape[1], chunk, k)
    results = toploc.verify(states, proofs, chunk, k)
    assert len(results) == -(-len(states) // chunk)
    for result in results:
        assert toploc.accepts(result)
        assert result.exponent_mismatches == result.sign_mismatches == result.mantissa_mean == result.proof_error == 0


def test_chunks_of_changing_scale_do_not_mislead_the_search_for_the_largest() -> None:
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([1.0, 1e3, 1e-3, 0.0, 1e30, 1.0]).repeat_interleave(4)[:, None]
    states = bf16(torch.randn(24, 700, generator=generator) * scale)
    assert toploc.build(states, 4, 20) == reference(states, 4, 20)


def test_of_equal_values_at_the_last_rank_those_of_lowest_position_are_taken() -> None:
    states = torch.ones(8, 96)
    states[3, 5] = states[7, 95] = 2.0
    (proof,) = toploc.decode(toploc.build(states, 8, 16), 16)
    one, two = 0x3F80, 0x4000
    assert [proof(i) for i in range(14)] == [one] * 14
    assert proof(3 * 96 + 5) == proof(7 * 96 + 95) == two
    assert proof(14) != one


def test_the_order_of_magnitude_ignores_the_sign_and_the_value_keeps_it() -> None:
    states = torch.tensor([[1.0, -3.0, 2.0, -0.5]])
    (proof,) = toploc.decode(toploc.build(states, k=2), 2)
    assert (proof(1), proof(2)) == (0xC040, 0x4000)


def test_colliding_positions_lower_the_modulus_and_one_that_cannot_be_found_is_an_error() -> None:
    states = torch.zeros(4, 32768)
    states[0, 0] = 1
    states.view(-1)[65497] = 2
    states.view(-1)[65496] = 3
    (proof,) = toploc.decode(toploc.build(states, 4, 3), 3)
    assert proof.modulus == 65495
    with pytest.raises(toploc.ToplocError, match="no modulus"):
        toploc.build(torch.randn(4, 32768), 4, 20_000)


def test_list_tensor_bits_float32_and_strided_states_give_the_same_bytes() -> None:
    wide = torch.randn(37, 2 * 48, generator=torch.Generator().manual_seed(1))
    states = wide[:, ::2]
    half = states.bfloat16()
    expected = toploc.build(half, 8, 16)
    forms: dict[str, Any] = {
        "float32": states,
        "strided": wide.bfloat16()[:, ::2],
        "needs grad": states.clone().requires_grad_(),
        "list": list(half),
        "rows": [row[None] for row in half],
        "list of float32": list(states),
        "bits": bf16(half),
        "list of bits": list(bf16(half)),
        "numpy float32": states.numpy(),
        "read-only": np.frombuffer(bf16(half).tobytes(), np.uint16).reshape(37, 48),
        "big-endian": bf16(half).astype(">u2"),
    }
    for form, given_states in forms.items():
        assert toploc.build(given_states, 8, 16) == expected, form
        assert toploc.accepts(toploc.verify(given_states, expected, 8, 16)), form


def test_float32_is_rounded_as_torch_rounds() -> None:
    random = np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint32).view(np.float32)
    ties = (np.arange(200, dtype=np.uint32) << 16 | 0x3F808000).view(np.float32)
    values = np.concatenate([random, ties])
    values = values[np.abs(values) < 3.3e38][None]  # no NaN, nothing that rounds to infinity
    assert toploc.build(values, 1, 300) == toploc.build(torch.from_numpy(values), 1, 300)
    assert toploc.build(ties[None], 1, 200) == toploc.build(torch.from_numpy(ties[None]), 1, 200)


@pytest.mark.parametrize(
    ("states", "says"),
    [
        (torch.ones(4, 8, dtype=torch.float16), "float16"),
        (torch.ones(4, 8, dtype=torch.float64), "float64"),
        (torch.ones(4, 8, dtype=torch.int32), "int32"),
        (np.ones((4, 8)), "float64"),
        (torch.ones(4, 8).to_sparse(), "sparse"),
        (torch.ones(4, 8, device="meta"), "meta"),
        (torch.ones(8), r"\(8,\)"),
        (torch.ones(1, 4, 8), r"\(1, 4, 8\)"),
        (torch.ones(0, 8), "nothing to prove"),
        (torch.ones(4, 0), "nothing to prove"),
        ([], "nothing to prove"),
        ([torch.ones(8), torch.ones(9)], r"\[8, 9\]"),
        ("states", "str"),
        (None, "NoneType"),
        ([None], "NoneType"),
    ],
)
def test_states_that_are_none_are_refused_by_name(states: object, says: str) -> None:
    for call in (lambda: toploc.build(states), lambda: toploc.verify(states, b"")):  # type: ignore[arg-type]
        with pytest.raises(toploc.ToplocError, match=says):
            call()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3.4e38])
@pytest.mark.parametrize("k", [1, 16, 1000])
def test_nan_and_infinity_are_refused_wherever_they_stand(value: float, k: int) -> None:
    for token in (0, 9):
        states = torch.randn(10, 70)
        proofs = toploc.build(states, 4, k)
        states[token, 33] = value
        for call in (
            lambda: toploc.build(states, 4, k),  # noqa: B023
            lambda: toploc.verify(states, proofs, 4, k),  # noqa: B023
            lambda: toploc.verify(states, b"", 4, k),  # noqa: B023
        ):
            with pytest.raises(toploc.ToplocError, match="NaN or infinite"):
                call()


@pytest.mark.parametrize(
    ("chunk", "k"), [(0, 1), (-1, 1), (1, 0), (1, -5), (1, PRIME + 1), (2**40, 1), (1.5, 1), ("a", 1)]
)
def test_shapes_that_make_no_proof_are_refused(chunk: int, k: int) -> None:
    with pytest.raises(toploc.ToplocError):
        toploc.build(torch.ones(2, 3), chunk, k)


@given(shaped_states())
def test_the_largest_values_alone_give_the_bytes_of_the_whole_chunk(
    case: tuple[NDArray[np.uint16], int, int],
) -> None:
    states, _, k = case
    flat = states.reshape(-1)
    top = sorted(range(flat.size), key=lambda i: (-int(flat[i] & 0x7FFF), i))[:k]
    mixed = np.random.default_rng(k).permutation(np.array(top, np.int32))
    assert toploc.build_from_top(mixed, flat[mixed], flat.size) == toploc.build(states, len(states), k)


@pytest.mark.parametrize(
    ("positions", "bits", "count", "said"),
    [
        ([0, 1], [1], 8, "one value per position"),
        ([], [], 8, "at least one"),
        ([0, 1, 2], [1, 2, 3], 2, "at most as many"),
        ([0, 0], [1, 1], 8, "given once"),
        ([0, 8], [1, 1], 8, "in the chunk"),
        ([-1, 3], [1, 1], 8, "in the chunk"),
        ([0, 3], [1, 0x7F80], 8, "NaN or infinite"),
    ],
)
def test_largest_values_that_cannot_be_a_chunk_s_are_refused(
    positions: list[int], bits: list[int], count: int, said: str
) -> None:
    with pytest.raises(ToplocError, match=said):
        toploc.build_from_top(np.array(positions, np.int32), np.array(bits, np.uint16), count)
