"""vLLM as an honest way: real states and logits of an engine that shares no code with ours, where it is installed.

`SHOAL_VLLM_PYTHON` names an interpreter that has it; an environment of its own is best, for it pins what it needs.
Without the variable it is this interpreter, if vLLM can be imported here.
"""

import importlib.util
import math
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from shoal.errors import ConfigError, ModelError
from shoal.process import KEEP_FREED_MEMORY, NO_HUB, SLEEP_WHEN_IDLE
from shoal.protocol.profile import Profile, slug
from shoal.subproc import Child, ChildError
from shoal.validate.numerics.honest_answers import Computed, Drawn

VARIABLE = "SHOAL_VLLM_PYTHON"
SCRIPT = Path(__file__).with_name("vllm_script.py")
START_S = 900.0
SEQUENCE_S = 300.0
END_S = 10.0


def vllm_python() -> Path | None:
    """The interpreter that has vLLM; None where there is none."""
    if named := os.environ.get(VARIABLE):
        if not os.access(named, os.X_OK):
            raise ConfigError(f"{VARIABLE}={named}: not a program; give an interpreter with vLLM, or unset it")
        return Path(named)
    return Path(sys.executable) if importlib.util.find_spec("vllm") else None


class Vllm:
    """vLLM in a process of its own, with one model in bfloat16; alive inside the `with` block."""

    def __init__(self, python: Path, model: Path, max_len: int) -> None:
        """`max_len` is that of the longest sequence."""
        self._python, self._model, self._max_len = python, model, max_len

    def __enter__(self) -> Self:
        environment = {**os.environ, **KEEP_FREED_MEMORY, **SLEEP_WHEN_IDLE, **NO_HUB}
        # vLLM starts a compiler by its name.
        environment["PATH"] = f"{self._python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self._child = Child([str(self._python), "-I", str(SCRIPT)], environment, show_stderr=False)
        try:
            version = self._ask({"model": str(self._model), "max_len": self._max_len}, START_S)["vllm"]
        except BaseException:
            self._child.close()
            raise
        self.profile = _profile(version)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close(END_S)

    def computed(self, texts: Sequence[Drawn], temperature: float) -> Computed:
        """What vLLM computes on these texts: the states that tokens are drawn from, and logits over temperature."""
        found = [self._sequence(text.read, len(text.prompt) - 1) for text in texts]
        return Computed([states for states, _ in found], [logits.float().div_(temperature) for _, logits in found])

    def _sequence(self, tokens: Sequence[int], begin: int) -> tuple[Tensor, Tensor]:
        reply = self._ask({"tokens": list(tokens), "begin": begin}, SEQUENCE_S)
        return self._tensor(reply["states"]).float(), self._tensor(reply["logits"])

    def _ask(self, request: Mapping[str, object], seconds: float) -> Any:
        with self._errors():
            self._child.send([request], seconds)
            return self._child.receive(seconds)

    def _tensor(self, shape: Sequence[int]) -> Tensor:
        with self._errors():
            data = self._child.read(2 * math.prod(shape), SEQUENCE_S)
        return torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(*shape)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except ChildError as error:
            raise ModelError(
                f"vLLM ({self._python}) on {self._model}: {error}{self._child.last_words()}; see that `{self._python} "
                f"-c 'import vllm'` works, or unset {VARIABLE}"
            ) from None


def _profile(version: str) -> Profile:
    """Of vLLM on this machine."""
    hardware = f"{platform.machine()}-cpu-{torch.backends.cpu.get_cpu_capability()}"
    engine = f"vllm-{'.'.join(version.split('.')[:2])}"
    return Profile.model_validate(
        {"hardware": slug(hardware), "engine": engine, "attention": "cpu-attn", "dtype": "bfloat16"}
    )
