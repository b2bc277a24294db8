"""Every device's attention is the CPU's: same outputs and gradients, whichever row computes them.

The GPU row runs here with its two kernel calls replaced by plain matrix products, which are held against PyTorch's
flash attention for CPUs first; that the real calls take and return tensors of these shapes, fake tensors show.
"""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.devices import CPU
from shoal.models.attention import Packed, SharedPrompt
from shoal.models.kernels import Row, padded, row_on, varlen
from shoal.models.kernels.padded import PaddedRow
from shoal.models.kernels.sdpa import SdpaRow
from shoal.models.kernels.segments import Segments, Stretch
from shoal.models.kernels.varlen import VarlenRow
from tests.support import varlen_reference
from tests.support.fake_gpu import CUDA, fake_gpu

SCALE = 0.3
RUNS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
families = st.lists(
    st.builds(SharedPrompt, st.integers(1, 20), st.lists(st.integers(0, 15), max_size=5).map(tuple)),
    min_size=1,
    max_size=4,
)
# Query heads, heads of keys and values, size of keys, size of values.
shapes = st.sampled_from([(4, 4, 16, 16), (4, 2, 16, 16), (6, 1, 12, 12), (4, 2, 12, 20), (2, 2, 24, 8)])


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "flash", varlen_reference.flash)
    monkeypatch.setattr(varlen, "flash_backward", varlen_reference.flash_backward)


def inputs(tokens: int, shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    heads, shared, size, values = shape
    draw = torch.Generator().manual_seed(tokens)
    sizes = ((heads, tokens, size), (shared, tokens, size), (shared, tokens, values))
    return [torch.randn(size, generator=draw).to(dtype).requires_grad_() for size in sizes]


def results(row: Row, tensors: list[Tensor]) -> list[Tensor]:
    """Output and gradients of a loss that weighs every value of it differently."""
    out_THD = row.attend(tensors[0], tensors[1], tensors[2], SCALE)
    weights_THD = torch.randn(out_THD.shape, generator=torch.Generator().manual_seed(1)).to(out_THD.dtype)
    return [out_THD, *torch.autograd.grad((out_THD * weights_THD).sum(), tensors)]


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("other", [lambda s: VarlenRow(s, CPU), lambda s: SdpaRow(s, CPU)], ids=["varlen", "sdpa"])
@RUNS
@given(mix=families, shape=shapes)
@example([SharedPrompt(1, (0,))], (4, 2, 16, 16))
@example([SharedPrompt(5), SharedPrompt(1, (1, 1)), SharedPrompt(20, (15, 0, 15))], (6, 1, 12, 12))
def test_every_row_computes_what_the_cpus_does(
    other: Callable[[Segments], Row], mix: list[SharedPrompt], shape: tuple[int, int, int, int]
) -> None:
    segments = Packed(mix).segments
    tensors = inputs(segments.tokens, shape)
    for ours, theirs in zip(results(PaddedRow(segments), tensors), results(other(segments), tensors), strict=True):
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.usefixtures("reference")
def test_a_row_in_bfloat16_is_as_near_to_float32_on_a_gpu_as_on_a_cpu() -> None:
    segments = Packed([SharedPrompt(30, (20, 3, 17)), SharedPrompt(12)]).segments
    exact = results(PaddedRow(segments), inputs(segments.tokens, (4, 2, 16, 16)))
    tensors = inputs(segments.tokens, (4, 2, 16, 16), torch.bfloat16)
    for ours, theirs, right in zip(
        results(PaddedRow(segments), tensors), results(VarlenRow(segments, CPU), tensors), exact, strict=True
    ):
        assert theirs.dtype == torch.bfloat16
        assert (theirs - right).norm() <= 1.5 * (ours - right).norm()


@pytest.mark.parametrize("causal", [True, False])
def test_the_reference_kernel_computes_what_flash_attention_does(causal: bool) -> None:
    """Also its share of a softmax over more keys, of which only the log-sum-exp and the output are known."""
    draw = torch.Generator().manual_seed(0)
    grad, q, k, v, out = (torch.randn(9, 4, 16, generator=draw) for _ in range(5))
    cuts = varlen.Cuts(torch.tensor([0, 9], dtype=torch.int32), 9)
    batch = [x.transpose(0, 1).unsqueeze(0) for x in (grad, q, k, v, out)]
    own_1HTD, lse_1HT = padded._flash(batch[1], batch[2], batch[3], causal, SCALE)
    found_THD, found_HT = varlen_reference.flash(q, k, v, cuts, cuts, causal, SCALE)
    assert torch.allclose(found_THD, own_1HTD[0].transpose(0, 1), atol=1e-5)
    assert torch.allclose(found_HT, lse_1HT[0], atol=1e-5)
    wider_1HT = lse_1HT + torch.rand(lse_1HT.shape, generator=draw)
    ours = padded._flash_backward(batch[0], batch[1], batch[2], batch[3], batch[4], wider_1HT, causal, SCALE)
    theirs = varlen_reference.flash_backward([grad, q, k, v, out], wider_1HT[0], cuts, cuts, causal, SCALE)
    for x_1HTD, x_THD in zip(ours, theirs, strict=True):
        assert torch.allclose(x_1HTD[0].transpose(0, 1), x_THD, atol=1e-5)


Kernels = tuple[Callable[..., tuple[Tensor, ...]], Callable[..., tuple[Tensor, ...]]]


def called(kernels: Kernels, device: torch.device) -> list[Tensor]:
    """What both kernels return for answers of 5 and 6 tokens and their prompts of 4 and 3, two query heads per head."""
    flash, flash_backward = kernels
    shapes = (11, 4, 16), (11, 4, 16), (7, 2, 16), (7, 2, 16), (11, 4, 16)
    tensors = [torch.zeros(shape, dtype=torch.bfloat16, device=device) for shape in shapes]
    queries = varlen.Cuts(torch.tensor([0, 5, 11], dtype=torch.int32, device=device), 6)
    keys = varlen.Cuts(torch.tensor([0, 4, 7], dtype=torch.int32, device=device), 4)
    out, lse = flash(*tensors[1:4], queries, keys, False, SCALE)
    return [out, lse, *flash_backward(tensors, lse, queries, keys, False, SCALE)]


def test_the_gpus_kernels_take_and_return_what_the_reference_does() -> None:
    expected = called((varlen_reference.flash, varlen_reference.flash_backward), CPU)
    with fake_gpu():
        found = called((varlen.flash, varlen.flash_backward), CUDA)
    assert {x.device for x in found} == {CUDA}
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in expected]


@pytest.mark.parametrize(
    ("device", "dtype", "head", "capability", "expected"),
    [
        ("cpu", torch.float32, 64, (9, 0), PaddedRow),
        ("cpu", torch.bfloat16, 64, (9, 0), PaddedRow),
        ("cuda:0", torch.bfloat16, 128, (8, 0), VarlenRow),
        ("cuda:0", torch.bfloat16, 264, (8, 0), SdpaRow),  # wider than flash attention's heads
        ("cuda:0", torch.bfloat16, 128, (7, 5), SdpaRow),  # older than Ampere
        ("cuda:0", torch.float32, 128, (9, 0), SdpaRow),  # judges compute in float32
    ],
)
def test_each_device_gets_its_row(
    device: str, dtype: torch.dtype, head: int, capability: tuple[int, int], expected: type
) -> None:
    with fake_gpu(capability):
        q = torch.empty(4, 3, head, dtype=dtype, device=device)
        assert type(row_on(Segments((Stretch(0, 3),), ()), q, q)) is expected
