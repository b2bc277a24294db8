"""Models of every kind: one step at a time gives what the whole sequence gives, and no frame sees a later one."""

import pytest
import torch
from pydantic import ValidationError

from shoal.errors import FbamError
from shoal.fbam import PUBLISHED, PUBLISHED_PARAMETERS, FrameShape, ModelConfig, build_model, count_parameters
from shoal.fbam.integrators.gated_scan import linear_scan
from shoal.fbam.model_config import IntegratorKind
from tests.fbam.support import KINDS, random_stream, small_config


def test_the_published_configuration_has_the_published_number_of_parameters() -> None:
    assert PUBLISHED_PARAMETERS == 94_030_848
    assert count_parameters(PUBLISHED) == PUBLISHED_PARAMETERS
    other = PUBLISHED.model_copy(update={"actions": PUBLISHED.actions + 1})
    assert count_parameters(other) == PUBLISHED_PARAMETERS + 1024, "the count is that of this very shape"


def test_the_published_configuration_builds_and_scores_a_frame() -> None:
    """In float32, 376 MB: the count above is taken from shapes alone, which compute nothing."""
    model = build_model(PUBLISHED, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED_PARAMETERS
    scores_BA, state = model.step(random_stream(1, batch=1, shape=PUBLISHED.shape).frames(0, 1)[:, 0])
    assert scores_BA.shape == (1, 20_352)
    assert all(bool(values.isfinite().all()) for values in (scores_BA, *state))
    assert float(scores_BA.std()) > 0
    assert [part.shape for part in state] == [(1, 1, 1024)] * 2, "h and c of one LSTM"


@pytest.mark.parametrize("kind", KINDS)
def test_one_step_at_a_time_gives_what_the_whole_sequence_gives(kind: IntegratorKind) -> None:
    model, stream = build_model(small_config(kind), seed=0).double(), random_stream(9)
    with torch.no_grad():
        whole, end = model(stream.frames(0, 9), model.initial_state(2))
    state = None
    for frame in range(9):
        logits, state = model.step(stream.frames(frame, frame + 1)[:, 0], state)
        torch.testing.assert_close(logits, whole[:, frame], rtol=1e-10, atol=1e-12)
    assert state is not None
    torch.testing.assert_close(state, end, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_no_frame_changes_what_was_said_before_it(kind: IntegratorKind) -> None:
    model, stream = build_model(small_config(kind), seed=0), random_stream(8)
    frames = stream.frames(0, 8)
    changed = frames.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 3
    with torch.no_grad():
        before, _ = model(frames, model.initial_state(2))
        after, _ = model(changed, model.initial_state(2))
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize(("kind", "grows"), [("lstm", False), ("scan", False), ("transformer", True)])
def test_only_the_state_of_a_transformer_grows_with_time(kind: IntegratorKind, grows: bool) -> None:
    model, stream = build_model(small_config(kind), seed=0), random_stream(8)
    _, short = model.step(stream.frames(0, 1)[:, 0])
    state = short
    for frame in range(1, 8):
        _, state = model.step(stream.frames(frame, frame + 1)[:, 0], state)
    assert (sum(part.numel() for part in state) > sum(part.numel() for part in short)) == grows


@pytest.mark.parametrize("readout", ["mean", "last"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 3), (5, 7)])
def test_a_head_reads_frames_of_a_few_cells(rows: int, columns: int, readout: str) -> None:
    """Two pooling stages leave at least one cell, and every cell counts, whatever the sides are."""
    shape = FrameShape(rows=rows, columns=columns, code_points=11, colours=3)
    settings = {"conv_stages": 2, "head_blocks": 1, "head_width": 8, "width": 8, "readout": readout}
    model = build_model(ModelConfig.model_validate({"shape": shape, "actions": 2, **settings}), seed=0)
    frames = random_stream(1, batch=1, shape=shape).frames(0, 1)
    with torch.no_grad():
        embedding = model.embed(frames)
        for row in range(rows):
            for column in range(columns):
                other = frames.clone()
                other[0, 0, 0, row, column] = (other[0, 0, 0, row, column] + 1) % 11
                assert not torch.equal(model.embed(other), embedding), (row, column)


def test_the_parallel_scan_is_the_recurrence() -> None:
    generator = torch.Generator().manual_seed(0)
    decay, inflow = torch.rand(2, 3, 13, 4, generator=generator, dtype=torch.float64)
    h = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    found = linear_scan(decay, inflow, h)
    for t in range(13):
        h = decay[:, t] * h + inflow[:, t]
        torch.testing.assert_close(found[:, t], h)


def test_weights_depend_on_the_seed_alone_and_leave_the_callers_random_state() -> None:
    torch.manual_seed(5)
    first = build_model(small_config(), seed=1)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    again, other = build_model(small_config(), seed=1), build_model(small_config(), seed=2)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.to_actions.weight, other.to_actions.weight)


def test_frames_of_another_size_or_type_are_refused_by_name() -> None:
    model = build_model(small_config(), seed=0)
    frames = random_stream(1).frames(0, 1)
    with pytest.raises(FbamError, match=r"frames of \(3, 3, 6\) torch.uint8: this model reads \(3, 4, 6\)"):
        model.embed(frames[..., :3, :])
    with pytest.raises(FbamError, match=r"torch.float32"):
        model.embed(frames.float())


def test_widths_that_heads_do_not_divide_are_refused() -> None:
    with pytest.raises(ValidationError, match="width 12 is not a multiple of heads 5"):
        ModelConfig.model_validate({**small_config("transformer").model_dump(), "heads": 5})
    with pytest.raises(ValidationError, match="head_width 8 is not a multiple of head_heads 3"):
        ModelConfig.model_validate({**small_config().model_dump(), "head_heads": 3})


@pytest.mark.parametrize("kind", KINDS)
def test_frames_that_are_all_alike_are_told_apart_by_their_number(kind: IntegratorKind) -> None:
    """Attention alone is a mean: without a learned start, two equal frames would look like one."""
    model = build_model(small_config(kind), seed=0).double()
    frames = random_stream(1).frames(0, 1).expand(-1, 4, -1, -1, -1)
    with torch.no_grad():
        scores_BTA, _ = model(frames, model.initial_state(2))
    gaps_BT = (scores_BTA[:, 1:] - scores_BTA[:, :-1]).abs().amax(dim=2)
    assert float(gaps_BT.min()) > 1e-6
