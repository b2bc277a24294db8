"""vLLM in a process of its own: which interpreter has it, how it is started, and how tensors come from it.

`SHOAL_VLLM_PYTHON` names an interpreter that has it; an environment of its own is best, for it pins what it needs.
Without the variable it is this interpreter, if vLLM can be imported here.
"""

import importlib.util
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from shoal.errors import ConfigError, ModelError
from shoal.process import KEEP_FREED_MEMORY, NO_HUB, SLEEP_WHEN_IDLE
from shoal.subproc import Child, ChildError

VARIABLE = "SHOAL_VLLM_PYTHON"
SCRIPT = Path(__file__).with_name("vllm_script.py")
START_S = 900.0
ANSWER_S = 300.0
END_S = 10.0
# Of a version, from its disk into place and through the comparison, on top of that: a large model takes minutes.
LOAD_BYTES_PER_S = 20e6


def vllm_python() -> Path | None:
    """The interpreter that has vLLM; None where there is none."""
    if named := os.environ.get(VARIABLE):
        if not os.access(named, os.X_OK):
            raise ConfigError(f"{VARIABLE}={named}: not a program; give an interpreter with vLLM, or unset it")
        return Path(named)
    return Path(sys.executable) if importlib.util.find_spec("vllm") else None


def reading_s(folder: Path) -> float:
    """Seconds that a version's files may take to be read, on the slowest disk."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) / LOAD_BYTES_PER_S


class VllmProcess:
    """vLLM with one model, alive inside the `with` block; `job` is the first line that `vllm_script` reads."""

    def __init__(self, python: Path, model: Path, job: Mapping[str, object]) -> None:
        self._python, self._model, self._job = python, model, job

    def __enter__(self) -> Self:
        environment = {**os.environ, **KEEP_FREED_MEMORY, **SLEEP_WHEN_IDLE, **NO_HUB}
        # vLLM starts a compiler by its name.
        environment["PATH"] = f"{self._python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self._child = Child([str(self._python), "-I", str(SCRIPT)], environment, show_stderr=False)
        try:
            said = self.ask({"model": str(self._model), **self._job}, START_S + reading_s(self._model))
            self.version = str(said["vllm"])
            self.reloads = bool(said.get("reloads"))
        except BaseException:
            self._child.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close(END_S)

    def ask(self, request: Mapping[str, object], seconds: float = ANSWER_S) -> Any:
        with self._errors():
            self._child.send([request], seconds)
            return self._child.receive(seconds)

    def load(self, folder: Path, dtype: str) -> str:
        """Loads another version, of a process that `reloads`; what is wrong with it, or an empty text."""
        return str(self.ask({"load": str(folder), "dtype": dtype}, ANSWER_S + reading_s(folder))["said"])

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next tensor of an answer, from its bytes."""
        with self._errors():
            data = self._child.read(dtype.itemsize * math.prod(shape), ANSWER_S)
        return torch.frombuffer(bytearray(data), dtype=dtype).view(*shape)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except ChildError as error:
            raise ModelError(
                f"vLLM ({self._python}) on {self._model}: {error}{self._child.last_words()}; see that `{self._python} "
                f"-c 'import vllm'` works, or unset {VARIABLE}"
            ) from None
