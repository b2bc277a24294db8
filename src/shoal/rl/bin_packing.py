"""Bin packing (first-fit decreasing): samples of uneven length into micro-batches of one token budget."""

from collections.abc import Sequence


def first_fit_decreasing(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Bins of sample indices, each index in exactly one bin and no bin over `budget` tokens.

    The longest sample goes first, each into the leftmost bin with room; samples of equal length keep their order, so
    the same lengths give the same bins on every machine. At most 11/9 of the fewest bins possible, plus 6/9 of one
    (Dósa 2007).
    """
    for index, length in enumerate(lengths):
        if not 1 <= length <= budget:
            raise ValueError(
                f"sample {index}: length {length}, allowed 1..{budget} tokens (budget): raise the budget or drop it"
            )
    bins: list[list[int]] = []
    rooms = _Rooms(len(lengths), budget)
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        slot = rooms.take_leftmost(lengths[index])
        if slot == len(bins):
            bins.append([])
        bins[slot].append(index)
    return bins


def fill(bins: Sequence[Sequence[int]], lengths: Sequence[int], budget: int) -> float:
    """The share of the bins' tokens that samples take, the rest being padding; 1 when there are no bins."""
    if not bins:
        return 1.0
    return sum(lengths[index] for members in bins for index in members) / (len(bins) * budget)


class _Rooms:
    """The room left in each bin, as a tree of maxima: the leftmost bin with room is found in log2(bins) steps.

    All bins a packing could need are there from the start, empty. An empty bin has room for every sample, so the bins
    in use are always the first ones.
    """

    def __init__(self, bins: int, budget: int) -> None:
        self._leaves = 1 << max(0, bins - 1).bit_length()
        self._room = [budget] * (2 * self._leaves)  # the children of node i are 2i and 2i + 1; node 1 is the root

    def take_leftmost(self, length: int) -> int:
        room = self._room
        node = 1
        while node < self._leaves:
            node *= 2
            if room[node] < length:
                node += 1
        slot = node - self._leaves
        room[node] -= length
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
        return slot
