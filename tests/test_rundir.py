"""A run on disk: prepared once, opened by any role, continued only as the run that it is."""

import io
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.config import RunConfig
from shoal.config_io import check_config, to_toml
from shoal.errors import ConfigError, ModelError, StorageError
from shoal.files import STAGING, locked
from shoal.models.load import load
from shoal.models.weights import WEIGHTS
from shoal.protocol.rollout_rules import Limits
from shoal.rundir import FORMAT, RUN_FILE, claimed, limits_of, locate_run, open_run, prepare_run


def make_config(model: Path | str, **changes: Any) -> RunConfig:
    tree = {"name": "test", "steps": 5, "tasks": [{"source": "reasoning-gym/spell_backward"}]}
    return check_config(tree | {"model": {"source": str(model)}} | changes, "here")


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def config(tiny_dir: Path) -> RunConfig:
    return make_config(tiny_dir)


def test_a_prepared_run_holds_its_config_and_the_base_model_as_version_0(tmp_path: Path, config: RunConfig) -> None:
    run = prepare_run(config, tmp_path / "run", console())
    assert open_run(run.path).config == config
    version = run.channel().latest()
    assert version is not None
    assert version.number == 0
    assert run.channel().fetch(version) == run.base_model
    assert load(run.base_model).vocab > 256


def test_preparing_again_goes_on_with_what_is_there(tmp_path: Path, config: RunConfig) -> None:
    first = prepare_run(config, tmp_path / "run", console())
    created = json.loads((first.path / RUN_FILE).read_text())["created"]
    root = first.channel().latest()
    with first.channel().publish(1) as staging:
        (staging / WEIGHTS).write_bytes(b"trained")
    time.sleep(0.01)
    again = prepare_run(config, tmp_path / "run", console())
    assert again.channel().numbers() == [0, 1]
    assert again.channel().version(0) == root
    assert json.loads((again.path / RUN_FILE).read_text())["created"] == created


def test_a_run_killed_between_its_config_and_its_base_model_can_be_prepared_again(
    tmp_path: Path, config: RunConfig
) -> None:
    path = tmp_path / "run"
    (path / "weights" / f"{STAGING}half").mkdir(parents=True)
    (path / RUN_FILE).write_text(
        json.dumps({"format": FORMAT, "created": 1.0, "config": config.model_dump(mode="json")})
    )
    assert prepare_run(config, path, console()).channel().numbers() == [0]
    assert [entry.name for entry in (path / "weights").iterdir()] == ["v000000"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, "seed: 0 there, 1 now"),
        ({"async_level": 1}, "async_level: 2 there, 1 now"),
        ({"train": {"lr": 1e-3}}, "train.lr: 3e-07 there, 0.001 now"),
        ({"train": {"loss": {"eps": 0.1}}}, "train.loss.eps: 0.2 there, 0.1 now"),
        ({"tasks": [{"source": "reasoning-gym/chain_sum"}]}, "tasks: "),
    ],
)
def test_a_run_is_not_continued_as_another_run(
    tmp_path: Path, tiny_dir: Path, change: dict[str, Any], said: str
) -> None:
    prepare_run(make_config(tiny_dir), tmp_path / "run", console())
    with pytest.raises(ConfigError, match="was made with another config; give it another directory") as raised:
        prepare_run(make_config(tiny_dir, **change), tmp_path / "run", console())
    assert said in str(raised.value)
    assert open_run(tmp_path / "run").config == make_config(tiny_dir)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 50},
        {"wait_s": 5.0},
        {"workers": {"count": 3}},
        {"eval": {"every": 2}},
        {"keep": {"versions": 9}},
        {"train": {"threads": 2, "checkpoint_every": 2}},
    ],
)
def test_what_does_not_change_the_run_may_be_changed(tmp_path: Path, tiny_dir: Path, change: dict[str, Any]) -> None:
    prepare_run(make_config(tiny_dir), tmp_path / "run", console())
    prepare_run(make_config(tiny_dir, **change), tmp_path / "run", console())
    assert open_run(tmp_path / "run").config == make_config(tiny_dir, **change)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"{}", b"\xff", b'"text"'])
def test_a_directory_that_is_no_run_is_told_so(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / RUN_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=r"no usable run\.json there; give a directory made by shoal run"):
        open_run(tmp_path)


def test_a_run_file_with_a_wrong_config_is_named(tmp_path: Path) -> None:
    (tmp_path / RUN_FILE).write_text(json.dumps({"format": FORMAT, "created": 1, "config": {"name": "a"}}))
    with pytest.raises(ConfigError, match=r"run\.json:\n  steps: is missing"):
        open_run(tmp_path)


@pytest.mark.parametrize("found", [None, 1, FORMAT + 1, "new"])
def test_a_run_of_another_format_is_refused_by_name(tmp_path: Path, config: RunConfig, found: object) -> None:
    run = prepare_run(config, tmp_path / "run", console())
    tree = json.loads((run.path / RUN_FILE).read_text())
    assert tree.pop("format") == FORMAT
    (run.path / RUN_FILE).write_text(json.dumps(tree if found is None else tree | {"format": found}))
    said = rf"its directory has format {found or 1!r}, this release reads {FORMAT}; start a new run with --out"
    with pytest.raises(ConfigError, match=said):
        open_run(run.path)
    with pytest.raises(ConfigError, match=said):
        prepare_run(config, run.path, console())


def test_a_model_that_is_not_there_stops_the_run_before_it_has_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such directory"):
        prepare_run(make_config(tmp_path / "nowhere"), tmp_path / "run", console())
    assert not (tmp_path / "run").exists()


def test_a_config_file_and_a_run_directory_name_the_same_run(tmp_path: Path, config: RunConfig) -> None:
    (tmp_path / "run.toml").write_text(to_toml(config))
    prepared = locate_run(tmp_path / "run.toml", ["steps=7"], tmp_path / "run", console())
    assert prepared.config.steps == 7
    assert locate_run(tmp_path / "run", [], None, console()) == prepared


def test_without_out_a_run_is_named_by_its_config(
    tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(to_toml(config))
    assert locate_run(tmp_path / "run.toml", [], None, console()).path == Path("runs/test")


def test_a_prepared_run_takes_no_settings(tmp_path: Path, config: RunConfig) -> None:
    run = prepare_run(config, tmp_path / "run", console())
    with pytest.raises(ConfigError, match="--set and --out go with a config file"):
        locate_run(run.path, ["steps=7"], None, console())


def test_limits_are_the_samplings_own() -> None:
    config = make_config("x", sampling={"group_size": 3, "max_prompt_tokens": 5, "max_new_tokens": 7})
    assert limits_of(config, 11) == Limits(group_size=3, vocab=11, max_prompt_tokens=5, max_new_tokens=7)


def test_a_run_that_does_not_say_when_it_was_made_goes_on(tmp_path: Path, tiny_dir: Path) -> None:
    config = make_config(tiny_dir)
    run = prepare_run(config, tmp_path / "run", console())
    (run.path / RUN_FILE).write_text(json.dumps({"format": FORMAT, "config": config.model_dump(mode="json")}))
    assert prepare_run(config, run.path, console()) == run


def test_a_bad_base_model_leaves_no_run_behind_and_does_not_stick(tmp_path: Path, tiny_dir: Path) -> None:
    mine = shutil.copytree(tiny_dir, tmp_path / "mine")
    good = (mine / WEIGHTS).read_bytes()
    (mine / WEIGHTS).write_bytes(b"broken")
    (tmp_path / "run.toml").write_text(to_toml(make_config(mine)))
    with pytest.raises(ModelError, match=rf"model {mine}: cannot be loaded"):
        locate_run(tmp_path / "run.toml", [], tmp_path / "run", console())
    assert not (tmp_path / "run").exists()
    (mine / WEIGHTS).write_bytes(good)
    run = locate_run(tmp_path / "run.toml", [], tmp_path / "run", console())
    assert load(run.base_model)


def test_a_damaged_base_model_is_copied_again_while_nothing_is_trained(tmp_path: Path, config: RunConfig) -> None:
    run = prepare_run(config, tmp_path / "run", console())
    (run.base_model / WEIGHTS).write_bytes(b"broken")
    prepare_run(config, tmp_path / "run", console())
    assert load(run.base_model)


def test_a_directory_that_another_process_prepares_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with locked(path / "lock", ""), pytest.raises(StorageError, match="taken"), claimed(path, "taken"):
        pass
    assert path.is_dir()


def test_a_run_that_cannot_have_its_directory_is_told_why(tmp_path: Path, config: RunConfig) -> None:
    (tmp_path / "run.toml").write_text(to_toml(config))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match=r"file is not a directory; remove it or give another place"):
        locate_run(tmp_path / "run.toml", [], tmp_path / "file", console())
    with pytest.raises(StorageError, match="File name too long; give a shorter one"):
        locate_run(tmp_path / "run.toml", [], tmp_path / ("a" * 300), console())
    assert (tmp_path / "file").read_text() == "mine"


def test_a_role_whose_run_was_removed_says_so(tmp_path: Path, config: RunConfig) -> None:
    run = prepare_run(config, tmp_path / "run", console())

    def work() -> None:
        with run.role("trainer"):
            shutil.rmtree(run.path)
            raise FileNotFoundError("checkpoints")

    with pytest.raises(StorageError, match=r"run .*: its directory was removed while it ran"):
        work()
    assert not run.path.exists()


def test_the_remains_of_a_removed_run_are_not_taken_for_one(tmp_path: Path, config: RunConfig) -> None:
    run = prepare_run(config, tmp_path / "run", console())
    (run.path / RUN_FILE).unlink()
    with pytest.raises(ConfigError, match=r"the remains of a run that lost its run\.json; restore that file"):
        prepare_run(config, tmp_path / "run", console())


def test_a_run_is_pinned_to_what_its_tasks_hold(tmp_path: Path, tiny_dir: Path) -> None:
    file = tmp_path / "sums.jsonl"
    file.write_text('{"question": "1+1", "answer": "2"}\n')
    config = make_config(tiny_dir, tasks=[{"source": f"file/{file}", "reward": "exact"}])
    run = prepare_run(config, tmp_path / "run", Console(file=io.StringIO()))
    assert len(str(open_run(run.path).config.tasks[0].sha256)) == 64
    prepare_run(config, run.path, Console(file=io.StringIO()))
    file.write_text('{"question": "1+1", "answer": "3"}\n')
    with pytest.raises(ConfigError, match="was made with another config"):
        prepare_run(config, run.path, Console(file=io.StringIO()))
