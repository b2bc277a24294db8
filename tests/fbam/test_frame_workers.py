"""Frame workers: two of them train the weights of one process, and one that answers falsely is caught."""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from shoal.errors import FbamError
from shoal.fbam import ActionModel, TensorStream, build_model, streamed_gradient
from shoal.fbam.frame_workers import Auditor, FrameWorker, Gradients, LocalFrameWorker, SpanLease, gradient_with_workers
from shoal.fbam.frames import IGNORED
from tests.fbam.support import random_stream, small_config

STREAM = random_stream(17)
Change = Callable[[Tensor], Tensor]
RECORDING, OTHER = "1a" * 32, "2b" * 32  # hashes
STEPS = 5
SHUFFLE = torch.Generator().manual_seed(1)


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
    with pytest.raises(FbamError, match="embeddings with a number that is not finite"):
        auditor.check_embeddings(0, lease, own.embed(lease) * torch.nan)
    with pytest.raises(FbamError, match="gradients of other parameters"):
        auditor.check_gradients(0, lease, own.embed(lease), {})


class Malformed(LocalFrameWorker):
    """Changes the form of what it answers, or puts numbers in that are not finite."""

    def __init__(self, model: ActionModel, embeddings: Change, gradient: Change) -> None:
        super().__init__(model, STREAM, RECORDING, 0)
        self.change_embeddings, self.change_gradient = embeddings, gradient

    def embed(self, lease: SpanLease) -> Tensor:
        return self.change_embeddings(super().embed(lease))

    def backpropagate(self, lease: SpanLease, gradient_BTD: Tensor) -> Gradients:
        gradients = super().backpropagate(lease, gradient_BTD)
        return {name: self.change_gradient(gradient) for name, gradient in gradients.items()}


def unchanged(answer: Tensor) -> Tensor:
    return answer


class Lying(LocalFrameWorker):
    """Answers with something else than what was computed, in the right form."""

    def __init__(self, model: ActionModel, embeddings: Change, name: str, gradient: Change) -> None:
        super().__init__(model, STREAM, RECORDING, 0)
        self.change_embeddings, self.name, self.change_gradient = embeddings, name, gradient

    def embed(self, lease: SpanLease) -> Tensor:
        return self.change_embeddings(super().embed(lease))

    def backpropagate(self, lease: SpanLease, gradient_BTD: Tensor) -> Gradients:
        found = dict(super().backpropagate(lease, gradient_BTD))
        return {**found, self.name: self.change_gradient(found[self.name])}


def with_one_frame_changed(answer: Tensor) -> Tensor:
    changed = answer.clone()
    changed[0, 0] += 1e-3 * answer.norm() / answer[0, 0].numel() ** 0.5
    return changed


@pytest.mark.parametrize(
    ("embeddings", "name", "gradient", "said"),
    [
        (lambda answer: answer.flip(0), "norm.weight", unchanged, "embeddings"),
        (lambda answer: answer.flip(1), "norm.weight", unchanged, "embeddings"),
        (lambda answer: answer[..., torch.randperm(8, generator=SHUFFLE)], "norm.weight", unchanged, "embeddings"),
        (lambda answer: answer * 0, "norm.weight", unchanged, "embeddings"),
        (lambda answer: answer.mean(1, keepdim=True).expand_as(answer), "norm.weight", unchanged, "embeddings"),
        (lambda answer: answer * 1e30, "norm.weight", unchanged, "embeddings"),
        (with_one_frame_changed, "norm.weight", unchanged, "embeddings"),
        (unchanged, "norm.weight", lambda answer: answer * 0, "gradient of norm.weight"),
        (unchanged, "norm.weight", lambda answer: -answer, "gradient of norm.weight"),
        (unchanged, "position_RWD", lambda answer: answer.flip(0), "gradient of position_RWD"),
        (unchanged, "code_point.weight", lambda answer: answer.flip(0), "gradient of code_point.weight"),
        (unchanged, "code_point.weight", lambda answer: answer * 1e30, "gradient of code_point.weight"),
        (unchanged, "blocks.0.attention.to_qkv.weight", lambda answer: answer.sign() * 1e-2, "to_qkv.weight"),
    ],
)
def test_lies_of_the_right_form_are_caught(embeddings: Change, name: str, gradient: Change, said: str) -> None:
    """Rows, frames and columns in another order, nothing, the mean, overflow, one frame, one parameter's gradient."""
    model = build_model(small_config(), seed=1)
    workers = [LocalFrameWorker(model, STREAM, RECORDING, 0), Lying(model, embeddings, name, gradient)]
    with pytest.raises(FbamError, match=f"frame worker 1: .*{said}.* differ by"):
        step_with(model, workers)


def test_a_gradient_of_the_master_that_is_not_finite_blames_no_worker() -> None:
    model = build_model(small_config(), seed=1)
    torch.nn.init.constant_(model.to_actions.weight, torch.inf)
    with pytest.raises(FbamError, match=r"frame workers: version 0: loss nan .* no worker is to blame"):
        step_with(model, [LocalFrameWorker(model, STREAM, RECORDING, 0)])


def test_a_stream_without_an_action_to_score_blames_no_worker() -> None:
    model = build_model(small_config(), seed=1)
    stream = TensorStream(STREAM.frames_BTCRW, torch.full_like(STREAM.targets_BT, IGNORED))
    worker = LocalFrameWorker(model, stream, RECORDING, 0)
    with pytest.raises(FbamError, match="stream of 17 frames: no frame has an action to score; give it targets"):
        gradient_with_workers(model, stream, RECORDING, [worker], 4, 0, Auditor(worker, 1.0, secret=7))
    for workers, span in (([], 4), ([worker], 0)):
        with pytest.raises(FbamError, match=r"frame workers: \d of them, spans of \d frames: both must be at least 1"):
            gradient_with_workers(model, STREAM, RECORDING, workers, span, 0, Auditor(worker, 1.0, secret=7))


@pytest.mark.parametrize(
    ("embeddings", "gradient", "said"),
    [
        (lambda answer: answer[:, :1], unchanged, r"embeddings of \(2, 1, 8\), not \(2, 4, 8\)"),
        (lambda answer: answer * torch.nan, unchanged, "embeddings with a number that is not finite"),
        (lambda answer: answer.double(), unchanged, r"embeddings of torch\.float64, not torch\.float32"),
        (unchanged, lambda answer: answer.sum(), r"gradient of position_RWD of \(\), not \(4, 6, 8\)"),
        (unchanged, lambda answer: answer / 0, "gradient of position_RWD with a number that is not finite"),
        (unchanged, lambda answer: answer.half(), r"gradient of position_RWD of torch\.float16, not torch\.float32"),
    ],
)
def test_the_form_of_every_answer_is_checked_though_none_is_audited(
    embeddings: Change, gradient: Change, said: str
) -> None:
    model = build_model(small_config(), seed=1)
    workers = [LocalFrameWorker(model, STREAM, RECORDING, 0), Malformed(model, embeddings, gradient)]
    with pytest.raises(FbamError, match=f"frame worker 1: lease of .*, frames 4 .. 7: {said}"):
        step_with(model, workers, rate=0.0)


def test_gradients_of_other_parameters_are_refused_though_none_is_audited() -> None:
    class Silent(LocalFrameWorker):
        def backpropagate(self, lease: SpanLease, gradient_BTD: Tensor) -> Gradients:
            gradients = super().backpropagate(lease, gradient_BTD)
            return {name: gradient for name, gradient in gradients.items() if name != "norm.weight"}

    model = build_model(small_config(), seed=1)
    with pytest.raises(FbamError, match=r"frame worker 0: .*: gradients of other parameters than .*: norm\.weight on"):
        step_with(model, [Silent(model, STREAM, RECORDING, 0)], rate=0.0)


def test_a_gradient_that_cancels_makes_no_honest_worker_a_cheat_and_a_lie_in_it_is_caught() -> None:
    """The last norm's gradient is a sum over frames, made to vanish; what is left of it is each machine's rounding."""
    model, lease = build_model(small_config(), seed=1), SpanLease(RECORDING, 0, 0, STREAM.length)
    own = LocalFrameWorker(model, STREAM, RECORDING, 0)
    other = LocalFrameWorker(copy.deepcopy(model).double(), STREAM, RECORDING, 0)
    normed_BTD, gradient_BTD = own.embed(lease), torch.randn(2, STREAM.length, 8, generator=torch.manual_seed(0))
    gradient_BTD -= normed_BTD * (gradient_BTD * normed_BTD).sum((0, 1)) / (normed_BTD**2).sum((0, 1))
    exact = other.backpropagate(lease, gradient_BTD.double())
    honest = {name: gradient.float() for name, gradient in exact.items()}
    expected = own.backpropagate(lease, gradient_BTD)["norm.weight"]
    assert (honest["norm.weight"] - expected).norm() > 0.01 * expected.norm(), "relative to itself it is another one"
    auditor = Auditor(own, 1.0, secret=0)
    auditor.check_gradients(0, lease, gradient_BTD, honest)
    whole = torch.cat([gradient.flatten() for gradient in honest.values()]).norm()
    for name, gradient in honest.items():
        lie = torch.full_like(gradient, float(whole) * 1e-3 / gradient.numel() ** 0.5)
        with pytest.raises(FbamError, match=f"frame worker 0: .*: gradient of {name} differ by"):
            auditor.check_gradients(0, lease, gradient_BTD, {**honest, name: gradient + lie})


class Watched(LocalFrameWorker):
    """Notes whose embeddings are computed, and when."""

    def __init__(self, model: ActionModel, name: str, seen: list[tuple[str, int]]) -> None:
        super().__init__(model, STREAM, RECORDING, 0)
        self.name, self.seen = name, seen

    def embed(self, lease: SpanLease) -> Tensor:
        self.seen.append((self.name, lease.begin))
        return super().embed(lease)


def audited(secret: int) -> list[tuple[str, int]]:
    model, seen = build_model(small_config(), seed=1), list[tuple[str, int]]()
    auditor = Auditor(Watched(model, "auditor", seen), 0.5, secret)
    for _ in range(4):
        gradient_with_workers(model, STREAM, RECORDING, [Watched(model, "worker", seen)], 2, 0, auditor)
    return seen


def test_the_draw_is_the_auditors_own_and_comes_after_the_answer() -> None:
    """Which answers are computed again follows from the auditor's secret alone: a worker sees no sign of it."""
    draws = [[begin for name, begin in audited(secret) if name == "auditor"] for secret in (7, 8)]
    assert draws[0] != draws[1]
    seen = audited(7)
    assert [begin for name, begin in seen if name == "auditor"] == draws[0], "the same secret draws the same"
    assert 0.25 < len(draws[0]) / seen.count(("worker", 0)) / 9 < 0.75
    for at, (name, begin) in enumerate(seen):
        if name == "auditor":
            assert seen[at - 1] == ("worker", begin), "the answer had come"


def test_a_cheat_in_every_answer_is_caught_within_a_few_and_without_audits_it_is_not() -> None:
    model = build_model(small_config(), seed=1)
    cheats = [Scaled(model, STREAM, RECORDING, 0)]
    step_with(model, cheats, rate=0.0)
    with pytest.raises(FbamError, match="embeddings differ"):
        step_with(model, cheats, rate=0.5)
