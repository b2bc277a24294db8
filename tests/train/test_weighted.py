"""A trainer that says which tasks are asked: the same after a restart, and to the good of what it trains on."""

import json
import shutil
from pathlib import Path
from typing import Any

from shoal.protocol.version_directory import TABLE
from shoal.rundir import RunDir
from shoal.tasks.build import build_source
from shoal.tasks.difficulty import Sampler, Table, rates_from_tree
from tests.support.roles_in_process import (
    entries,
    make_config,
    make_run,
    make_worker,
    mixed_tasks,
    notes,
    train,
    working,
)

WEIGHTED = {"kind": "difficulty"}


def completed(path: Path, tiny_dir: Path, steps: int, **changes: Any) -> RunDir:
    """A run on mixed tasks, trained to this step; one that is there goes on."""
    path.mkdir(exist_ok=True)
    config = make_config(tiny_dir, tasks=mixed_tasks(path), steps=steps, **{"sampler": WEIGHTED} | changes)
    run = make_run(path / "run", config)
    with working(run, make_worker(run, tasks=build_source(config.tasks))):
        train(run)
    return run


def tables(run: RunDir) -> dict[int, Table | None]:
    return {number: run.channel().table(number) for number in run.channel().numbers()}


def test_every_version_has_a_table_and_that_of_the_base_is_flat(tmp_path: Path, tiny_dir: Path) -> None:
    run = completed(tmp_path / "a", tiny_dir, 2)
    found = tables(run)
    base = found[0]
    assert base is not None
    assert [len(set(part.weights)) for part in base.parts] == [1, 1]
    assert [(part.name, part.share) for part in base.parts] == [("mix", 750_000), ("spell_backward", 250_000)]
    assert len({table.to_json() for table in found.values() if table}) == 3
    (_, last) = [entry["sampler"] for entry in entries(run, "trainer", "step")]
    assert last.keys() == {"mix", "spell_backward"}
    assert last["spell_backward"]["rate"] < 0.2 < last["mix"]["rate"]
    assert last["spell_backward"]["share"] < 0.2


def test_a_resumed_run_publishes_the_tables_of_an_uninterrupted_one(tmp_path: Path, tiny_dir: Path) -> None:
    whole = completed(tmp_path / "whole", tiny_dir, 4, async_level=0)
    halves = completed(tmp_path / "halves", tiny_dir, 2, async_level=0)
    # The other half, by another trainer; the tasks' files are the first one's, or it would be another run.
    config = halves.config.model_copy(update={"steps": 4})
    rest = make_run(halves.path, config)
    with working(rest, make_worker(rest, tasks=build_source(config.tasks))):
        train(rest)
    assert "going on with step 2" in notes(rest)
    assert tables(rest) == tables(whole)
    assert rest.channel().version(4) == whole.channel().version(4)


def test_a_version_that_was_not_published_any_more_comes_with_the_table_of_its_checkpoint(
    tmp_path: Path, tiny_dir: Path
) -> None:
    run = completed(tmp_path / "a", tiny_dir, 2)
    before, table = run.channel().version(2), run.channel().table(2)
    state = json.loads((run.checkpoints / "step-000002" / "state.json").read_text())
    sampler = Sampler(build_source(run.config.tasks), run.config.sampler)
    assert sampler.table(rates_from_tree(state["rates"])) == table != sampler.table(sampler.start())
    shutil.rmtree(run.path / "weights" / "v000002")
    train(run)
    assert (run.channel().version(2), run.channel().table(2)) == (before, table)
    # A table that was changed is a damaged version, which is made again as well.
    (run.path / "weights" / "v000002" / TABLE).write_text("{}")
    train(run)
    assert (run.channel().version(2), run.channel().table(2)) == (before, table)


def test_a_run_without_a_sampler_has_no_tables(tmp_path: Path, tiny_dir: Path) -> None:
    run = completed(tmp_path / "a", tiny_dir, 1, sampler={"kind": "uniform"})
    assert tables(run) == {0: None, 1: None}
    assert not list(run.path.glob(f"weights/*/{TABLE}"))
    assert all("sampler" not in entry for entry in entries(run, "trainer", "step"))
    assert json.loads((run.checkpoints / "step-000001" / "state.json").read_text())["rates"] is None


def signal_share(run: RunDir) -> float:
    """Groups with signal among those of the second half of a run."""
    steps = entries(run, "trainer", "step")
    late = steps[len(steps) // 2 :]
    seen = sum(int(entry["samples_seen"]) for entry in late) / run.config.sampling.group_size
    return sum(int(entry["groups"]) for entry in late) / seen


def test_more_of_what_is_asked_has_signal_than_when_all_is_asked_alike(tmp_path: Path, tiny_dir: Path) -> None:
    # A rate of nothing: the policy stays as it is, and only what it is asked changes. Level 0 leaves nothing to timing.
    changes: dict[str, Any] = {
        "async_level": 0,
        "train": {"groups_per_step": 8, "lr": 1e-12},
        "workers": {"groups_per_submission": 8},
    }
    uniform = completed(tmp_path / "uniform", tiny_dir, 8, **changes, sampler={"kind": "uniform"})
    weighted = completed(tmp_path / "weighted", tiny_dir, 8, **changes)
    assert signal_share(weighted) > 2 * signal_share(uniform), (signal_share(weighted), signal_share(uniform))
