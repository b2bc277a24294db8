"""The streamed gradient is the gradient of the whole sequence, for every parameter and every chunk size."""

from collections.abc import Sequence

import pytest
import torch

from shoal.errors import FbamError
from shoal.fbam import (
    TensorStream,
    build_model,
    evaluate_stream,
    full_gradient,
    streamed_gradient,
    truncated_gradient,
)
from shoal.fbam import gradient as gradient_module
from shoal.fbam.frames import IGNORED
from shoal.fbam.model_config import IntegratorKind
from tests.fbam.support import KINDS, random_stream, small_config
from tests.support.fbam_gradients import autograd_gradients, largest_error, taken_gradients

LENGTH = 70
CHUNKS = (1, 7, 64, 100)  # of LENGTH frames: many, a last one that is shorter, two, and one that is not filled


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_streamed_gradient_is_that_of_the_whole_sequence(kind: IntegratorKind, chunk: int) -> None:
    model, stream = build_model(small_config(kind), seed=1).double(), random_stream(LENGTH)
    expected = autograd_gradients(model, stream)
    streamed_gradient(model, stream, chunk)
    assert largest_error(taken_gradients(model), expected) <= 1e-10


def test_all_parameters_get_a_gradient_also_the_initial_state_and_the_first_cell_embedding() -> None:
    model = build_model(small_config(), seed=1).double()
    streamed_gradient(model, random_stream(LENGTH), 7)
    gradients = taken_gradients(model)
    assert gradients.keys() == dict(model.named_parameters()).keys()
    assert {"integrator.h0_L1D", "integrator.c0_L1D", "head.code_point.weight"} <= gradients.keys()
    assert all(float(gradient.norm()) > 0 for gradient in gradients.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_in_float32_the_error_is_rounding_alone(kind: IntegratorKind, chunk: int) -> None:
    model, stream = build_model(small_config(kind), seed=2), random_stream(LENGTH)
    expected = autograd_gradients(model, stream)
    streamed_gradient(model, stream, chunk)
    assert largest_error(taken_gradients(model), expected) <= 1e-5


def test_a_planted_error_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One state's gradient, one part in a million too large: the comparison above would fail."""
    model, stream = build_model(small_config(), seed=1).double(), random_stream(LENGTH)
    expected = autograd_gradients(model, stream)
    backward = gradient_module._backward

    def scaled(
        loss: torch.Tensor, after: tuple[torch.Tensor, ...], given: Sequence[torch.Tensor | None] | None
    ) -> None:
        backward(loss, after, given and [part if part is None else part * (1 + 1e-6) for part in given])

    monkeypatch.setattr(gradient_module, "_backward", scaled)
    streamed_gradient(model, stream, 7)
    assert largest_error(taken_gradients(model), expected) > 1e-8


def test_truncated_backpropagation_is_another_gradient() -> None:
    model, stream = build_model(small_config(), seed=1).double(), random_stream(LENGTH)
    expected = autograd_gradients(model, stream)
    truncated_gradient(model, stream, 7)
    assert largest_error(taken_gradients(model), expected) > 1e-3
    truncated_gradient(model, stream, LENGTH)
    assert largest_error(taken_gradients(model), expected) <= 1e-10, "with one chunk nothing is cut off"


def test_all_ways_of_computing_report_one_loss() -> None:
    model, stream = build_model(small_config(), seed=3).double(), random_stream(LENGTH)
    losses = [
        streamed_gradient(model, stream, 5),
        full_gradient(model, stream),
        truncated_gradient(model, stream, 5),
        evaluate_stream(model, stream, 4),
    ]
    assert {loss.scored for loss in losses} == {int((stream.targets_BT != IGNORED).sum())}
    assert {loss.correct for loss in losses} == {losses[0].correct}
    assert [loss.mean for loss in losses] == pytest.approx([losses[0].mean] * 4, rel=1e-12)


def test_gradients_add_up_as_those_of_backward_do() -> None:
    model, stream = build_model(small_config(), seed=1).double(), random_stream(9)
    once = autograd_gradients(model, stream)
    streamed_gradient(model, stream, 4)
    streamed_gradient(model, stream, 4)
    assert largest_error(taken_gradients(model), {name: 2 * gradient for name, gradient in once.items()}) <= 1e-10


def test_a_stream_without_a_scored_frame_and_a_chunk_of_none_are_refused() -> None:
    model, stream = build_model(small_config(), seed=1), random_stream(3)
    with pytest.raises(FbamError, match="chunk of 0 frames"):
        streamed_gradient(model, stream, 0)
    unscored = TensorStream(stream.frames_BTCRW, torch.full_like(stream.targets_BT, IGNORED))
    with pytest.raises(FbamError, match="stream of 3 frames: no frame has an action to score"):
        streamed_gradient(model, unscored, 2)
