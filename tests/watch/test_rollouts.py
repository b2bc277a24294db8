"""Reading rollouts: what was asked and answered, and nothing that a file's maker would have the terminal do."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import Tokenizer

from shoal.errors import ConfigError, ModelError
from shoal.protocol.lease import Lease
from shoal.protocol.submission import Rollout, Submission, groups_with_signal, write_rollouts
from shoal.rundir import RunDir
from shoal.watch.rollouts import print_rollouts
from tests.support.roles_in_process import make_config, make_run
from tests.support.submissions import make_rollout

NASTY = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil[bold]"


@pytest.fixture
def run(tmp_path: Path, tiny_dir: Path) -> RunDir:
    return make_run(tmp_path / "run", make_config(tiny_dir))


def shown(run: RunDir, step: int | None = None) -> str:
    out = io.StringIO()
    print_rollouts(run.path, step, 99, Console(file=out, width=200, force_terminal=True, color_system=None))
    return out.getvalue()


def submit(run: RunDir, node: str = "worker-0", **changes: object) -> Path:
    """A file whose every sample is changed so; its lease is the store's own."""
    store = run.store()
    lease = store.lease(node, 0)
    assert isinstance(lease, Lease)
    size = run.config.sampling.group_size
    rollouts: list[Rollout] = [
        replace(make_rollout(group, sample, prompt=[5, 6, 7]), **changes)  # type: ignore[arg-type]
        for group in range(lease.groups)
        for sample in range(size)
    ]
    submission = Submission(lease, 0, "ab" * 32, rollouts)
    store.put(lease, write_rollouts(submission, groups_with_signal(submission)))
    return run.path / "rollouts" / f"step-{lease.step:06d}" / f"{lease.submission:04d}.parquet"


def verdict(path: Path, accept: bool) -> None:
    path.with_suffix(".verdict.json").write_text(json.dumps({"accept": accept, "reason": "" if accept else "no"}))


def test_groups_are_shown_with_what_each_answer_earned(run: RunDir) -> None:
    verdict(submit(run), True)
    text = shown(run)
    assert text.startswith("step 0: 2 groups in all\n")
    assert "spell_backward task 11, version 0, worker-0\n" in text
    assert "1.00" in text
    assert "not judged" not in text


def test_a_file_that_nobody_has_judged_is_marked(run: RunDir) -> None:
    submit(run)
    assert "worker-0, not judged yet" in shown(run)


def test_a_refused_file_is_left_out_and_counted(run: RunDir) -> None:
    verdict(submit(run, source="kept"), True)
    verdict(submit(run, source="refused-source"), False)
    text = shown(run)
    assert text.startswith("step 0: 2 groups in all; 1 refused files are left out (shoal status ")
    assert "refused-source" not in text


def test_no_text_of_a_file_can_steer_the_terminal(run: RunDir) -> None:
    tokenizer = Tokenizer.from_file(str(run.base_model / "tokenizer.json"))
    tokens = tokenizer.encode("\x1b[2J\x07", add_special_tokens=False).ids
    assert tokenizer.decode(tokens) == "\x1b[2J\x07"
    submit(run, source=NASTY, error=NASTY, reward=None, completion=tokens, logprobs=[-1.0] * 5, prompt=tokens)
    text = shown(run)
    assert "evil[bold]" in text
    assert [char for char in text if not char.isprintable() and char != "\n"] == []


def test_a_run_without_a_tokenizer_is_named(run: RunDir) -> None:
    submit(run)
    (run.base_model / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"v000000/tokenizer\.json: not a readable tokenizer"):
        shown(run)


def test_a_folder_that_is_no_step_is_passed_over(run: RunDir) -> None:
    submit(run)
    odd = run.path / "rollouts" / "step-9x"
    odd.mkdir()
    (odd / "0000.parquet").touch()
    assert shown(run).startswith("step 0")
    with pytest.raises(ConfigError, match=r"no rollouts of step 4; there are steps 0\.\.0"):
        shown(run, step=4)
