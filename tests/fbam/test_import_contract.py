"""The import contract of action models forbids every package of Shoal but the few that it may use."""

import tomllib
from pathlib import Path

import shoal

ALLOWED = {"errors", "extras", "files", "telemetry", "text"}  # as docs/architecture.md says
ABOVE = {"cli", "__main__", "__init__"}  # the layers' contract forbids these
PACKAGE = Path(shoal.__file__).parent


def test_a_package_that_is_added_is_forbidden_too() -> None:
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (contract,) = (one for one in settings["tool"]["importlinter"]["contracts"] if one["name"] == "fbam stands alone")
    present = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert {f"shoal.{name}" for name in present - ALLOWED - ABOVE - {"fbam"}} == set(contract["forbidden_modules"])
