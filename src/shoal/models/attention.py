"""One attention function for any transformers causal LM: samples packed into one row, or one new token for each slot.

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
    group's common part is computed once instead of once a sample. Linear layers run on this row without any padding.
    For attention alone the samples are gathered into a few batches of similar length, where plain causal attention is
    exact: padding stands behind every real token.
    """

    def __init__(self, families: Sequence[SharedPrompt | int], device: torch.device | str = "cpu") -> None:
        positions: list[Tensor] = []
        samples: list[Tensor] = []  # where the tokens of each sample stand in the row
        owned: list[Tensor] = []  # those of them whose output this sample provides
        self.starts: list[int] = []
        """Where each prompt begins."""
        self.answer_starts: list[int] = []
        """Where each answer begins, family after family."""
        cursor = 0
        for family in families:
            prompt, answers = (family, ()) if isinstance(family, int) else (family.prompt, family.answers)
            shared = torch.arange(cursor, cursor + prompt)
            self.starts.append(cursor)
            positions.append(torch.arange(prompt))
            cursor += prompt
            if not answers:
                samples.append(shared)
                owned.append(shared)
            for number, length in enumerate(answers):
                own = torch.arange(cursor, cursor + length)
                self.answer_starts.append(cursor)
                positions.append(torch.arange(prompt, prompt + length))
                samples.append(torch.cat([shared, own]))
                owned.append(samples[-1] if number == 0 else own)
                cursor += length
        self.tokens = cursor
        self.positions_1T = torch.cat(positions).unsqueeze(0).to(device)
        self.longest = max(len(sample) for sample in samples)
        self._buckets: list[Tensor] = []
        # Row `order[t]` of the concatenated bucket outputs belongs to packed token t.
        order_T = torch.empty(cursor, dtype=torch.long)
        offset = 0
        for members in _similar([len(sample) for sample in samples]):
            width = len(samples[members[0]])
            index_SL = torch.stack([F.pad(samples[m], (0, width - len(samples[m]))) for m in members])
            for row, m in enumerate(members):
                first = len(samples[m]) - len(owned[m])
                order_T[owned[m]] = torch.arange(first, len(samples[m])) + offset + row * width
            offset += index_SL.numel()
            self._buckets.append(index_SL.to(device))
        self._order_T = order_T.to(device)

    def attend(self, layer: int, q_1HTD: Tensor, k_1hTD: Tensor, v_1hTD: Tensor, scale: float) -> Tensor:
        del layer
        q_THD, k_ThD, v_ThD = (x.squeeze(0).transpose(0, 1) for x in (q_1HTD, k_1hTD, v_1hTD))
        grouped = q_THD.shape[1] != k_ThD.shape[1]
        parts = []
        for index_SL in self._buckets:
            q, k, v = (x[index_SL].transpose(1, 2) for x in (q_THD, k_ThD, v_ThD))
            out_SHLD = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
            parts.append(out_SHLD.transpose(1, 2).flatten(0, 1))
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        return rows[self._order_T].unsqueeze(0)


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
