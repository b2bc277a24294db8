"""Reading rollouts: what was asked and answered, and nothing that a file's maker would have the terminal do."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import Tokenizer

from shoal.coordinator.archive import HOME, STATE
from shoal.errors import ConfigError, ModelError
from shoal.protocol.rollout import Rollout
from shoal.protocol.submission import Submission, groups_with_signal, write_rollouts
from shoal.protocol.verdict import Finding, Verdict
from shoal.rundir import RUN_FILE, RunDir
from shoal.watch.rollouts import print_rollouts
from shoal.watch.summary import print_summary, summarise
from tests.support.coordinator_in_process import World, key_of
from tests.support.roles_in_process import make_config, make_run
from tests.support.submissions import make_rollout

NASTY = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil[bold]"


@pytest.fixture
def run(tmp_path: Path, tiny_dir: Path) -> RunDir:
    return make_run(tmp_path / "run", make_config(tiny_dir))


@pytest.fixture
def world(run: RunDir) -> Iterator[World]:
    """The run's own coordinator, with its records where `shoal coordinator` keeps them."""
    home = run.path / HOME
    home.mkdir()
    world = World(home, f"sqlite:///{home / STATE}", run.config)
    world.start()
    world.announce()
    yield world
    world.end()


def shown(run: RunDir, step: int | None = None) -> str:
    out = io.StringIO()
    print_rollouts(run.path, step, 99, Console(file=out, width=200, force_terminal=True, color_system=None))
    return out.getvalue()


def submit(world: World, node: str = "a", **changes: object) -> None:
    """Hands in a file whose every sample is changed so."""
    lease, size = world.take(node), world.config.sampling.group_size
    rollouts: list[Rollout] = [
        replace(make_rollout(group, sample, prompt=[5, 6, 7]), **changes)  # type: ignore[arg-type]
        for group in range(lease.groups)
        for sample in range(size)
    ]
    submission = Submission(lease, 0, "ab" * 32, rollouts)
    world.store(key_of(node)).put(lease, write_rollouts(submission, groups_with_signal(submission)))


def judge(world: World, accept: bool) -> None:
    finding = None if accept else Finding("rewards", "scores are right", 1, 0)
    for upload in world.validator.waiting(0, 9):
        sha256, _ = world.validator._known[upload.step, upload.submission]
        world.validator.judge(upload, Verdict(accept, sha256, audited=False, finding=finding))


def test_groups_are_shown_with_what_each_answer_earned(run: RunDir, world: World) -> None:
    submit(world)
    judge(world, accept=True)
    text = shown(run)
    assert text.startswith("step 0: 2 groups in all\n")
    assert f"spell_backward task 11, version 0, {key_of('a').address}\n" in text
    assert "1.00" in text
    assert "not judged" not in text


def test_a_file_that_nobody_has_judged_is_marked(run: RunDir, world: World) -> None:
    submit(world)
    assert f"{key_of('a').address}, not judged yet" in shown(run)


def test_rollouts_whose_environment_nobody_plays_again_are_marked(run: RunDir, world: World) -> None:
    submit(world)
    assert "unverified" not in shown(run)
    (run.path / "metrics").mkdir(exist_ok=True)
    assert summarise(run.path).unverified == ()
    file = run.path / RUN_FILE
    tree = json.loads(file.read_text())
    tree["config"]["tasks"][0]["unverified"] = "accept"
    file.write_text(json.dumps(tree))
    assert "unverified: what the environment said and what it gave is the worker's word" in shown(run)
    assert summarise(run.path).unverified == ("spell_backward",)
    out = io.StringIO()
    print_summary(summarise(run.path), Console(file=out, width=200))
    assert "spell_backward: what was inserted and earned is the workers' word" in out.getvalue()


def test_a_refused_file_is_left_out_and_counted(run: RunDir, world: World) -> None:
    submit(world, source="kept")
    judge(world, accept=True)
    submit(world, source="refused-source")
    judge(world, accept=False)
    text = shown(run)
    assert text.startswith("step 0: 2 groups in all; 1 refused files are left out (shoal status ")
    assert "refused-source" not in text


def test_no_text_of_a_file_can_steer_the_terminal(run: RunDir, world: World) -> None:
    tokenizer = Tokenizer.from_file(str(run.base_model / "tokenizer.json"))
    tokens = tokenizer.encode("\x1b[2J\x07", add_special_tokens=False).ids
    assert tokenizer.decode(tokens) == "\x1b[2J\x07"
    submit(world, source=NASTY, error=NASTY, reward=None, completion=tokens, logprobs=[-1.0] * 5, prompt=tokens)
    text = shown(run)
    assert "evil[bold]" in text
    assert [char for char in text if not char.isprintable() and char != "\n"] == []


def test_a_run_without_a_tokenizer_is_named(run: RunDir, world: World) -> None:
    submit(world)
    (run.base_model / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"v000000/tokenizer\.json: not a readable tokenizer"):
        shown(run)


def test_a_step_without_rollouts_is_told_and_so_is_a_run_without_any(run: RunDir, world: World) -> None:
    nothing = "no rollouts there yet; shoal status .* says what it is doing"
    with pytest.raises(ConfigError, match=nothing):
        shown(run)
    submit(world)
    assert shown(run).startswith("step 0")
    with pytest.raises(ConfigError, match=r"no rollouts of step 4; there are steps 0\.\.0"):
        shown(run, step=4)


def test_a_run_whose_coordinator_was_never_started_has_no_rollouts_yet(run: RunDir) -> None:
    with pytest.raises(ConfigError, match="no rollouts there yet"):
        shown(run)
