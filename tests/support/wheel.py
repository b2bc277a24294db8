"""The package as somebody gets it who has no checkout: a wheel, installed into an environment of its own.

`borrowing` makes an environment that has the wheel and, instead of minutes of installing, sees the packages of the one
that runs the tests, but not its editable install of the checkout.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD_S = 240.0


def build_wheel(folder: Path) -> Path:
    """Builds the wheel of this checkout, with the build backend that pyproject.toml names."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("shoal_rl-*.whl")
    return wheel


def borrowing(folder: Path, wheel: Path) -> Path:
    """The `shoal` command of an environment with the wheel, which borrows all other packages."""
    venv.create(folder, with_pip=False)
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    # Directories in a .pth file are searched, but .pth files in them, as that of an editable install, are not read.
    ours = [place for place in sys.path if Path(place).name in ("site-packages", "dist-packages")]
    (packages / "borrowed.pth").write_text("\n".join(ours) + "\n")
    python = folder / "bin" / "python"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]
    done = subprocess.run(
        [*command, "--no-deps", "--no-index", "--no-compile", "--ignore-installed", str(wheel)],
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        env=bare(folder),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin" / "shoal"


def bare(home: Path) -> dict[str, str]:
    """Environment of a machine that knows nothing of this checkout."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "200"}
