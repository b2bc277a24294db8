"""The wheel is all that somebody without a checkout needs: every file of the package, and commands that work."""

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.support.wheel import ROOT, bare, borrowing, build_wheel

RUN_S = 240.0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def shoal(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return borrowing(tmp_path_factory.mktemp("client") / "env", wheel)


def run(tmp_path: Path, *command: str | Path) -> str:
    """What a command prints, run in an empty directory and with nothing of the checkout in reach."""
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(command, cwd=empty, env=bare(tmp_path), capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(empty.iterdir())
    return done.stdout


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    package = ROOT / "src"
    files = {file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    expected = {str(file.relative_to(package)) for file in files if file.suffix != ".pyc"}
    expected |= {f"shoal/configs/{file.name}" for file in (ROOT / "configs").iterdir() if file.is_file()}
    assert {name for name in inside if ".dist-info/" not in name} == expected
    assert {"shoal/page/static/index.html", "shoal/ledger/evm/contract.vy", "shoal/py.typed"} <= inside


def test_the_client_has_the_wheel_and_not_the_checkout(tmp_path: Path, shoal: Path) -> None:
    python = shoal.parent / "python"
    found = run(tmp_path, python, "-I", "-c", "import shoal, importlib.metadata as m; print(shoal.__file__)")
    assert Path(found.strip()).is_relative_to(shoal.parents[1])


def test_help_and_a_shipped_config_work_without_a_checkout(tmp_path: Path, shoal: Path) -> None:
    assert "worker" in run(tmp_path, shoal, "--help")
    (tmp_path / "empty").rmdir()
    assert 'name = "laptop"' in run(tmp_path, shoal, "run", "configs/laptop.toml", "--dry-run")


def test_the_doctor_says_that_a_machine_with_the_wheel_is_fit(tmp_path: Path, shoal: Path) -> None:
    found = json.loads(run(tmp_path, shoal, "doctor", "--json", "--home", str(tmp_path / "home")))
    assert found["fit"], [check for check in found["checks"] if check["status"] == "failed"]
