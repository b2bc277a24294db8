"""Files whose answers change versions while they grow, as a worker makes them, in the world of two versions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from shoal.generate.flights import Flight
from shoal.protocol.lease import Lease
from shoal.protocol.spans import SpanLease, span_tokens
from shoal.protocol.stores import Version
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
    versions: Sequence[Version] = VERSIONS,
    span_of: Callable[[Lease, int, int], SpanLease] | None = None,
) -> Submission:
    """A file whose first span is version 0's and all others version 1's; answers that stay have version 0 draw their
    second span as well, which the file does not say. `both` are other weights to take for these versions, `span_of`
    says what they go on with."""

    def unsigned(_: Lease, first: int, number: int) -> SpanLease:
        return SpanLease(first, number, versions[number].root, beacon=1000 + first)

    maker, both = world.maker(), both or weights(world.kind)
    asked, ask_span = maker.asked(lease), span_of or unsigned
    flight = Flight.begin(lease, versions[0], asked.requests, span_tokens(world.config.sampling.max_new_tokens))
    for span in range(flight.answers[0].request.max_new_tokens // flight.every + 1):
        version = versions[min(span, 1)]
        if (first := flight.unleased()) is not None:
            flight.later.append(ask_span(lease, first, version.number))
        numbers = flight.due(version)
        stay = [number for number in numbers if span == 1 and stays(number)]
        for number, drawn in ((span, stay), (min(span, 1), [n for n in numbers if n not in stay])):
            maker.policy.set_weights(both[0 if drawn is stay else number], f"version {number}")
            for piece in maker.engine.generate([flight.ask(n) for n in drawn]):
                flight.add(drawn[piece.key], piece)
    return maker.submission(asked, versions[0], flight.completions(), flight.later)
