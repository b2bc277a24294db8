"""Files whose answers change versions while they grow, as a worker makes them, in the world of two versions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from shoal.generate.flights import Flight
from shoal.generate.submission_builder import Maker
from shoal.protocol.lease import Lease
from shoal.protocol.spans import span_tokens
from shoal.protocol.submission import Submission
from tests.support.model_and_checks import VERSIONS, World, lease_of, weights


def early_lease(world: World, submission: int = 0) -> Lease:
    """One that begins with version 0 and may go on with version 1."""
    return replace(lease_of(world, submission), version=0, step=1)


def flown(
    world: World,
    lease: Lease,
    stays: Callable[[int], bool] = lambda _: False,
    both: Sequence[Mapping[str, Tensor]] | None = None,
) -> Submission:
    """A file of version 0 up to the first place and of version 1 from there on; answers that stay keep version 0 for a
    piece more. `both` are other weights to take for these versions."""
    maker, both = world.maker(), both or weights(world.kind)
    asked = maker.asked(lease)
    flight = Flight.begin(lease, VERSIONS[0], asked.requests, span_tokens(world.config.sampling.max_new_tokens))
    maker.policy.set_weights(both[0], "version 0")
    flight.stop()
    _advance(maker, flight, lambda _: True)
    flight.go_on(VERSIONS[1])
    _advance(maker, flight, stays)
    maker.policy.set_weights(both[1], "version 1")
    while flight.unfinished:
        _advance(maker, flight, lambda _: True)
    return maker.submission(asked, VERSIONS[0], flight.completions(), flight.swaps)


def _advance(maker: Maker, flight: Flight, chosen: Callable[[int], bool]) -> None:
    numbers = [number for number in flight.due() if chosen(number)]
    for piece in maker.engine.generate([flight.ask(number) for number in numbers]):
        flight.add(numbers[piece.key], piece)
