"""On a machine with several CUDA devices each role of `shoal run` sees its own, and no other."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.config import RunConfig
from shoal.config_io import check_config
from shoal.process import stop_all
from shoal.roles.placement import in_words, place, visible_devices
from shoal.roles.supervisor import ports_of, start_roles
from shoal.rundir import RunDir, write_run_file
from tests.support.until import until

EIGHT = [str(number) for number in range(8)]
# In the place of a role: it writes down which devices it was given, and waits.
ROLE = """#!/bin/sh
shift 2
role=$1 name=$1 folder=$2
while [ $# -gt 0 ]; do [ "$1" = --name ] && name=$2; shift; done
echo "${CUDA_VISIBLE_DEVICES-all}" > "$folder/seen-$name-${RANK-0}.part"
mv "$folder/seen-$name-${RANK-0}.part" "$folder/seen-$name-${RANK-0}"
exec sleep 60
"""


def config_of(**tables: Any) -> RunConfig:
    tree = {"name": "gpus", "steps": 1, "tasks": [{"source": "reasoning-gym/spell_backward"}], **tables}
    return check_config(tree, "test")


def placed(devices: Sequence[str] = EIGHT, **tables: Any) -> dict[str, str]:
    return {role: ",".join(own) for role, own in place(config_of(**tables), devices).items()}


def test_the_trainer_gets_the_first_devices_and_the_others_take_turns_on_the_rest() -> None:
    assert placed(train={"ranks": 2}, workers={"count": 4}) == {
        "trainer": "0,1",
        "worker-0": "2",
        "worker-1": "3",
        "worker-2": "4",
        "worker-3": "5",
        "validator": "6",
        "evaluator": "7",
    }


def test_roles_share_devices_where_there_are_more_of_them() -> None:
    shared = placed(["0", "1", "2"], workers={"count": 2}, audit={"count": 2}, cheaters=[{"attack": "int4"}])
    assert shared["trainer"] == "0"
    assert [shared[role] for role in ("worker-0", "worker-1")] == ["1", "2"]
    assert [shared[role] for role in ("validator-0", "validator-1", "evaluator", "cheater-0")] == ["1", "2", "1", "2"]


def test_a_model_that_is_split_over_devices_gets_as_many() -> None:
    workers = {"count": 2, "tensor_parallel": 3, "engine": "vllm"}
    split = placed(workers=workers)
    assert (split["worker-0"], split["worker-1"]) == ("1,2,3", "4,5,6")
    few = placed(["0", "1", "2"], workers=workers)
    assert few["worker-0"] == "0,1,2", "with the trainer's, where the others do not suffice"


def test_a_trainer_that_takes_all_devices_shares_them() -> None:
    shared = placed(["0", "1"], train={"ranks": 2}, workers={"count": 3})
    assert shared["trainer"] == "0,1"
    assert [shared[f"worker-{number}"] for number in range(3)] == ["0", "1", "0"]


@pytest.mark.parametrize("devices", [[], ["0"]])
def test_one_device_is_everybodys(devices: list[str]) -> None:
    assert placed(devices, train={"ranks": 1}) == {}


def test_a_role_that_computes_elsewhere_takes_no_device() -> None:
    assert placed(device="cpu") == {}
    found = placed(train={"device": "cpu"}, eval={"device": "cpu"})
    assert found == {"worker-0": "0", "validator": "1"}


def test_devices_have_the_names_by_which_this_process_was_given_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_devices() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f2a,5")
    assert visible_devices() == ["GPU-8f2a", "5"]


def test_each_process_is_told_its_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(ROLE)
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    config = config_of(train={"ranks": 2}, workers={"count": 2})
    path = tmp_path / "run"
    write_run_file(path, config, time.time())
    run = RunDir(path, config)
    placement = place(config, ["3", "4", "5", "6"])
    children = start_roles(run, ports_of(run), placement=placement)

    def seen() -> dict[str, str]:
        return {file.name[5:]: file.read_text().strip() for file in path.glob("seen-*") if file.suffix != ".part"}

    try:
        until(lambda: len(seen()) == 9)
        assert seen() == {
            "coordinator-0": "all",
            "origin-0": "all",
            "relay-0": "all",
            "trainer-0": "3,4",
            "trainer-1": "3,4",
            "worker-0-0": "5",
            "worker-1-0": "6",
            "validator-0": "5",
            "eval-0": "6",
        }
    finally:
        stop_all(children)
    assert in_words(placement) == "trainer 3, 4; worker-0 5; worker-1 6; validator 5; evaluator 6"
