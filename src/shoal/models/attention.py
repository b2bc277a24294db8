"""One attention function for any transformers causal LM: packed rows for training and prefill, one token per slot for
decoding.

transformers looks attention up by name and hands keyword arguments through to it. A `layout` passed with a forward call
therefore decides, for that call alone, what each token may look at; the model's own code is untouched, and no mask of
tokens x tokens is ever built.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from shoal.errors import ModelError

NAME = "shoal"
# Samples of similar length are padded together; a bucket may spend at most this share of its rows on padding.
MAX_PADDING = 0.25


class Layout(Protocol):
    """What the tokens of one forward call may attend to."""

    longest: int

    def attend(self, layer: int, q_1HTD: Tensor, k_1hTD: Tensor, v_1hTD: Tensor, scale: float) -> Tensor:
        """Attention output as batch x tokens x heads x head size."""
        ...


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """A prompt and the lengths of the answers that follow it; without answers, a sample on its own."""

    prompt: int
    answers: tuple[int, ...] = ()


class Packed:
    """Samples laid end to end in one row; each token sees its own sample up to itself and nothing else.

    A family's prompt stands in the row once and its answers follow it: every answer sees the prompt and itself, so the
    group's common part is computed once instead of once per sample. Linear layers run on this row without any padding.

    Attention knows two kinds of work. Every prompt and every answer is a segment that attends to itself causally;
    segments of similar length are gathered into batches, where padding stands behind every real token. And the answers
    of a family, taken together, attend to its prompt. An answer's two softmaxes become one by their normalisers.
    """

    def __init__(self, families: Sequence[SharedPrompt | int], device: torch.device | str = "cpu") -> None:
        self.starts: list[int] = []
        """Where each prompt begins."""
        self.answer_starts: list[int] = []
        """Where each answer begins, family after family."""
        self.shared: list[tuple[int, int, int]] = []
        """Begin of a prompt, its end where the answers begin, and their end, of each family with answers."""
        segments: list[tuple[int, int]] = []  # begin and length
        positions: list[Tensor] = []
        self.longest = 0
        cursor = 0
        for family in families:
            prompt, answers = (family, ()) if isinstance(family, int) else (family.prompt, family.answers)
            begin = cursor
            self.starts.append(begin)
            segments.append((begin, prompt))
            positions.append(torch.arange(prompt))
            cursor += prompt
            for length in answers:
                self.answer_starts.append(cursor)
                if length:
                    segments.append((cursor, length))
                positions.append(torch.arange(prompt, prompt + length))
                cursor += length
            if cursor > begin + prompt:
                self.shared.append((begin, begin + prompt, cursor))
            self.longest = max(self.longest, prompt + max(answers, default=0))
        self.tokens = cursor
        self.positions_1T = torch.cat(positions).unsqueeze(0).to(device)
        self.batches: list[Batch] = []
        # Row `order[t]` of the concatenated batches belongs to packed token t.
        order_T = torch.empty(cursor, dtype=torch.long)
        offset = 0
        for members in _similar([length for _, length in segments]):
            begins_S1, lengths_S1 = torch.tensor([segments[m] for m in members]).unsqueeze(2).unbind(1)
            column_L = torch.arange(int(lengths_S1.max()))
            # A segment is padded with copies of its last token: their scores are as bounded as its own.
            index_SL = begins_S1 + column_L.minimum(lengths_S1 - 1)
            real_SL = column_L < lengths_S1
            order_T[index_SL[real_SL]] = torch.arange(offset, offset + index_SL.numel())[real_SL.flatten()]
            offset += index_SL.numel()
            padding = None if bool(real_SL.all()) else ~real_SL.to(device)
            self.batches.append(Batch(index_SL.to(device), padding))
        self.order_T = order_T.to(device)

    def attend(self, layer: int, q_1HTD: Tensor, k_1hTD: Tensor, v_1hTD: Tensor, scale: float) -> Tensor:
        del layer
        repeats = q_1HTD.shape[1] // k_1hTD.shape[1]
        k_1HTD, v_1HTD = (x.repeat_interleave(repeats, 1) if repeats > 1 else x for x in (k_1hTD, v_1hTD))
        # Zeros behind a head change nothing, and the kernel wants values as wide as keys.
        size, values = q_1HTD.shape[-1], v_1HTD.shape[-1]
        wide = max(size, values)
        padded = ((q_1HTD, wide - size), (k_1HTD, wide - size), (v_1HTD, wide - values))
        q, k, v = (F.pad(x[0], (0, more)).transpose(0, 1).contiguous() for x, more in padded)
        out_THD: Tensor = _PackedAttention.apply(q, k, v, self, scale)  # type: ignore[no-untyped-call]
        return out_THD[..., :values].unsqueeze(0)


@dataclass(frozen=True, slots=True)
class Batch:
    """Segments of similar length: where their tokens stand in the row, and which of these are padding, if any."""

    index_SL: Tensor
    padding_SL: Tensor | None


class _PackedAttention(torch.autograd.Function):
    """Attention of a packed row. Its gradient is flash attention's own: a part of the keys needs only the output and
    the normaliser of the whole softmax to know its share of the gradient.
    """

    @staticmethod
    def forward(ctx: Any, q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, row: Packed, scale: float) -> Tensor:
        outs, lses = [], []
        for batch in row.batches:
            q, k, v = (_gather(x, batch.index_SL) for x in (q_THD, k_THD, v_THD))
            out_SHLD, lse_SHL = _flash(q, k, v, True, scale)
            outs.append(out_SHLD.transpose(1, 2).flatten(0, 1))
            lses.append(lse_SHL.transpose(1, 2).flatten(0, 1))
        out_THD, lse_TH = (torch.cat(x).index_select(0, row.order_T) for x in (outs, lses))
        if row.shared:
            more_THD, more_TH = torch.zeros_like(out_THD), torch.full_like(lse_TH, float("-inf"))
            for begin, prompt_end, end in row.shared:
                prompt, answers = slice(begin, prompt_end), slice(prompt_end, end)
                q, k, v = _batched(q_THD[answers]), _batched(k_THD[prompt]), _batched(v_THD[prompt])
                out_1HAD, lse_1HA = _flash(q, k, v, False, scale)
                more_THD[answers], more_TH[answers] = out_1HAD[0].transpose(0, 1), lse_1HA[0].t()
            out_THD, lse_TH = _merge(out_THD, lse_TH, more_THD, more_TH)
        ctx.save_for_backward(q_THD, k_THD, v_THD, out_THD, lse_TH)
        ctx.row, ctx.scale = row, scale
        return out_THD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q_THD, k_THD, v_THD, out_THD, lse_TH = ctx.saved_tensors
        row, scale = ctx.row, ctx.scale
        tensors = grads[0].contiguous(), q_THD, k_THD, v_THD, out_THD
        parts = []
        for batch in row.batches:
            grad, q, k, v, out = (_gather(x, batch.index_SL) for x in tensors)
            if batch.padding_SL is not None:
                grad = grad.masked_fill(batch.padding_SL[:, None, :, None], 0)
            lse = lse_TH[batch.index_SL].transpose(1, 2)
            shares = _flash_backward(grad, q, k, v, out, lse, True, scale)
            parts.append([x.transpose(1, 2).flatten(0, 1) for x in shares])
        dq, dk, dv = (torch.cat(x).index_select(0, row.order_T) for x in zip(*parts, strict=True))
        for begin, prompt_end, end in row.shared:
            prompt, answers = slice(begin, prompt_end), slice(prompt_end, end)
            at = answers, answers, prompt, prompt, answers
            grad, q, k, v, out = (_batched(x[where]) for x, where in zip(tensors, at, strict=True))
            lse = lse_TH[answers].t().unsqueeze(0)
            shares = _flash_backward(grad, q, k, v, out, lse, False, scale)
            for total, where, share in zip((dq, dk, dv), (answers, prompt, prompt), shares, strict=True):
                total[where] += share[0].transpose(0, 1)
        return dq, dk, dv, None, None


def _gather(x_THD: Tensor, index_SL: Tensor) -> Tensor:
    """Segments as a batch, heads first."""
    return x_THD.index_select(0, index_SL.flatten()).view(*index_SL.shape, *x_THD.shape[1:]).transpose(1, 2)


def _batched(x_THD: Tensor) -> Tensor:
    """A stretch of the row as a batch of one, heads first."""
    return x_THD.transpose(0, 1).unsqueeze(0)


def _merge(out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys, of which the second may be empty (its normaliser is then -inf)."""
    total = torch.logaddexp(lse, more_lse)
    kept, added = ((part - total).exp().unsqueeze(-1) for part in (lse, more_lse))
    return (out * kept + more_out * added).to(out.dtype), total


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of the scores."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return out, lse


def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, lse, 0.0, causal, scale=scale
    )
    return dq, dk, dv


def _similar(lengths: Sequence[int]) -> list[list[int]]:
    """Samples in buckets, longest first, each bucket wasting at most MAX_PADDING of its rows."""
    buckets: list[list[int]] = []
    used = 0
    for sample in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        n = lengths[sample]
        if buckets:
            bucket = buckets[-1]
            room = (len(bucket) + 1) * lengths[bucket[0]]
            if used + n >= (1 - MAX_PADDING) * room:
                bucket.append(sample)
                used += n
                continue
        buckets.append([sample])
        used = n
    return buckets


class Recording:
    """A packed prefill that also hands out each layer's keys and values, for a cache to keep."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self.longest = packed.longest
        self.keys_hTD: dict[int, Tensor] = {}
        self.values_hTD: dict[int, Tensor] = {}

    def attend(self, layer: int, q_1HTD: Tensor, k_1hTD: Tensor, v_1hTD: Tensor, scale: float) -> Tensor:
        self.keys_hTD[layer], self.values_hTD[layer] = k_1hTD[0], v_1hTD[0]
        return self.packed.attend(layer, q_1HTD, k_1hTD, v_1hTD, scale)


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every attention layer; refuses whatever it would silently compute differently."""
    name = type(module).__name__
    if layout is None:
        raise ModelError(f"{name}: the forward call carried no layout, so its attention is undefined; pass layout=...")
    window = kwargs.get("sliding_window")
    if window is not None and layout.longest > window:
        raise ModelError(
            f"{name}: its sliding window of {window} tokens is shorter than a sequence of {layout.longest}; "
            f"shorten prompt and max_new_tokens to fit in {window}"
        )
    for unsupported in ("softcap", "position_bias", "s_aux"):
        if kwargs.get(unsupported) is not None:
            raise ModelError(f"{name}: attention with {unsupported} is not supported")
    if dropout or attention_mask is not None:
        raise ModelError(f"{name}: attention dropout and extra masks are not supported; set attention_dropout to 0")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return layout.attend(int(module.layer_idx), query, key, value, scale), None  # type: ignore[arg-type]


AttentionInterface.register(NAME, attention)
