"""AdamW whose last step can be undone without a copy of the weights.

Once a gradient has been used, its memory holds the weights from before the step: a step takes no memory beyond weights,
gradients and two moments, 16 bytes per parameter in float32, but for one piece at a time. Moments may be kept in host
memory; they visit the device piece by piece.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

# Numbers that are updated at once, of which a step holds a copy: a sixteenth of all, and 4 MiB of float32 at most.
PIECES = 16
PIECE = 1 << 20
MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW(torch.optim.AdamW):
    """Fused AdamW on each rank's own share of the parameters. After `step` the gradients hold the old weights."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        host: DeviceMesh | torch.device | None = None,
    ) -> None:
        """`host` is where the moments are kept, if not beside their parameters: a mesh for sharded ones."""
        super().__init__(parameters, lr=lr, betas=betas, weight_decay=weight_decay)
        self._host = host

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            used = [p for p in group["params"] if p.grad is not None]
            states = [self.state_of(p) for p in used]
            options = {key: group[key] for key in ("lr", "weight_decay", "eps")}
            beta1, beta2 = group["betas"]
            tensors = [
                tuple(_flat(local(t)) for t in (p, p.grad, state["exp_avg"], state["exp_avg_sq"]))
                for p, state in zip(used, states, strict=True)
            ]
            for numbers, begin, end in _pieces([t[0].numel() for t in tensors]):
                cut = [[t[begin:end] for t in tensors[n]] for n in numbers]
                weights, gradients, *kept = map(list, zip(*cut, strict=True))
                means, squares = ([_beside(t, w) for t, w in zip(m, weights, strict=True)] for m in kept)
                before = [w.clone() for w in weights]
                adamw(
                    weights,
                    gradients,
                    means,
                    squares,
                    [],
                    [states[n]["step"].to(weights[0].device, copy=True) for n in numbers],
                    fused=True,
                    amsgrad=False,
                    maximize=False,
                    beta1=beta1,
                    beta2=beta2,
                    **options,
                )
                for moments, changed in zip(kept, (means, squares), strict=True):
                    for moment, new in zip(moments, changed, strict=True):
                        if moment is not new:
                            moment.copy_(new)
                for gradient, old in zip(gradients, before, strict=True):
                    gradient.copy_(old)
            for state in states:
                state["step"] += 1

    @torch.no_grad()
    def undo(self) -> None:
        """Gives every parameter the value that it had before the last step. The moments stay."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.copy_(p.grad)

    def state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The moments of a parameter; zeros until its first step."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state |= {name: self._zeros(parameter) for name in MOMENTS}
        return state

    def _zeros(self, parameter: nn.Parameter) -> Tensor:
        if self._host is None:
            return torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        if isinstance(self._host, DeviceMesh):
            return on_host(torch.zeros_like(local(parameter), device="cpu"), parameter, self._host)
        return torch.zeros_like(parameter, device=self._host)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds; all of it where nothing is sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def on_host(part: Tensor, like: Tensor, mesh: DeviceMesh) -> Tensor:
    """A rank's part of a tensor in host memory, as the same share of the whole that it has of `like`."""
    if not isinstance(like, DTensor):
        return part
    shared: Tensor = DTensor.from_local(
        part, mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return shared


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().view(-1)


def _beside(tensor: Tensor, other: Tensor) -> Tensor:
    return tensor if tensor.device == other.device else tensor.to(other.device, non_blocking=True)


def _pieces(sizes: list[int]) -> Iterator[tuple[list[int], int, int | None]]:
    """Whole tensors bundled, by their numbers, and larger ones cut into pieces."""
    most = min(PIECE, -(-sum(sizes) // PIECES))
    bundle: list[int] = []
    filled = 0
    for number, size in enumerate(sizes):
        if size > most:
            yield from (([number], begin, begin + most) for begin in range(0, size, most))
        elif size:
            if filled + size > most:
                yield bundle, 0, None
                bundle, filled = [], 0
            bundle.append(number)
            filled += size
    if bundle:
        yield bundle, 0, None
