"""Environments that were not written for us: harnesses that speak OpenAI's API, tasksets of `verifiers`, OpenEnv.

| source | what it is |
|---|---|
| `environment/harness/FILE.py` | a Python file with `play`, which drives an episode over the endpoint in the worker |
| `environment/verifiers/NAME` | a taskset of `verifiers.v1`, with its environment and harnesses |
| `environment/openenv/FILE.py:CLASS` | an environment class of OpenEnv, in this process |
| `environment/openenv/http://ADDRESS` | a server of OpenEnv |

Whether such an environment is deterministic nobody can see from outside: `options.deterministic = true` says so.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.errors import TaskError
from shoal.files import sha256_file
from shoal.tasks.environments.environment import Environment
from shoal.tasks.files import file_of_environment, is_foreign
from shoal.tasks.sources.user_python import load_module


def build_foreign(
    place: str, options: Mapping[str, Any], where: str, held: Callable[[str], Path]
) -> Environment | None:
    """The environment that a source names behind `environment/`; None if it is not one of these kinds."""
    kind, _, name = place.partition("/")
    if not is_foreign(where) or not name:
        return None
    options = dict(options)
    deterministic = options.pop("deterministic", kind == "harness")
    if not isinstance(deterministic, bool):
        raise TaskError(f"task source {where}: options.deterministic = {deterministic!r}; must be true or false")
    file = file_of_environment(where)
    match kind:
        case "harness" if file is not None:
            return _harness(held(file), options, where, deterministic)
        case "openenv" if file is not None:
            from shoal.tasks.environments.openenv_environment import local_environment

            path = held(file)
            return local_environment(path, name.rpartition(":")[2], options, where, deterministic, hash_of(path))
        case "openenv" if name.startswith(("http://", "https://")):
            from shoal.tasks.environments.openenv_environment import remote_environment

            return remote_environment(name, options, where, deterministic)
        case "verifiers" if file is None:
            from shoal.tasks.environments.harness.harness_environment import HarnessEnvironment
            from shoal.tasks.environments.harness.verifiers_player import VerifiersPlayer

            played = VerifiersPlayer(name, options, f"task source {where}")
            return HarnessEnvironment(played, where, deterministic=deterministic)
    raise TaskError(
        f"task source {where}: write environment/harness/FILE.py, environment/verifiers/NAME, "
        "environment/openenv/FILE.py:CLASS or environment/openenv/http://ADDRESS"
    )


def _harness(path: Path, options: Mapping[str, Any], where: str, deterministic: bool) -> Environment:
    from shoal.tasks.environments.harness.harness_environment import HarnessEnvironment
    from shoal.tasks.environments.harness.python_player import PythonPlayer

    module = load_module(str(path))
    is_same = deterministic and bool(getattr(module, "deterministic", True))
    player = PythonPlayer(module, options, f"task source {where}")
    return HarnessEnvironment(player, where, deterministic=is_same, sha256=hash_of(path))


def hash_of(path: Path) -> str | None:
    """Of the file that an environment is, if it is there: one that is missing is named when it is loaded."""
    return sha256_file(path) if path.is_file() else None
