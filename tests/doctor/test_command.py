"""`shoal doctor` on this machine, with real sockets and a real coordinator."""

import json
import socket
import time
from pathlib import Path

import pytest

from shoal.doctor.probe import installed_vllm, look
from tests.support.command import shoal
from tests.support.coordinator_in_process import World


def test_the_command_describes_this_machine_and_says_that_it_is_fit(tmp_path: Path) -> None:
    ran = shoal(tmp_path, "doctor", "--json")
    told = json.loads(ran.stdout)
    assert ran.returncode == 0, told
    assert told["facts"]["torch"]["version"]
    assert {check["name"] for check in told["checks"]} >= {"machine", "memory", "disk", "GPU", "engine", "clock"}
    table = shoal(tmp_path, "doctor", columns=80).stdout
    assert "a worker would generate with" in table
    assert max(map(len, table.splitlines())) <= 80


def test_a_port_that_is_taken_makes_the_command_fail(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = shoal(tmp_path, "doctor", "--port", str(taken.getsockname()[1]))
    assert ran.returncode == 1
    assert "not fit yet: ports" in ran.stdout


@pytest.mark.parametrize("device", ["cuda", "cpu", ""])
def test_vllm_tells_its_device_also_where_it_finds_none_and_says_other_things(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("print('INFO: a/b was loaded')\nLLM = None\n")
    platforms = f"import types\ncurrent_platform = types.SimpleNamespace(device_type={device!r})\n"
    (tmp_path / "vllm" / "platforms.py").write_text(platforms)
    monkeypatch.setattr("shoal.doctor.probe.metadata.version", lambda _: "0.32.0")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = installed_vllm()
    assert found is not None
    assert (found.version, found.platform, found.error) == ("0.32.0", device, "")


@pytest.mark.parametrize("below", ["", "runs/shoal"])
def test_a_home_that_is_a_file_or_below_one_makes_the_command_fail(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file.txt"
    file.touch()
    ran = shoal(tmp_path, "doctor", "--home", str(file / below), "--json")
    told = {check["name"]: check for check in json.loads(ran.stdout)["checks"]}["disk"]
    assert (ran.returncode, told["status"]) == (1, "failed")
    assert told["found"] == f"runs cannot be kept: {file} is not a directory"


def test_a_home_that_cannot_be_written_is_unfit_and_one_that_can_be_made_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look(None, [], tmp_path / "new" / "home").home_error == ""
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)  # root may write everywhere
    assert look(None, [], tmp_path / "new" / "home").home_error == f"{tmp_path} cannot be written"


def test_the_clock_is_compared_with_the_coordinators(small_world: World) -> None:
    right = look(small_world.url, [], None).coordinator
    wrong = look(small_world.url, [], None, lambda: time.time() - 3600).coordinator
    assert right is not None
    assert wrong is not None
    assert right.ahead_s is not None
    assert wrong.ahead_s is not None
    assert abs(right.ahead_s) < 5
    assert abs(wrong.ahead_s - 3600) < 5


def test_a_coordinator_that_does_not_answer_is_a_fact_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.doctor.probe.ASK_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
    found = look(f"http://127.0.0.1:{number}", [], None).coordinator
    assert found is not None
    assert "did not answer" in found.error
