"""False claims about which version drew which tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from shoal import toploc
from shoal.attacks.base import attack
from shoal.attacks.weights import OlderVersion
from shoal.generate.engine import Completion, Request
from shoal.generate.submission_builder import Maker
from shoal.protocol.lease import Lease
from shoal.protocol.spans import SpanLease, span_tokens
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission

# Where a cheat changes versions that does not say so: also the shortest answers have that many tokens and more.
EARLY = 2


@attack
class HiddenSwap(OlderVersion):
    """Begins answers with the version before and goes on with the right one, which alone it names."""

    asks_for_states: ClassVar[bool] = True

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        begun = OlderVersion.answer(self, [replace(request, max_new_tokens=EARLY) for request in requests])
        open_ = [c for c in begun if c.finish == "length"]
        rest = [
            replace(
                requests[c.key],
                prompt=(*requests[c.key].prompt, *c.tokens),
                max_new_tokens=requests[c.key].max_new_tokens - EARLY,
                position=EARLY,
            )
            for c in open_
        ]
        ends = dict(zip((c.key for c in open_), Maker.answer(self, rest), strict=True))
        return [_joined(c, ends[c.key]) if c.key in ends else c for c in begun]


def _joined(first: Completion, second: Completion) -> Completion:
    """Two pieces as one, proven as one."""
    assert first.hidden_TD is not None
    assert second.hidden_TD is not None
    states_TD = torch.cat([first.hidden_TD, second.hidden_TD])
    tokens, logps = first.tokens + second.tokens, first.logprobs + second.logprobs
    return Completion(first.key, tokens, logps, second.finish, toploc.build(states_TD.bfloat16()), states_TD)


class _Claimed(Maker):
    """An honest file with a span lease of its own making."""

    def span(self, lease: Lease, version: Version) -> SpanLease:
        raise NotImplementedError

    def make(self, lease: Lease, version: Version) -> Submission:
        return replace(Maker.make(self, lease, version), later=(self.span(lease, version),))

    @property
    def every(self) -> int:
        return span_tokens(self.config.sampling.max_new_tokens)


@attack
class ClaimedSwap(_Claimed):
    """Says that its answers went on with the next version, which it does not have: they would count as newer."""

    def span(self, lease: Lease, version: Version) -> SpanLease:
        del lease
        return SpanLease(self.every, version.number + 1, version.root, 7)


@attack
class SwapBeyondTheStep(_Claimed):
    """Says that its answers went on with a version that its step does not take."""

    def span(self, lease: Lease, version: Version) -> SpanLease:
        return SpanLease(self.every, lease.step + 1, version.root, 7)


@attack
class SwapAtChosenToken(_Claimed):
    """Says that its answers changed versions between two places, where it liked what came."""

    def span(self, lease: Lease, version: Version) -> SpanLease:
        del lease
        return SpanLease(self.every + 1, version.number + 1, version.root, 7)
