"""How much of a CUDA device vLLM is told it may take: what it needs, and never more than is free.

vLLM refuses to start unless the share of the device that it was told of is free, which is 92 % by default: no second
process on a device can have that. The share counts in that check even where the size of the KV cache is given. And
where it is not, vLLM takes for its own whatever other processes take while it starts; so the size is given.
"""

from dataclasses import dataclass
from pathlib import Path

from shoal.devices import DTYPES, Room
from shoal.errors import ModelError
from shoal.generate.proof_builder import CHUNK
from shoal.limits import show_size
from shoal.models.cache_size import Shape

MIB, GIB = 1 << 20, 1 << 30
# What a process has of a device before vLLM looks how much is free: CUDA's context, and NCCL's buffers. About half a
# GiB and more with several devices; other processes have the rest to grow.
CONTEXT = 3 * GIB // 2
# Beside what is counted: CUDA graphs, the workspaces of kernels, and what allocators hold in reserve.
GRAPHS = 1 * GIB
RESERVE = 0.05
# Keys and values are kept in blocks of up to so many tokens, the last of which is filled in part; vLLM keeps one empty.
BLOCK = 64
CACHE_RESERVE = 1.05
# Logits exist as they are computed, with noise, and as log-probs.
LOGIT_TENSORS = 4
# Steps whose states wait for proofs: a state keeps those of its whole step until its chunk is proven, a chunk's length
# after it came, and an answer that has just begun keeps as many again.
STEPS_HELD = 2 * CHUNK
# Rows of hidden and of intermediate size that a layer holds of each token at once.
HIDDEN_ROWS, INTERMEDIATE_ROWS = 8, 3


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that vLLM takes of each of its devices."""

    weights: int
    working: int
    """Activations, logits and graphs."""
    cache: int | None
    """Keys and values: the most that it has a use for; None for a model that does not say its shape."""
    least: int
    """Keys and values without which it cannot give one answer."""


@dataclass(frozen=True, slots=True)
class Share:
    """What vLLM is told: the share of a device, and the bytes of the KV cache; None: what is left of the share."""

    share: float
    cache: int | None


def weights_bytes(folder: Path, held: str, computed: str) -> int:
    """A version's weights in the format that is computed in."""
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return stored * DTYPES[computed].itemsize // DTYPES[held].itemsize


def worker_needs(
    folder: Path, held: str, computed: str, max_batch: int, max_len: int, batched: int, devices: int
) -> Needs:
    """A worker's: room for all answers that are generated at once, at their longest. `batched` is how many tokens are
    in a forward pass at most."""
    weights, width = weights_bytes(folder, held, computed) // devices, DTYPES[computed].itemsize
    shape = Shape.read(folder / "config.json")
    if shape is None:
        return Needs(weights, GRAPHS + int(RESERVE * weights), None, 0)
    head = 4 * shape.vocab * shape.hidden // devices * (computed != "float32")  # it is a float32 one
    logits = LOGIT_TENSORS * max_batch * shape.vocab * 4
    states = STEPS_HELD * max_batch * shape.hidden * 2
    working = GRAPHS + int(RESERVE * weights) + head + logits + states + _activations(shape, batched, width)
    one = int(CACHE_RESERVE * shape.cache(max_len + BLOCK, width, devices))
    return Needs(weights, working, max_batch * one, one)


def states_needs(folder: Path, held: str, max_len: int, budget: int) -> Needs:
    """A judge's, who computes states in float32, `budget` tokens in a forward pass: no logits and no graphs. What is
    computed in parts waits beside a whole forward pass."""
    weights = weights_bytes(folder, held, "float32")
    shape = Shape.read(folder / "config.json")
    if shape is None:
        return Needs(weights, GRAPHS + int(RESERVE * weights), None, 0)
    working = 256 * MIB + int(RESERVE * weights) + _activations(shape, budget, 4)
    # Blocks are filled in part only: short sequences take up to twice what they hold.
    cache = int(CACHE_RESERVE * shape.cache(2 * budget + max_len + BLOCK, 4))
    return Needs(weights, working, cache, cache)


def _activations(shape: Shape, tokens: int, width: int) -> int:
    return tokens * (HIDDEN_ROWS * shape.hidden + INTERMEDIATE_ROWS * shape.intermediate) * width


def share_of(room: Room, needs: Needs, asked: int | None = None, limit: float | None = None) -> Share:
    """The share of a device that is to be vLLM's; a ModelError that says what is missing where it has no room.

    `asked` is the KV cache that a person asked for: all of it, or an error. `limit` is the share of the device that was
    agreed, which vLLM then fills by what it measures. Without either, the cache is what all answers can use, or less
    where less is free.
    """
    usable = room.free - CONTEXT
    if limit is not None:
        usable = min(usable, int(limit * room.total))
    left = usable - needs.weights - needs.working
    least = asked if asked is not None else needs.least
    if left < max(least, 0):
        raise ModelError(
            f"vLLM needs {show_size(needs.weights)} of weights, {show_size(needs.working)} to work in and "
            f"{show_size(least)} of KV cache on a device, and has {show_size(max(0, usable))} of "
            f"{show_size(room.total)}: {show_size(room.free)} are free, {show_size(CONTEXT)} of which are for CUDA "
            "itself"
        )
    if asked is not None:
        return Share((needs.weights + needs.working + asked) / room.total, asked)
    if limit is not None or needs.cache is None:
        return Share(usable / room.total, None)
    cache = min(needs.cache, left)
    return Share((needs.weights + needs.working + cache) / room.total, cache)
