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
from torch import Tensor
from transformers import AttentionInterface

from shoal.devices import CPU
from shoal.errors import ModelError
from shoal.models.kernels import Row, row_on
from shoal.models.kernels.segments import Family, Segments, Stretch

NAME = "shoal"


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

    The layout itself is numbers on the host. What attention needs of it on a device is made when a query of that device
    first comes, so that one layout serves any policy.
    """

    def __init__(self, families: Sequence[SharedPrompt | int], device: torch.device = CPU) -> None:
        """`device` is where `positions_1T` is; a policy moves it to its own."""
        self.starts: list[int] = []
        """Where each prompt begins."""
        self.answer_starts: list[int] = []
        """Where each answer begins, family after family."""
        own: list[Stretch] = []
        shared: list[Family] = []
        positions: list[Tensor] = []
        self.longest = 0
        cursor = 0
        for family in families:
            prompt, answers = (family, ()) if isinstance(family, int) else (family.prompt, family.answers)
            # A single answer shares its prompt with nobody: both are one stretch, which needs one softmax.
            alone = len(answers) == 1
            whole = Stretch(cursor, cursor + prompt + (answers[0] if alone else 0))
            self.starts.append(cursor)
            positions.append(torch.arange(prompt))
            cursor += prompt
            each: list[Stretch] = []
            for length in answers:
                self.answer_starts.append(cursor)
                if length and not alone:
                    each.append(Stretch(cursor, cursor + length))
                positions.append(torch.arange(prompt, prompt + length))
                cursor += length
            own += [whole, *each]
            if each:
                shared.append(Family(whole, tuple(each)))
            self.longest = max(self.longest, prompt + max(answers, default=0))
        self.tokens = cursor
        self.positions_1T = torch.cat(positions).unsqueeze(0).to(device)
        self.segments = Segments(tuple(own), tuple(shared))
        self._rows: dict[tuple[torch.device, torch.dtype], Row] = {}

    def attend(self, layer: int, q_1HTD: Tensor, k_1hTD: Tensor, v_1hTD: Tensor, scale: float) -> Tensor:
        del layer
        kind = q_1HTD.device, q_1HTD.dtype
        if (row := self._rows.get(kind)) is None:
            row = self._rows[kind] = row_on(self.segments, q_1HTD[0], v_1hTD[0])
        return row.attend(q_1HTD[0], k_1hTD[0], v_1hTD[0], scale).unsqueeze(0)


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
