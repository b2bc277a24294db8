"""`python -m benchmarks wheel`: from nothing but Python and the wheel to the first accepted file of a worker.

The environment is empty and everything is installed into it by pip, torch as it is here, from a cache that a first
installation has filled: what is measured is unpacking, starting and working, not the network. A run with one worker of
its own goes on meanwhile. Where uv and pipx are installed, `uvx` and `pipx run` then do the same in one command each,
with a warm cache.
"""

import os
import shutil
import subprocess
import tempfile
import time
import venv
from importlib.metadata import version
from pathlib import Path

from benchmarks.common.configs import base_model, changed, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure
from benchmarks.common.roles import Roles
from shoal.client.client import CoordinatorClient
from shoal.crypto.keys import Key
from shoal.errors import BenchError
from shoal.files import parse_json
from shoal.roles.supervisor import PORTS, join_line
from shoal.rundir import RunDir, prepare_run
from shoal.tasks.package_versions import packages_of, pins_of
from tests.support.wheel import bare, borrowing, build_wheel

INSTALL_S = 3600.0
FIRST_FILE_S = 900.0


def bench_wheel(quick: bool, progress: Progress) -> BenchResult:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-wheel-") as scratch:
        folder = Path(scratch)
        progress.stage("building the wheel")
        wheel = build_wheel(folder / "wheel")
        values: dict[str, Figure] = {"wheel_bytes": wheel.stat().st_size}
        pins = [*pins_of(packages_of(laptop_config().tasks)), f"torch=={version('torch').partition('+')[0]}"]
        if quick:  # other packages are those of this environment
            shoal, installed = borrowing(folder / "env", wheel), 0.0
        else:
            progress.stage("installing it once, to fill pip's cache")
            _install(folder / "first", wheel, pins)
            shutil.rmtree(folder / "first")
            progress.stage("installing it into an empty environment")
            began = time.monotonic()
            shoal = _install(folder / "env", wheel, pins)
            installed = time.monotonic() - began
            values["packages"] = len(list(shoal.parents[1].glob("lib/python3*/site-packages/*.dist-info")))
            values["installed_bytes"] = sum(f.stat().st_size for f in shoal.parents[1].rglob("*") if f.is_file())
        progress.stage("joining a run until a file is accepted")
        run = _run(folder / "run", progress)
        with Roles(run) as roles:
            roles.steps(1, progress.detail)
            joined = _first_file(run, [str(shoal)], folder / "home", progress)
            for tool in () if quick else ("uvx", "pipx"):
                if found := shutil.which(tool):
                    progress.stage(f"joining it with {tool}")
                    command, own = _one_command(found, wheel, pins, folder / f"{tool}.txt")
                    subprocess.run([*command, "--help"], check=True, capture_output=True, env=own)  # fills its cache
                    values[f"{tool}_first_file_s"] = _first_file(run, command, folder / tool, progress, own)
    values |= {"install_s": installed, "join_to_accepted_s": joined, "first_file_s": installed + joined}
    return BenchResult("wheel", {}, values)


def _install(folder: Path, wheel: Path, pins: list[str]) -> Path:
    """The `shoal` command of an empty environment with the wheel and all that it needs, as the page "join" says."""
    venv.create(folder, with_pip=True)
    # With what says where packages are, if this machine has a mirror.
    own = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    command = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        str(wheel),
        *pins,
    ]
    environment = {**bare(Path.home()), **own}
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, env=environment)
    if done.returncode:
        raise BenchError(f"pip could not install {wheel.name}: {done.stderr[-2000:]}")
    return folder / "bin" / "shoal"


def _one_command(tool: str, wheel: Path, pins: list[str], constraints: Path) -> tuple[list[str], dict[str, str]]:
    """`shoal` by uvx or `pipx run`, and the variables that say where packages are."""
    if Path(tool).name == "uvx":
        command = [tool, "--from", str(wheel), *(flag for pin in pins for flag in ("--with", pin)), "shoal"]
    else:  # `--with` would install torch's default build first and replace it then
        constraints.write_text("\n".join(pins))
        command = [tool, "run", "--spec", str(wheel), "--pip-args", f"--constraint {constraints}", "shoal"]
    own = {"UV_CACHE_DIR": str(Path.home() / ".cache" / "uv"), "PIPX_HOME": str(Path.home() / ".cache" / "pipx")}
    own |= {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "PIPX_", "SSL_CERT"))}
    if "PIP_FIND_LINKS" in os.environ:
        own.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"])
    return command, {**bare(Path.home()), **own}


def _run(path: Path, progress: Progress) -> RunDir:
    config = laptop_config()
    base = base_model(config, progress)
    changes = {"name": "bench-wheel", "steps": 10_000, "model.source": str(base), "workers.count": 1}
    return prepare_run(changed(config, changes), path, progress.console)


def _first_file(
    run: RunDir, shoal: list[str], home: Path, progress: Progress, environment: dict[str, str] | None = None
) -> float:
    """Seconds from `shoal worker --join` to its first accepted file."""
    home.mkdir()
    ports = parse_json((run.path / PORTS).read_bytes())  # as the roles were given them
    join, log = join_line(run, ports), home / "worker.log"
    began = time.monotonic()
    with log.open("wb") as file:
        worker = subprocess.Popen(
            [*shoal, "worker", "--join", join, "--name", home.name],
            cwd=home,
            env={**(environment or {}), **bare(home)},
            stdout=file,
            stderr=file,
        )
    try:
        with CoordinatorClient(join, Key.create(), wait_s=60.0) as link:
            while time.monotonic() - began < FIRST_FILE_S and worker.poll() is None:
                progress.detail(f"{time.monotonic() - began:.0f} s")
                nodes = link.get("/v1/status")["nodes"]
                if any(node["name"] == home.name and node["accepted"] for node in nodes):
                    return time.monotonic() - began
                time.sleep(0.2)
    finally:
        worker.terminate()
        worker.wait()
    raise BenchError(f"no file was accepted within {FIRST_FILE_S:.0f} s; the worker said:\n{log.read_text()[-2000:]}")
