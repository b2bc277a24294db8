"""Exact streaming backpropagation: the gradient of a whole sequence in the memory of one chunk.

The forward pass keeps nothing but the states between chunks. The backward pass goes from the last chunk to the first,
computes each again from its state, through the frame head, and hands the gradient of that state to the chunk before.
This is backpropagation through time over the whole sequence, not a truncation; the price is a second forward pass, 4/3
of the operations. What still grows with length: one state per chunk, which is small unless the integrator is a
transformer, whose state is the whole past.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from shoal.errors import FbamError
from shoal.fbam.action_model import ActionModel
from shoal.fbam.frames import IGNORED, Stream
from shoal.fbam.integrators import State


@dataclass(frozen=True, slots=True)
class Loss:
    """Mean cross-entropy per scored frame, and what it is a mean over."""

    mean: float
    correct: float
    """Share of scored frames whose action has the highest score."""
    scored: int


def streamed_gradient(model: ActionModel, stream: Stream, chunk: int) -> Loss:
    """Adds the exact gradient of the stream's mean loss to `.grad`; peak memory is that of `chunk` frames."""
    spans = _spans(stream, chunk)
    scored = count_scored(stream, spans)
    states = _states_before(model, stream, spans)
    parts: list[tuple[float, int]] = []
    after_gradient: Sequence[Tensor | None] | None = None
    for (begin, end), kept in zip(reversed(spans), reversed(states), strict=True):
        # The first state is computed inside the graph: its gradient goes to the parameters that it was learned as.
        before = model.initial_state(stream.batch) if begin == 0 else _leaves(kept)
        logits_BTA, after = model(stream.frames(begin, end), before)
        loss, correct = _summed_loss(logits_BTA, stream.targets(begin, end))
        _backward(loss / scored, after, after_gradient)
        after_gradient = [state.grad for state in before] if begin else None
        parts.append((float(loss.detach()), correct))
    return _total(parts, scored)


def full_gradient(model: ActionModel, stream: Stream) -> Loss:
    """The same gradient by automatic differentiation of the whole sequence at once: memory grows with its length."""
    return streamed_gradient(model, stream, stream.length)


def truncated_gradient(model: ActionModel, stream: Stream, chunk: int) -> Loss:
    """Adds the gradient of truncated backpropagation: states pass from chunk to chunk, gradients do not. A baseline."""
    spans = _spans(stream, chunk)
    scored = count_scored(stream, spans)
    state = model.initial_state(stream.batch)
    parts: list[tuple[float, int]] = []
    for begin, end in spans:
        logits_BTA, after = model(stream.frames(begin, end), state)
        loss, correct = _summed_loss(logits_BTA, stream.targets(begin, end))
        _backward(loss / scored, (), None)
        state = tuple(part.detach() for part in after)
        parts.append((float(loss.detach()), correct))
    return _total(parts, scored)


@torch.no_grad()
def evaluate_stream(model: ActionModel, stream: Stream, chunk: int) -> Loss:
    """The stream's mean loss, chunk by chunk, without a gradient."""
    spans = _spans(stream, chunk)
    state = model.initial_state(stream.batch)
    parts: list[tuple[float, int]] = []
    for begin, end in spans:
        logits_BTA, state = model(stream.frames(begin, end), state)
        loss, correct = _summed_loss(logits_BTA, stream.targets(begin, end))
        parts.append((float(loss), correct))
    return _total(parts, count_scored(stream, spans))


@torch.no_grad()
def _states_before(model: ActionModel, stream: Stream, spans: Sequence[tuple[int, int]]) -> list[State]:
    """The state before each chunk. The last chunk is not computed here: nothing follows it."""
    states = [model.initial_state(stream.batch)]
    for begin, end in spans[:-1]:
        states.append(model(stream.frames(begin, end), states[-1])[1])
    return states


def _leaves(state: State) -> State:
    return tuple(part.detach().requires_grad_() for part in state)


def _backward(loss: Tensor, after: State, gradient: Sequence[Tensor | None] | None) -> None:
    """Backpropagates the loss of a chunk together with the gradient that later chunks have for the state after it."""
    roots, weights = [loss], [torch.ones_like(loss)]
    for state, weight in zip(after, gradient or (), strict=gradient is not None):
        if weight is not None:
            roots.append(state)
            weights.append(weight)
    torch.autograd.backward(roots, weights)


def _summed_loss(logits_BTA: Tensor, targets_BT: Tensor) -> tuple[Tensor, int]:
    logits, targets = logits_BTA.flatten(0, 1), targets_BT.flatten()
    loss = cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED)
    return loss, int((logits.detach().argmax(-1) == targets).sum())


def _spans(stream: Stream, chunk: int) -> list[tuple[int, int]]:
    if chunk < 1 or stream.length < 1:
        raise FbamError(f"chunk of {chunk} frames, stream of {stream.length}: both must be at least 1")
    return [(begin, min(begin + chunk, stream.length)) for begin in range(0, stream.length, chunk)]


def count_scored(stream: Stream, spans: Sequence[tuple[int, int]]) -> int:
    """Frames whose action counts; an FbamError if there are none, because their mean loss would not be a number."""
    scored = sum(int((stream.targets(begin, end) != IGNORED).sum()) for begin, end in spans)
    if scored == 0:
        raise FbamError(f"stream of {stream.length} frames: no frame has an action to score; give it targets")
    return scored


def _total(parts: Sequence[tuple[float, int]], scored: int) -> Loss:
    return Loss(sum(loss for loss, _ in parts) / scored, sum(correct for _, correct in parts) / scored, scored)
