"""Gradients of action models by plain automatic differentiation, and how far others are from them.

For tests and benchmarks: none of it uses `shoal.fbam.gradient`, whose results it is compared with.
"""

import torch
from torch.nn.functional import cross_entropy

from shoal.fbam import ActionModel, Stream
from shoal.fbam.frames import IGNORED

Gradients = dict[str, torch.Tensor]


def taken_gradients(model: ActionModel) -> Gradients:
    """Gradients by the names of parameters; the model has none afterwards."""
    taken = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return taken


def autograd_gradients(model: ActionModel, stream: Stream) -> Gradients:
    """Automatic differentiation of all frames at once."""
    logits, _ = model(stream.frames(0, stream.length), model.initial_state(stream.batch))
    cross_entropy(logits.flatten(0, 1), stream.targets(0, stream.length).flatten(), ignore_index=IGNORED).backward()
    return taken_gradients(model)


def largest_error(found: Gradients, expected: Gradients) -> float:
    """The worst relative L2 error among parameters; each is compared, so that a small one cannot hide in the norm."""
    assert found.keys() == expected.keys()
    return max(float((found[name] - expected[name]).norm() / expected[name].norm()) for name in expected)
