"""`shoal lend` as people use it: what it prints, and what it refuses."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from shoal.lend.state_files import LendFolder, LendStatus, Settings
from shoal.limits import MachineLimits
from tests.support.command import shoal

URL = "http://127.0.0.1:1#0x" + "ab" * 20


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def agreed() -> LendFolder:
    folder = LendFolder()
    folder.write_settings(Settings(join=URL, when=("idle",), limits=MachineLimits(memory=8 * 10**9)))
    return folder


def refused(done: CompletedProcess[str], said: str) -> None:
    assert done.returncode == 3
    assert said in done.stderr


@pytest.mark.parametrize("command", ["pause", "resume", "finish"])
def test_a_machine_that_is_not_lent_has_nothing_to_be_told(command: str, state: Path) -> None:
    refused(shoal(state, "lend", command), "this machine is not lent now; begin with shoal lend start")
    assert not (LendFolder().path / "control.json").exists()


@pytest.mark.parametrize("command", ["status", "limits", "start", "install"])
def test_a_machine_that_was_never_lent_says_how_to_begin(command: str, state: Path) -> None:
    refused(shoal(state, "lend", command), "this machine was not lent yet; begin with shoal lend start URL")


def test_status_says_on_which_conditions_a_machine_is_lent(agreed: LendFolder, state: Path) -> None:
    assert shoal(state, "lend", "status").stdout.splitlines() == [
        f"lent to   {URL}",
        "when      idle",
        "limits    memory 8 GB",
        "state     not started; shoal lend start",
    ]
    agreed.write_status(LendStatus(state="working", since=0.0, pid=1, worker=2))
    assert "ended since" in shoal(state, "lend", "status").stdout, "nobody holds the lock"
    tree = json.loads(shoal(state, "lend", "status", "--json").stdout)
    assert (tree["running"], tree["settings"]["limits"]["memory"], tree["status"]["state"]) == (
        False,
        8 * 10**9,
        "working",
    )


def test_limits_change_what_is_given_and_nothing_else(agreed: LendFolder, state: Path) -> None:
    shoal(state, "lend", "limits", "--upload", "4Mbit", "--when", "plugged", "--when", "22:00-07:00")
    assert agreed.settings().limits == MachineLimits(memory=8 * 10**9, upload=500_000)
    assert agreed.settings().when == ("plugged", "22:00-07:00")
    shoal(state, "lend", "limits", "--lift", "memory", "--when", "any")
    assert agreed.settings().limits == MachineLimits(upload=500_000)
    assert agreed.settings().when == ()
    before = agreed.settings()
    refused(
        shoal(state, "lend", "limits", "--lift", "patience"), "--lift patience: is unknown; give one of threads, memory"
    )
    refused(
        shoal(state, "lend", "limits", "--memory", "1M"), "--memory 1 MB: no worker can keep that; give 500 MB or more"
    )
    assert agreed.settings() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "nonsense"),
        (["http://[::1/x"], "--join http://[::1/x: Invalid IPv6 URL"),
        (["http://8.8.8.8:1"], "--join http://8.8.8.8:1: plain http over the open internet"),
        ([URL, "--when", "never"], "--when 'never': is unknown"),
        ([URL, "--disk", "lots"], "--disk 'lots': is not a size"),
        ([URL, "--name", "../x"], "worker name '../x'"),
        (["--memory", "8G"], "conditions and limits go with a URL"),
    ],
)
def test_a_start_that_cannot_work_is_refused_and_writes_nothing(arguments: list[str], said: str, state: Path) -> None:
    refused(shoal(state, "lend", "start", *arguments), said)
    assert not (LendFolder().path / "settings.json").exists()


def test_a_second_start_is_refused_and_leaves_the_first_as_it_was(agreed: LendFolder, state: Path) -> None:
    before = agreed.settings()
    with agreed.held():
        refused(shoal(state, "lend", "start", "http://127.0.0.1:2"), "this machine is lent already")
    assert agreed.settings() == before


def test_a_supervisor_that_is_silent_and_alive_is_starting(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.cli.lending.START_S", 0.2)
    silent = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr("shoal.lend.service_files.command", lambda _name: silent)
    done = shoal(state, "lend", "start", URL)
    found = re.search(r"starting since [0-9:]+: process (\d+) has said nothing .* shoal lend status", done.stdout)
    assert found, done.stdout
    os.kill(int(found[1]), signal.SIGKILL)
    os.waitpid(int(found[1]), 0)
    assert done.returncode == 0
    assert "not started" not in done.stdout


def test_a_supervisor_that_has_its_lock_and_no_status_yet_is_starting(agreed: LendFolder, state: Path) -> None:
    with agreed.held():
        assert "starting since" in shoal(state, "lend", "status").stdout


def test_install_writes_the_file_that_it_prints(
    agreed: LendFolder, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    printed = shoal(state, "lend", "install", "--print").stdout
    path = state / ".config" / "systemd" / "user" / "shoal-lend-worker.service"
    assert not path.exists()
    assert f"# {path}" in printed
    done = shoal(state, "lend", "install").stdout
    assert "systemctl --user enable --now shoal-lend-worker.service" in done
    assert path.read_text().strip() in printed
