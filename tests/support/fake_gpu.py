"""A GPU that is not there: tensors on it have a shape, a number format and a device, but no values.

Code that mixes devices raises there as on a real one; so does float64 on MPS, which lacks it. There is no
backward pass, which PyTorch built for CPUs cannot begin on a tensor of another device.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from shoal.devices import to_numpy
from shoal.train.batch import Group, MicroBatch, pack

CUDA, MPS = torch.device("cuda", 0), torch.device("mps", 0)
NUMPY = {torch.float64: np.float64, torch.float32: np.float32, torch.int64: np.int64, torch.bool: np.bool_}


@contextmanager
def fake_gpu(capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """Within it, tensors can be created on `CUDA` or `MPS` and computed with; real tensors that enter become fake.

    What `devices.to_numpy` brings to the host has no values: zeros and True come in their place. Micro-batches are
    packed with values, as they are on the host.
    """
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("shoal.")]
    with ExitStack() as patches:
        patches.enter_context(patch("torch.cuda.get_device_capability", lambda _device: capability))
        for module in modules:
            for name, own, instead in (("to_numpy", to_numpy, _no_values), ("pack", pack, _packed)):
                if getattr(module, name, None) is own:
                    patches.enter_context(patch.object(module, name, instead))
        patches.enter_context(patch("shoal.toploc.hidden_states._tensor_bits", _no_bits))
        # PyTorch would compute with the values of tensors that have only one, also on a device that is not there.
        patches.enter_context(patch("torch._subclasses.fake_tensor.CONSTANT_NUMEL_LIMIT", -1))
        patches.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        patches.enter_context(_WithoutGuards())
        patches.enter_context(torch.no_grad())
        yield


def move(model: nn.Module, device: torch.device) -> None:
    """Puts a model on a fake device; tied parameters stay tied."""
    moved: dict[int, Tensor] = {}
    for module in model.modules():
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if id(tensor) not in moved:
                fake = torch.empty_like(tensor, device=device, requires_grad=False)
                moved[id(tensor)] = nn.Parameter(fake, False) if isinstance(tensor, nn.Parameter) else fake
            setattr(module, name, moved[id(tensor)])


def _packed(groups: Sequence[Group], budget: int) -> list[MicroBatch]:
    with _disable_current_modes():
        made = pack(groups, budget)
        for micro_batch in made:
            assert micro_batch.layout.tokens  # which makes it while there are values
        return made


def _no_values(x: Tensor) -> npt.NDArray[Any]:
    if not isinstance(x, FakeTensor):
        with _disable_current_modes():
            return np.asarray(x.numpy())
    return np.ones(x.shape, np.bool_) if x.dtype == torch.bool else np.zeros(x.shape, NUMPY[x.dtype])


def _no_bits(states: Tensor, _torch: Any) -> npt.NDArray[np.uint16]:
    """States for a proof: all of them 1.0, since zeros prove nothing."""
    return np.full(states.shape, 0x3F80, np.uint16)


class _WithoutGuards(TorchFunctionMode):
    """Indexing without the device guards that PyTorch takes for it, and that its build for CPUs has for CPUs alone."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.to and not isinstance(args[0], FakeTensor):
            args = (torch.ops.aten.detach(args[0]), *args[1:])  # which makes it fake, also in inference mode
        if func is Tensor.__getitem__:
            found = _get(args[0], args[1])
        elif func is Tensor.__setitem__:
            return _set(args[0], args[1], args[2])
        elif func is Tensor.contiguous:
            found = torch.ops.aten.contiguous(args[0])
        elif func is F.scaled_dot_product_attention and args[0].device.type == "mps":
            found = _attend(*args, **(kwargs or {}))
        else:
            found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and found.device.type == "mps" and found.dtype == torch.float64:
            raise TypeError("MPS has no float64")
        return found


def _attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **_others: Any) -> Tensor:
    """MPS chooses between kernels that only its own build knows; they all take and return these."""
    scores = q @ k.transpose(-1, -2)
    return (scores if attn_mask is None else scores.where(attn_mask.bool(), 0.0)).softmax(-1) @ v


def _get(x: Tensor, index: Any) -> Tensor:
    view, tensors = _view(x, index)
    return view if not any(t is not None for t in tensors) else torch.ops.aten.index.Tensor(view, tensors)


def _set(x: Tensor, index: Any, value: Any) -> None:
    view, tensors = _view(x, index)
    value = torch.as_tensor(value, dtype=x.dtype) if not isinstance(value, Tensor) else value
    if any(t is not None for t in tensors):
        torch.ops.aten.index_put_(view, tensors, value)
    else:
        torch.ops.aten.copy_(view, value)


def _view(x: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """The part that slices, numbers and None select, and the tensors that select from each dimension of it."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(part is Ellipsis for part in parts):
        at = next(n for n, part in enumerate(parts) if part is Ellipsis)
        given = sum(part is not None for part in parts) - 1
        parts[at : at + 1] = [slice(None)] * (x.dim() - given)
    tensors: list[Tensor | None] = []
    for part in parts:
        dim = len(tensors)
        if part is None:
            x = x.unsqueeze(dim)
            tensors.append(None)
        elif isinstance(part, slice):
            x = torch.ops.aten.slice.Tensor(x, dim, part.start, part.stop, part.step or 1)
            tensors.append(None)
        elif isinstance(part, int):
            x = x.select(dim, part)
        else:
            tensors.append(part if isinstance(part, Tensor) else torch.tensor(part, device=x.device))
    return x, tensors
