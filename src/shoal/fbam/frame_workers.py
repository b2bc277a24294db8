"""Frame workers: the head of an action model computed by others, span by span, for one master of the recurrence.

A span lease names frames of a recording, the recording's hash and a version of the weights. The worker returns the
span's embeddings; the master integrates over all frames and returns the embeddings' gradient; the worker computes its
span again and returns the gradient of the head. Frames do not see each other in the head, so the sum over spans is the
gradient of one process. The master checks the form of every answer, and computes a drawn share of them again. It draws
after an answer has come, so that no worker can know which.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from shoal.errors import FbamError
from shoal.fbam.action_model import ActionModel
from shoal.fbam.frames import IGNORED, Stream
from shoal.fbam.gradient import count_scored
from shoal.text import one_line

Gradients = Mapping[str, Tensor]
TOLERANCE = 1e-4  # relative L2 error that honest machines stay below in float32, with room for other kernels
# Of the whole gradient's norm. A parameter whose gradient is smaller is compared with this: its parts may have
# cancelled, and what is left is then the rounding of numbers that were larger.
SMALL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class SpanLease:
    """Permission to embed frames begin .. end - 1 of one recording with one version of the weights."""

    recording: str
    """SHA-256 of its file. Frames of another recording have the same shape: no size would tell them apart."""
    version: int
    begin: int
    end: int

    def __str__(self) -> str:
        return (
            f"lease of recording {self.recording[:12]}, version {self.version}, frames {self.begin} .. {self.end - 1}"
        )


class FrameWorker(Protocol):
    """A machine that has the frames and the head's weights."""

    def embed(self, lease: SpanLease) -> Tensor:
        """Embeddings of the span, batch x frames x width."""

    def backpropagate(self, lease: SpanLease, gradient_BTD: Tensor) -> Gradients:
        """The gradient of the head's parameters, given that of the span's embeddings."""


class LocalFrameWorker:
    """An honest worker: it computes with the model and the stream it was given, if the lease is for these.

    `recording` is the SHA-256 of the file that the stream is read from.
    """

    def __init__(self, model: ActionModel, stream: Stream, recording: str, version: int) -> None:
        self.model, self.stream, self.recording, self.version = model, stream, recording, version

    def embed(self, lease: SpanLease) -> Tensor:
        self._check(lease)
        with torch.no_grad():
            return self.model.embed(self.stream.frames(lease.begin, lease.end))

    def backpropagate(self, lease: SpanLease, gradient_BTD: Tensor) -> Gradients:
        self._check(lease)
        names, parameters = zip(*self.model.head.named_parameters(), strict=True)
        embeddings_BTD = self.model.embed(self.stream.frames(lease.begin, lease.end))
        return dict(zip(names, torch.autograd.grad(embeddings_BTD, parameters, gradient_BTD), strict=True))

    def _check(self, lease: SpanLease) -> None:
        if lease.recording != self.recording:
            raise FbamError(f"{lease}: this worker has recording {self.recording[:12]}; fetch {lease.recording}")
        if lease.version != self.version:
            raise FbamError(f"{lease}: this worker has version {self.version}; fetch {lease.version}")


class Auditor:
    """Computes a drawn share of answers again, and refuses one that differs by more than rounding."""

    def __init__(self, own: FrameWorker, rate: float, secret: int) -> None:
        self._own, self._rate, self._random = own, rate, random.Random(secret)

    def check_embeddings(self, worker: int, lease: SpanLease, answer: Tensor) -> None:
        if self._random.random() < self._rate:
            self._compare(worker, lease, "embeddings", answer, self._own.embed(lease))

    def check_gradients(self, worker: int, lease: SpanLease, gradient_BTD: Tensor, answer: Gradients) -> None:
        if self._random.random() < self._rate:
            expected = self._own.backpropagate(lease, gradient_BTD)
            check_gradient_forms(worker, lease, answer, expected)
            whole = float(torch.stack([gradient.norm() for gradient in expected.values()]).norm())
            for name, found in answer.items():
                self._compare(worker, lease, f"gradient of {name}", found, expected[name], whole * SMALL_SHARE)

    @staticmethod
    def _compare(
        worker: int, lease: SpanLease, what: str, found: Tensor, expected: Tensor, smallest: float = 0.0
    ) -> None:
        """Refuses a difference above TOLERANCE, relative to the expected norm or to `smallest` if that is more."""
        check_form(worker, lease, what, found, expected)
        norm = max(float(expected.norm()), torch.finfo(expected.dtype).tiny)
        error, allowed = float((found - expected).norm()) / norm, TOLERANCE * max(1.0, smallest / norm)
        if not error <= allowed:
            raise FbamError(f"frame worker {worker}: {lease}: {what} differ by {error:.1e}, allowed is {allowed:.0e}")


def check_form(worker: int, lease: SpanLease, what: str, found: Tensor, like: Tensor) -> None:
    """Refuses an answer of another shape or type, or with a number that is not finite."""
    for given, expected in ((tuple(found.shape), tuple(like.shape)), (found.dtype, like.dtype)):
        if given != expected:
            raise FbamError(f"frame worker {worker}: {lease}: {what} of {given}, not {expected}")
    if not bool(found.isfinite().all()):
        raise FbamError(f"frame worker {worker}: {lease}: {what} with a number that is not finite")


def check_gradient_forms(worker: int, lease: SpanLease, answer: Gradients, like: Mapping[str, Tensor]) -> None:
    """Refuses gradients of other parameters than the head's, or of another form than theirs."""
    if answer.keys() != like.keys():
        names = ", ".join(sorted(map(one_line, answer.keys() ^ like.keys())))
        raise FbamError(
            f"frame worker {worker}: {lease}: gradients of other parameters than the head's: {names:.200} "
            "on one side alone"
        )
    for name, found in answer.items():
        check_form(worker, lease, f"gradient of {name}", found, like[name])


def gradient_with_workers(
    model: ActionModel,
    stream: Stream,
    recording: str,
    workers: Sequence[FrameWorker],
    span: int,
    version: int,
    auditor: Auditor,
) -> float:
    """Adds the gradient of the stream's mean loss to `.grad` and returns the loss; workers take spans in turns."""
    if not workers or span < 1:
        raise FbamError(f"frame workers: {len(workers)} of them, spans of {span} frames: both must be at least 1")
    count_scored(stream, [(0, stream.length)])
    leases = [
        (number % len(workers), SpanLease(recording, version, begin, min(begin + span, stream.length)))
        for number, begin in enumerate(range(0, stream.length, span))
    ]
    head = dict(model.head.named_parameters())
    kind = next(iter(head.values()))
    parts: list[Tensor] = []
    for worker, lease in leases:
        parts.append(workers[worker].embed(lease).detach())
        form = kind.new_empty(stream.batch, lease.end - lease.begin, model.config.head_width)
        check_form(worker, lease, "embeddings", parts[-1], form)
        auditor.check_embeddings(worker, lease, parts[-1])
    embeddings_BTD = torch.cat(parts, dim=1).requires_grad_()
    logits_BTA, _ = model.integrate(embeddings_BTD, model.initial_state(stream.batch))
    targets = stream.targets(0, stream.length).flatten()
    loss = cross_entropy(logits_BTA.flatten(0, 1), targets, ignore_index=IGNORED)
    loss.backward()
    assert embeddings_BTD.grad is not None
    if not bool(embeddings_BTD.grad.isfinite().all()):
        # Handed on, it would make answers of honest workers look like lies.
        raise FbamError(
            f"frame workers: version {version}: loss {float(loss.detach())} has a gradient that is not finite, "
            "and no worker is to blame; go back to an earlier version and use a smaller learning rate"
        )
    for worker, lease in leases:
        gradient_BTD = embeddings_BTD.grad[:, lease.begin : lease.end]
        answer = workers[worker].backpropagate(lease, gradient_BTD)
        check_gradient_forms(worker, lease, answer, head)
        auditor.check_gradients(worker, lease, gradient_BTD, answer)
        for name, parameter in head.items():
            parameter.grad = answer[name].clone() if parameter.grad is None else parameter.grad + answer[name]
    return float(loss.detach())
