"""Determinism of reasoning-gym: fixes that make a generator give the same tasks in every process, with bounded memory.

Some draw by the order of a set, which is another one in every process: worker and validator would ask different tasks
under one number, and an honest worker would be blamed for it. Some write down all tasks that they will ever ask.
"""

from collections.abc import Iterator
from typing import Any

from shoal.errors import TaskError

# Those whose order is set too deep inside to be fixed from here.
UNSTEADY = frozenset({"codeio"})
# Those that hold something for every task, or refuse large numbers: how many they are asked for.
SIZES = {"acre": 1000, "gsm_symbolic": 1 << 16, "list_functions": 1 << 16, "pool_matrix": 1 << 31, "word_ladder": 20000}
ENDLESS = 1 << 62


def count_of(generator: str) -> int:
    """Tasks of a generator, numbered from 0."""
    return SIZES.get(generator, ENDLESS)


class _Sorted(frozenset[str]):
    """Letters in their order."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__()))

    def __sub__(self, other: Any) -> "_Sorted":
        return _Sorted(super().__sub__(other))


def steady(generator: str, dataset: Any) -> Any:
    """The generator, made to draw the same everywhere; TaskError for one that cannot be."""
    if generator in UNSTEADY:
        raise TaskError(
            f"task source reasoning-gym/{generator}: asks other tasks in every process, so that nobody could check "
            "which were asked; choose another generator"
        )
    if isinstance(getattr(dataset, "letters", None), set):
        dataset.letters = _Sorted(dataset.letters)
    if (monomials := getattr(dataset, "_get_monomials", None)) is not None:
        dataset._get_monomials = lambda rng: sorted(monomials(rng), key=str)
    return dataset
