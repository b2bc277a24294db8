"""Sortition: which validators judge a batch, drawn from a beacon that nobody can choose and anybody can verify."""

from collections.abc import Sequence

from shoal.ledger.merkle import keccak_words


def draw(beacon: str, validators: Sequence[str], count: int) -> tuple[str, ...]:
    """The first `count` of the validators in an order that the beacon gives, each as likely as any other."""
    order = list(validators)
    for i in range(min(count, len(order))):
        chosen = i + int.from_bytes(keccak_words(beacon, i)) % (len(order) - i)
        order[i], order[chosen] = order[chosen], order[i]
    return tuple(order[:count])
