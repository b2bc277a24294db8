"""What a dry run finds out without starting anything."""

from pathlib import Path
from typing import Any

import pytest

from shoal.config import RunConfig
from shoal.config_io import check_config, load_config
from shoal.errors import ConfigError, DeviceError, TaskError
from shoal.plan.dry_run import check_run
from shoal.rundir import write_run_file

CONFIGS = Path(__file__).parents[2] / "configs"


def run_of(**changes: Any) -> RunConfig:
    tree = {"name": "a", "steps": 3, "tasks": [{"source": "reasoning-gym/spell_backward"}], **changes}
    return check_config(tree, "test")


def notes(config: RunConfig, path: Path) -> str:
    return "\n".join(check_run(config, path))


def test_a_model_that_is_not_here_is_a_note_and_no_error(tmp_path: Path) -> None:
    told = notes(run_of(model={"source": "models/None-1T", "dtype": "bfloat16"}), tmp_path / "run")
    assert "model models/None-1T: its weights are not on this machine" in told
    assert not (tmp_path / "run").exists()


def test_a_tiny_model_that_is_made_of_task_files_is_not_said_to_be_missing(tmp_path: Path) -> None:
    """Its name covers what the files hold, which a dry run does not take in."""
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"question": "a", "answer": "b"}\n' * 4)
    told = notes(run_of(tasks=[{"source": f"file/{file}"}]), tmp_path / "run")
    assert "model tiny: shoal run makes it, unless it was made from what these tasks hold now" in told
    assert "model tiny: is not here yet" in notes(run_of(seed=987), tmp_path / "run")


def test_a_model_that_is_here_is_said_to_be(tiny_dir: Path, tmp_path: Path) -> None:
    assert f"is here, in {tiny_dir}" in notes(run_of(model={"source": str(tiny_dir)}), tmp_path)


def test_tasks_that_cannot_be_built_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no_such_generator"):
        notes(run_of(tasks=[{"source": "reasoning-gym/no_such_generator"}]), tmp_path)


def test_a_device_that_is_not_here_is_an_error_that_says_who_asked_for_it(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"train\.device = 'mps'"):
        notes(run_of(train={"device": "mps"}), tmp_path)
    with pytest.raises(DeviceError, match=r"^device = 'mps'"):
        notes(run_of(device="mps"), tmp_path)


def test_profiles_that_no_rates_are_known_of_are_an_error(tmp_path: Path) -> None:
    config = run_of(model={"source": "x", "dtype": "bfloat16"}, audit={"profiles": ["no-such-gpu-*"]})
    with pytest.raises(ConfigError, match="no-such-gpu"):
        notes(config, tmp_path)


def test_a_run_that_is_there_is_resumed_only_with_its_own_config(tmp_path: Path) -> None:
    write_run_file(tmp_path, run_of(), 0.0)
    assert "would be resumed" in notes(run_of(steps=9), tmp_path)
    with pytest.raises(ConfigError, match=r"train\.lr"):
        notes(run_of(train={"lr": 1e-3}), tmp_path)


@pytest.mark.parametrize("name", ["intellect2", "qwen-7b"])
def test_configs_for_machines_that_are_not_here_are_accepted(name: str, tmp_path: Path) -> None:
    told = notes(load_config(CONFIGS / f"{name}.toml"), tmp_path / "run")
    assert "its weights are not on this machine" in told
