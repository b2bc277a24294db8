"""Files for systemd and launchd: what the systems' own tools accept, with the command that was meant."""

import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.lend.service_files import launchd_plist, service_file, systemd_unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("program", [sys.executable, "/bin/sh"])
def test_systemd_finds_nothing_wrong_with_the_unit(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.lend.service_files.sys.executable", program)
    path = tmp_path / "shoal-lend-worker.service"
    path.write_text(systemd_unit("worker"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(path)], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if path.name in line]
    assert not complaints


def test_a_path_that_means_something_to_systemd_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.lend.service_files.sys.executable", '/opt/my "envs"/100%/$HOME/python')
    line = next(line for line in systemd_unit("worker").splitlines() if line.startswith("ExecStart="))
    assert line.startswith('ExecStart="/opt/my \\"envs\\"/100%%/$$HOME/python" "-P" "-m" "shoal" "lend" "start" ')


def test_launchd_starts_it_at_login_and_again_after_a_kill_but_not_after_its_end(tmp_path: Path) -> None:
    read = plistlib.loads(launchd_plist("gpu-1", tmp_path / "lend.log"))
    assert read["Label"] == "org.shoal.lend.gpu-1"
    assert read["ProgramArguments"][1:] == ["-P", "-m", "shoal", "lend", "start", "--foreground", "--name", "gpu-1"]
    assert (read["RunAtLoad"], read["KeepAlive"]) == (True, {"SuccessfulExit": False})


@pytest.mark.parametrize(
    ("platform", "place"),
    [
        ("linux", ".config/systemd/user/shoal-lend-worker.service"),
        ("darwin", "Library/LaunchAgents/org.shoal.lend.worker.plist"),
    ],
)
def test_each_system_has_its_own_place(platform: str, place: str, tmp_path: Path) -> None:
    path, content, commands = service_file("worker", platform, tmp_path, tmp_path / "lend.log")
    assert path == tmp_path / place
    assert b"--foreground" in content
    assert all("worker" in line or "linger" in line for line in commands)
