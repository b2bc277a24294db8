"""Dealing: which rank computes which micro-batch of a step, in equal turns, and how its arrays get there.

Micro-batches are dealt longest first, one per rank and turn, so that those of one turn are about equally long: ranks
compute a turn together. None is computed twice; a rank for which none is left has an empty turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from shoal.train.batch import MicroBatch
from shoal.train.distributed import World


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank computes of an optimizer batch."""

    turns: list[MicroBatch | None]
    """None is an empty turn."""
    tokens: int
    """Loss tokens of the whole batch, of all ranks."""
    probe: MicroBatch
    """A small micro-batch, the same on all ranks, that shows whether new weights still give log-probs."""


def dealt(batch: Sequence[MicroBatch], probe: MicroBatch, ranks: int) -> list[Share]:
    """One optimizer batch as the shares of all ranks."""
    order = sorted(batch, key=lambda m: -m.layout.tokens)
    turns = -(-len(order) // ranks)
    tokens = sum(m.target_A.numel() for m in batch)
    padded = [*order, *[None] * (turns * ranks - len(order))]
    return [Share(padded[rank::ranks], tokens, probe) for rank in range(ranks)]


def scatter(batches: Sequence[Sequence[Share]] | None, world: World) -> list[Share]:
    """Gives each rank its own shares of all optimizer batches, which rank 0 has."""
    if world.size == 1:
        assert batches is not None
        return [shares[0] for shares in batches]
    written = None
    if batches is not None:
        written = [_write([shares[rank] for shares in batches]) for rank in range(world.size)]
    integers = world.deal(None if written is None else [integers for integers, _ in written])
    floats = world.deal(None if written is None else [floats for _, floats in written])
    if batches is not None:
        return [shares[0] for shares in batches]
    return _read(integers, floats)


ARRAYS = [field.name for field in fields(MicroBatch)]
FLOATS = ("advantage_S", "engine_logp_A")


def _write(shares: Sequence[Share]) -> tuple[Tensor, Tensor]:
    """All integers of the shares and all their floats, each in one row."""
    integers: list[Tensor] = []
    floats: list[Tensor] = []

    def put(*numbers: int) -> None:
        integers.append(torch.tensor(numbers, dtype=torch.int64))

    put(len(shares))
    for share in shares:
        put(share.tokens, len(share.turns))
        for m in (share.probe, *share.turns):
            put(m is not None)
            if m is None:
                continue
            for name in ARRAYS:
                row = getattr(m, name).flatten()
                put(row.numel())
                (floats if name in FLOATS else integers).append(row)
    return torch.cat(integers), torch.cat(floats)


def _read(integers: Tensor, floats: Tensor) -> list[Share]:
    at = {"int": 0, "float": 0}

    def cut(row: Tensor, kind: str, length: int) -> Tensor:
        begin = at[kind]
        at[kind] += length
        return row[begin : begin + length]

    def take(count: int) -> list[int]:
        numbers: list[int] = cut(integers, "int", count).tolist()
        return numbers

    def micro_batch() -> MicroBatch | None:
        if take(1) == [0]:
            return None
        rows = {}
        for name in ARRAYS:
            (length,) = take(1)
            rows[name] = cut(floats, "float", length) if name in FLOATS else cut(integers, "int", length)
        return MicroBatch(**rows | {"ids_1T": rows["ids_1T"].unsqueeze(0)})

    shares = []
    for _ in range(take(1)[0]):
        tokens, turns = take(2)
        probe = micro_batch()
        assert probe is not None
        shares.append(Share([micro_batch() for _ in range(turns)], tokens, probe))
    return shares


def empty_turn() -> MicroBatch:
    """One token, whose loss is multiplied by zero: the rank takes part in what the others gather and add."""
    rows = {name: torch.zeros(1) if name in FLOATS else torch.zeros(1, dtype=torch.int64) for name in ARRAYS}
    one = torch.ones(1, dtype=torch.int64)
    rows |= {"ids_1T": one.unsqueeze(0), "prompt_G": one, "answers_G": one, "length_S": one, "drawn_S": one}
    return MicroBatch(**rows)
