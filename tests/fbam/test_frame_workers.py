"""Frame workers: two of them train the weights of one process, and one that answers falsely is caught."""

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from shoal.errors import FbamError
from shoal.fbam import ActionModel, build_model, streamed_gradient
from shoal.fbam.frame_workers import Auditor, FrameWorker, Gradients, LocalFrameWorker, SpanLease, gradient_with_workers
from tests.fbam.support import random_stream, small_config

STREAM = random_stream(17)
RECORDING, OTHER = "1a" * 32, "2b" * 32  # hashes
STEPS = 5


class Scaled(LocalFrameWorker):
    """Returns embeddings that are a thousandth too large."""

    def embed(self, lease: SpanLease) -> Tensor:
        return super().embed(lease) * 1.001


class ScaledGradient(LocalFrameWorker):
    """Returns gradients of half the size."""

    def backpropagate(self, lease: SpanLease, gradient_BTD: Tensor) -> Gradients:
        return {name: gradient / 2 for name, gradient in super().backpropagate(lease, gradient_BTD).items()}


class Careless(LocalFrameWorker):
    """Answers with the weights and frames that it has, whatever the lease names."""

    def _check(self, lease: SpanLease) -> None:
        pass


def step_with(model: ActionModel, workers: Sequence[FrameWorker], version: int = 0, rate: float = 1.0) -> float:
    auditor = Auditor(LocalFrameWorker(model, STREAM, RECORDING, version), rate, secret=7)
    return gradient_with_workers(model, STREAM, RECORDING, workers, 4, version, auditor)


def test_two_frame_workers_give_the_weights_of_one_process() -> None:
    alone, master = (build_model(small_config(), seed=1) for _ in range(2))
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (alone, master)]
    for version in range(STEPS):
        workers = [LocalFrameWorker(copy.deepcopy(master), STREAM, RECORDING, version) for _ in range(2)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = streamed_gradient(alone, STREAM, 5)
        assert step_with(master, workers, version) == pytest.approx(expected.mean, rel=1e-5)
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(alone.parameters(), master.parameters(), strict=True):
        assert float((one - other).norm()) <= 1e-5 * max(1.0, float(one.norm()))


@pytest.mark.parametrize(
    ("cheat", "what"), [(Scaled, "embeddings differ by 1.0e-03"), (ScaledGradient, "gradient of .* differ by 5.0e-01")]
)
def test_a_worker_that_scales_its_answers_is_caught_and_named(cheat: type[LocalFrameWorker], what: str) -> None:
    model = build_model(small_config(), seed=1)
    workers = [LocalFrameWorker(model, STREAM, RECORDING, 0), cheat(model, STREAM, RECORDING, 0)]
    lease = "lease of recording 1a1a1a1a1a1a, version 0, frames 4 .. 7"
    with pytest.raises(FbamError, match=f"frame worker 1: {lease}: {what}"):
        step_with(model, workers)


def test_a_worker_with_stale_weights_is_caught_though_it_claims_the_version() -> None:
    model = build_model(small_config(), seed=1)
    stale = Careless(copy.deepcopy(model), STREAM, RECORDING, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step_with(model, [LocalFrameWorker(model, STREAM, RECORDING, 0)])
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(FbamError, match=r"frame worker 1: .*version 1, .*: embeddings differ"):
        step_with(model, [LocalFrameWorker(model, STREAM, RECORDING, 1), stale], version=1)


def test_a_worker_with_the_frames_of_another_recording_is_caught() -> None:
    model = build_model(small_config(), seed=1)
    other = Careless(model, random_stream(17, seed=1), OTHER, 0)
    with pytest.raises(FbamError, match=r"frame worker 1: .*: embeddings differ"):
        step_with(model, [LocalFrameWorker(model, STREAM, RECORDING, 0), other])


def test_an_honest_worker_refuses_a_lease_of_another_recording() -> None:
    model = build_model(small_config(), seed=1)
    worker = LocalFrameWorker(model, STREAM, OTHER, 0)
    lease = SpanLease(RECORDING, 0, 0, 2)
    for ask in (worker.embed, lambda lease: worker.backpropagate(lease, torch.zeros(2, 2, 8))):
        with pytest.raises(FbamError, match=f"this worker has recording 2b2b2b2b2b2b; fetch {RECORDING}"):
            ask(lease)


def test_an_honest_worker_refuses_a_lease_of_another_version() -> None:
    worker = LocalFrameWorker(build_model(small_config(), seed=1), STREAM, RECORDING, 3)
    with pytest.raises(FbamError, match="this worker has version 3; fetch 4"):
        worker.embed(SpanLease(RECORDING, 4, 0, 2))


def test_answers_of_the_wrong_form_are_refused() -> None:
    model = build_model(small_config(), seed=1)
    own = LocalFrameWorker(model, STREAM, RECORDING, 0)
    auditor, lease = Auditor(own, 1.0, secret=0), SpanLease(RECORDING, 0, 0, 3)
    with pytest.raises(FbamError, match=r"embeddings of \(2, 2, 8\), not \(2, 3, 8\)"):
        auditor.check_embeddings(0, lease, own.embed(lease)[:, :2])
    with pytest.raises(FbamError, match="embeddings differ by nan"):
        auditor.check_embeddings(0, lease, own.embed(lease) * torch.nan)
    with pytest.raises(FbamError, match="gradients of other parameters"):
        auditor.check_gradients(0, lease, own.embed(lease), {})


def test_a_share_of_answers_is_audited_and_the_draw_is_the_auditors_own() -> None:
    """With a rate of a half, a cheat in every span is caught within a few; without audits it is not."""
    model = build_model(small_config(), seed=1)
    cheats = [Scaled(model, STREAM, RECORDING, 0)]
    step_with(model, cheats, rate=0.0)
    with pytest.raises(FbamError, match="embeddings differ"):
        step_with(model, cheats, rate=0.5)
