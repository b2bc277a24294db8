"""Honest ways: the same model computed as other engines, kernels and GPUs would, on any machine.

Two honest machines never agree to the last bit in bfloat16: kernels add in another order, round in other places, split
the work over other numbers of devices. Each way here is one such cause. Calibration measures how far honest ways are
apart, tests and benchmarks judge honest files made in each of them, and a table that is calibrated without a way must
not blame it: that stands in for the hardware that nobody has tried.

bfloat16 is emulated: matrices are multiplied in float32, and results are rounded where a kernel would write them to
memory. That is what bfloat16 hardware does, which adds up in float32, and on a CPU it is several times as fast.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.errors import ModelError
from shoal.models.load import AGREEMENT, Policy, disagreement

# Sequences of one forward pass.
ROWS = 16
# Tokens that an emulation is compared with the model on.
PROBE = 12
Rounding = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Way:
    """How an honest party computes: each field is a choice that some engine or kernel makes."""

    name: str
    attention: Literal["flash", "eager", "split"] = "flash"
    """One kernel that rounds its output; scores and weights rounded on the way; keys in pieces, each one's output
    rounded before they are merged by their normalisers."""
    slices: int = 1
    """Tensor parallelism: devices that each hold a part of a row-parallel layer's inputs, and add rounded sums."""
    norm: Literal["before", "after"] = "before"
    """Whether a normalised state is rounded before it is multiplied by the layer's weight, or after."""
    fused: bool = False
    """Whether the gated activation is computed in one kernel and rounded once."""
    rope: bool = False
    """Whether positions are rotated in float32, and the result rounded once."""
    residual: bool = False
    """Whether the residual stream is kept in float32."""
    head: bool = False
    """Whether logits are computed and kept in float32."""
    wide: bool = False
    """Nothing is rounded: float32 on the same bfloat16 weights."""


WAYS: Mapping[str, Way] = {
    way.name: way
    for way in (
        Way("flash"),
        Way("eager", attention="eager"),
        Way("split-kv", attention="split"),
        Way("tp2", slices=2),
        Way("tp4", slices=4),
        Way("tp8", slices=8),
        Way("norm-after", norm="after"),
        Way("fused", fused=True, norm="after"),
        Way("rope-float32", rope=True),
        Way("head-float32", head=True),
        Way("residual-float32", residual=True),
        Way("vllm-like", fused=True, norm="after", rope=True, head=True),
        Way("tp4-split", slices=4, attention="split", fused=True, norm="after"),
        Way("tp8-eager", slices=8, attention="eager"),
        Way("float32", wide=True, head=True),
    )
}


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def exact(x: Tensor) -> Tensor:
    return x


class Dense:
    """Rows of equal length; each token sees its row up to itself."""

    def __init__(self, longest: int, way: Way) -> None:
        self.longest = longest
        self._kind = way.attention
        self._round = exact if way.wide else rounded

    def attend(self, layer: int, q_BHTD: Tensor, k_BhTD: Tensor, v_BhTD: Tensor, scale: float) -> Tensor:
        del layer
        repeats = q_BHTD.shape[1] // k_BhTD.shape[1]
        k, v = (x.repeat_interleave(repeats, 1) if repeats > 1 else x for x in (k_BhTD, v_BhTD))
        if self._kind == "flash":
            out = F.scaled_dot_product_attention(q_BHTD, k, v, is_causal=True, scale=scale)
        elif self._kind == "eager":
            hidden = torch.ones(self.longest, self.longest, dtype=torch.bool, device=q_BHTD.device).triu(1)
            scores = self._round(q_BHTD @ k.transpose(2, 3)) * scale
            out = self._round(torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)) @ v
        else:
            out = self._merged(q_BHTD, k, v, scale)
        return self._round(out).transpose(1, 2)

    def _merged(self, q: Tensor, k: Tensor, v: Tensor, scale: float, pieces: int = 4) -> Tensor:
        place_T = torch.arange(q.shape[2], device=q.device)
        outs, norms = [], []
        for keys, values, at_S in zip(k.chunk(pieces, 2), v.chunk(pieces, 2), place_T.chunk(pieces), strict=True):
            scores = (q @ keys.transpose(2, 3)) * scale
            scores = scores.masked_fill(at_S > place_T[:, None], -1e30)
            norms.append(torch.logsumexp(scores, dim=-1))
            outs.append(self._round(torch.softmax(scores, dim=-1) @ values))
        weights = torch.softmax(torch.stack(norms), dim=0)
        return (torch.stack(outs) * weights[..., None]).sum(0)


@contextmanager
def computed_as(policy: Policy, way: Way, to: Rounding = rounded) -> Iterator[None]:
    """The policy, whose weights are bfloat16 values in float32, computed in a way, for a while; `to` is how it rounds
    what is written to memory."""
    if way.wide:
        yield
        return
    with ExitStack() as undo:
        for name, module in policy.model.named_modules():
            if (forward := _forward(name, module, way, to)) is not None:
                module.forward = forward
                undo.callback(module.__dict__.pop, "forward")
        yield


def _forward(name: str, module: Any, way: Way, to: Rounding) -> Callable[..., Any] | None:
    """What a module computes in this way; None where that is what it computes anyway."""
    kind = type(module).__name__
    if isinstance(module, nn.Linear):
        head = name.endswith(("lm_head", "embed_out"))
        parallel = name.endswith(("o_proj", "down_proj"))
        return None if head and way.head else _linear(module, way.slices if parallel else 1, to)
    if kind.endswith("RMSNorm"):
        return _norm(module, way.norm, to)
    if kind.endswith("MLP"):
        return _gated(module, to, fused=way.fused)
    if kind.endswith("RotaryEmbedding"):
        return None if way.rope else _rope(module, to)
    if kind.endswith("DecoderLayer"):
        return _layer(module, exact if way.residual else to)
    return None


def _linear(module: nn.Linear, slices: int, to: Rounding) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        parts = zip(to(x).chunk(slices, -1), module.weight.chunk(slices, 1), strict=True)
        sums = [to(F.linear(piece, weight)) for piece, weight in parts]
        total = reduce(lambda so_far, more: to(so_far + more), sums)
        return total if module.bias is None else to(total + module.bias)

    return forward


def _norm(module: Any, kind: str, to: Rounding) -> Callable[[Tensor], Tensor]:
    eps = float(getattr(module, "variance_epsilon", None) or getattr(module, "eps", None) or 1e-6)

    def forward(x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return to(module.weight * (to(x) if kind == "before" else x))

    return forward


def _gated(module: Any, to: Rounding, *, fused: bool) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        gate = module.act_fn(module.gate_proj(x))
        gated = (gate if fused else to(gate)) * module.up_proj(x)
        out: Tensor = module.down_proj(to(gated))
        return out

    return forward


def _rope(module: Any, to: Rounding) -> Callable[..., tuple[Tensor, Tensor]]:
    def forward(x: Tensor, position_ids: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
        cos, sin = type(module).forward(module, x, position_ids, **more)
        return to(cos), to(sin)

    return forward


def _layer(module: Any, keep: Rounding) -> Callable[..., Tensor]:
    def forward(hidden_states: Tensor, **more: Any) -> Tensor:
        out, _ = module.self_attn(hidden_states=module.input_layernorm(hidden_states), **more)
        hidden_states = keep(hidden_states + out)
        return keep(hidden_states + module.mlp(module.post_attention_layernorm(hidden_states)))

    return forward


@torch.inference_mode()
def check_emulated(policy: Policy) -> None:
    """Refuses a model that these ways do not compute, by name: without rounding they must come to its own logits.

    Otherwise a judge would take another computation for its noise, and no cheat would stand out of it.
    """
    ids_1T = torch.arange(PROBE, device=policy.device).remainder(policy.vocab).unsqueeze(0)
    positions_1T = torch.arange(PROBE, device=policy.device).unsqueeze(0)
    row = Dense(PROBE, WAYS["float32"])
    own = policy.head(policy.hidden(ids_1T, positions_1T, row))
    try:
        with computed_as(policy, WAYS["flash"], exact):
            found = policy.head(policy.hidden(ids_1T, positions_1T, row))
    except Exception as error:  # whatever a model does whose modules are put together otherwise
        why = f"{type(error).__name__}: {error}"
    else:
        if (off := disagreement(own, found)) <= AGREEMENT[own.dtype]:
            return
        why = f"its logits would be off by {off:.3g} of their spread"
    raise ModelError(
        f"{type(policy.model).__name__}: is not put together as Llama is ({why}), so what honest bfloat16 rounding "
        "makes of it is not known; set model.dtype = 'float32'"
    )


@torch.inference_mode()
def states_of(policy: Policy, way: Way, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """Final hidden states of whole sequences, T x D each."""
    found: list[Tensor] = []
    with computed_as(policy, way):
        for begin in range(0, len(sequences), ROWS):
            rows = sequences[begin : begin + ROWS]
            longest = max(map(len, rows))
            ids_BT = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=policy.device)
            positions_BT = torch.arange(longest, device=policy.device).expand(len(rows), -1)
            out = policy.hidden(ids_BT, positions_BT, Dense(longest, way))
            found += [out[row, : len(ids)] for row, ids in enumerate(rows)]
    return found


@torch.inference_mode()
def logits_of(policy: Policy, way: Way, states: Tensor) -> Tensor:
    with computed_as(policy, way):
        return policy.head(states)
