"""Version fingerprint: the packages that decide tasks and rewards must be the same on the run's machine and on this
one.

Another word list, another parser of formulas or another tokenizer makes other tasks and rewards of the same config, and
an honest node would be blamed for them. So the run card says which versions are meant, and a node that has others is
told before it works. What decides by itself must be the same release; libraries that prompts merely pass through must
be of the same major and minor release, so that a bug-fix release locks nobody out.
"""

import importlib.metadata
import re
import sys
from collections.abc import Mapping, Sequence

from shoal.config import TaskConfig
from shoal.errors import SwarmError
from shoal.tasks.files import code_of
from shoal.tasks.rewards.combine import kinds_of
from shoal.tasks.sources.filtered import unfolded

PYTHON = "python"
PROMPTS = ("jinja2", "tokenizers", "transformers")
GENERATORS = ("reasoning-gym", "sympy", "zss")
MATH = ("antlr4-python3-runtime", "latex2sympy2-extended", "math-verify", "sympy")
# What a card may say: no more than these names, and nothing that a shell or pip would take for more than a version.
KNOWN = frozenset({PYTHON, "openenv", "verifiers", *PROMPTS, *GENERATORS, *MATH})
VERSION = re.compile(r"[0-9][0-9A-Za-z.]{0,31}", re.ASCII)


def packages_of(tasks: Sequence[TaskConfig]) -> dict[str, str]:
    """The packages that these tasks and their rewards take, as they are here. Python's own version is one of them where
    it makes tasks or runs answers."""
    lines = unfolded(tasks)
    generated = any(line.source.startswith("reasoning-gym/") for line in lines)
    rewards = kinds_of(tasks)
    names = {*PROMPTS, *(GENERATORS if generated else ()), *(MATH if "math" in rewards else ())}
    for name in ("openenv", "verifiers"):
        names |= (
            {name} if any(line.source.removeprefix("environment/").startswith(f"{name}/") for line in lines) else set()
        )
    found = {name: importlib.metadata.version(name) for name in sorted(names)}
    if generated or "code" in rewards or any(map(code_of, lines)):
        found[PYTHON] = f"{sys.version_info.major}.{sys.version_info.minor}"
    return found


def pins_of(packages: Mapping[str, str]) -> list[str]:
    """What pip installs beside shoal, so that a machine makes the tasks and rewards of a run with these packages."""
    exact = {name: version for name, version in packages.items() if name != PYTHON}
    return [f"{name}=={_release(name, exact[name])}{'.*' if name in PROMPTS else ''}" for name in exact]


def install_line(tasks: Sequence[TaskConfig]) -> str:
    """What to install on a machine that is to join a run of these tasks whose owner has the packages that are here."""
    try:
        pins = pins_of(packages_of(tasks))
    except importlib.metadata.PackageNotFoundError:  # a run that was copied here from another machine
        pins = []
    return " ".join(["pip install shoal-rl", *(f"'{pin}'" for pin in pins)])


def check_packages(theirs: Mapping[str, str], tasks: Sequence[TaskConfig], whose: str) -> None:
    """SwarmError that names each package whose version here is not the run's, and how to install the run's."""
    if strange := [name for name, version in theirs.items() if name not in KNOWN or not VERSION.fullmatch(version)]:
        raise SwarmError(f"{whose}: packages name {strange[0]!r:.40}, which decides no tasks; do not join it")
    ours = packages_of(tasks)
    other = [name for name in ours if _release(name, ours[name]) != _release(name, theirs.get(name, ""))]
    if not other:
        return
    said = ", ".join(f"{name} {ours[name]} (the run's: {theirs.get(name, 'not said')})" for name in other)
    # With shoal itself among them pip refuses versions that are older than shoal takes.
    pins = [f"'{name}=={theirs[name]}'" for name in other if name != PYTHON and name in theirs]
    fixes = [f"use Python {theirs[PYTHON]}"] if PYTHON in other and PYTHON in theirs else []
    fixes += [f"pip install shoal-rl {' '.join(pins)}"] if pins else []
    raise SwarmError(
        f"{whose}: this machine would make other tasks or rewards than the run and be blamed for it; it has {said}; "
        f"{' and '.join(fixes) or 'do not join it'}"
    )


def _release(name: str, version: str) -> str:
    return ".".join(version.split(".")[:2]) if name in PROMPTS else version
