"""What `pip install shoal-rl` installs is enough for a worker, and everything else names the extra that it needs."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.extras import EXTRAS

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Where a module is not called as its distribution is.
MODULES = {"pycryptodome": "Crypto", "pyyaml": "yaml"}
# Modules that we import and that belong to a package that we require: it requires them in turn, and says which version.
PART_OF = {
    "llvmlite": "numba",
    "mcp": "verifiers",
    "openai": "verifiers",
    "pydantic_core": "pydantic",
    "safetensors": "transformers",
    "starlette": "fastapi",
    "sympy": "math-verify",
    "tokenizers": "transformers",
}
LENT = ["shoal.cli", "shoal.cli.lend", "shoal.roles.worker", "shoal.roles.validator_process", "shoal.toploc.kernels"]


def distribution(requirement: str) -> str:
    return re.split(r"[\[<>=;! ]", requirement)[0]


def modules_of(requirements: list[str]) -> set[str]:
    names = {distribution(requirement) for requirement in requirements} - {"shoal-rl"}
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


CORE = modules_of(PROJECT["dependencies"])
OPTIONAL = {module for modules in EXTRAS.values() for module in modules} - CORE


def imported(file: Path, *, lazily: bool) -> Iterator[str]:
    """What a file imports; unless `lazily`, only what it imports when it is itself imported."""

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not lazily:
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING" and not lazily:
                continue
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                yield child.module
                yield from (f"{child.module}.{alias.name}" for alias in child.names)
            yield from walk(child)

    yield from walk(ast.parse(file.read_text()))


# Runs in an interpreter of its own, which has what it imports.
ELSEWHERE = {"vllm_script.py"}


def file_of(module: str) -> Path | None:
    place = SOURCES.joinpath(*module.split("."))
    found = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in found if file.is_file()), None)


def third_party(names: Iterator[str]) -> set[str]:
    tops = {name.partition(".")[0] for name in names}
    return {PART_OF.get(name, name) for name in tops - set(sys.stdlib_module_names) - {"shoal"}}


def test_a_worker_installs_at_most_16_packages() -> None:
    assert len(PROJECT["dependencies"]) <= 16


def test_everything_that_is_imported_is_declared() -> None:
    parents = {name.replace("-", "_") for name in PART_OF.values()}
    declared = CORE | OPTIONAL | parents
    missing = {
        str(file.relative_to(SOURCES)): undeclared
        for file in SOURCES.rglob("*.py")
        if file.name not in ELSEWHERE
        if (undeclared := {name.replace("-", "_") for name in third_party(imported(file, lazily=True))} - declared)
    }
    assert missing == {}
    assert parents <= CORE | OPTIONAL


@pytest.mark.parametrize(("child", "parent"), PART_OF.items())
def test_what_is_not_declared_is_required_by_what_is(child: str, parent: str) -> None:
    required = importlib.metadata.requires(parent) or []
    firm = [requirement for requirement in required if "extra ==" not in requirement]
    if parent == "math-verify":  # by way of latex2sympy2-extended
        firm += importlib.metadata.requires("latex2sympy2_extended") or []
    assert child in {distribution(requirement).replace("-", "_") for requirement in firm}


def test_the_extras_are_those_of_the_package() -> None:
    declared = PROJECT["optional-dependencies"]
    assert set(EXTRAS) == set(declared) - {"all", "dev"}
    for name, modules in EXTRAS.items():
        nested = [inner for line in declared[name] for inner in re.findall(r"shoal-rl\[([\w,]+)\]", line)]
        inner = {module for extra in ",".join(nested).split(",") if extra for module in EXTRAS[extra]}
        # A task of lm-eval may have its data in a file beside it.
        assert set(modules) == modules_of(declared[name]) | (inner if name != "lmeval" else set())
    # vLLM is gigabytes, for machines with a GPU; OpenEnv needs another release of mcp than verifiers.
    every = set(EXTRAS) - {"openenv", "vllm"}
    assert set(re.findall(r"\w+", declared["all"][0].partition("[")[2])) == every


def test_what_a_worker_imports_needs_no_extra() -> None:
    """By the imports themselves, which is quicker than to import torch without them."""
    seen: dict[str, set[str]] = {}
    waiting = list(LENT)
    while waiting:
        module = waiting.pop()
        file = file_of(module)
        if file is None or module in seen:
            continue
        names = list(imported(file, lazily=False))
        seen[module] = third_party(iter(names)) & OPTIONAL
        waiting += [*names, *(module.rsplit(".", number)[0] for number in range(1, module.count(".") + 1))]
    assert {module: extras for module, extras in seen.items() if extras} == {}
    assert len(seen) > 80


BLOCK = f"""
import sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = {sorted(OPTIONAL - {"requests", "jinja2", "yaml"})!r}
        return None if name.partition(".")[0] in absent else PathFinder.find_spec(name, path, target)
sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""


def without_extras(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As after `pip install shoal-rl`; three of the packages are there all the same, because torch and transformers
    need them."""
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", BLOCK + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env=environment)


COMMAND = "import sys; sys.argv[1:] = {!r}\nfrom shoal.cli import main; main()"
CONFIG = 'name = "a"\nsteps = 3\n[[tasks]]\nsource = "reasoning-gym/spell_backward"\n'


@pytest.mark.parametrize("arguments", [["--help"], ["worker", "--help"], ["fetch", "--help"]])
def test_help_needs_no_extra(tmp_path: Path, arguments: list[str]) -> None:
    result = without_extras(COMMAND.format(arguments), tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["coordinator", "run.toml"], "coordinator"),
        (["run", "run.toml"], "coordinator"),
        (["rollouts", "."], "coordinator"),
        (["serve", "."], "coordinator"),
        (["relay", "--join", "http://127.0.0.1:1"], "relay"),
        (["origin", "."], "relay"),
        (["ledger", "gas", "run.toml", "--set", "ledger.rpc=http://127.0.0.1:1"], "chain"),
    ],
)
def test_a_command_that_needs_an_extra_says_which(tmp_path: Path, arguments: list[str], extra: str) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    result = without_extras(COMMAND.format(arguments), tmp_path)
    assert result.returncode == 3, result.stderr
    assert f"run: pip install 'shoal-rl[{extra}]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_worker_can_be_imported_without_extras(tmp_path: Path) -> None:
    modules = ", ".join(LENT)
    result = without_extras(f"import {modules}, shoal.cli.weights_fetch, shoal.client.run_status", tmp_path)
    assert result.returncode == 0, result.stderr
