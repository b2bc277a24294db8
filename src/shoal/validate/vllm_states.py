"""`audit.engine = "vllm"`: final states of answers from vLLM's pooling runner, in float32, for the judge's own head.

vLLM computes states alone: log-probs, noise and proofs are checked by the same code as with torch. Each version has a
process of its own, which reads the version's directory when it starts: there are no weights of another version that
could be left in it. Prompts are prefilled in chunks, and nothing is taken from a prefix cache.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from shoal.config import RunConfig
from shoal.devices import is_cuda
from shoal.errors import ConfigError, ModelError
from shoal.models.adapter_files import is_adapter
from shoal.protocol.rollout import Rollout
from shoal.validate.vllm_process import VARIABLE, VllmProcess, vllm_python


class VllmStates:
    """Computes states with the version that is in use; inside the `with` block."""

    def __init__(self, python: Path, max_len: int, budget: int) -> None:
        """`budget` is how many tokens are in a forward pass at most."""
        self._python, self._job = python, {"max_len": max_len, "budget": budget, "states": True}
        self._folder: Path | None = None
        self._process: VllmProcess | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def use(self, folder: Path) -> None:
        """Computes with the version in this directory from now on."""
        self._end()
        self._folder = folder

    def _end(self) -> None:
        self._held.close()
        self._process = None

    def states(self, samples: Sequence[Rollout]) -> list[Tensor]:
        """The states that the tokens of each answer were drawn from, T x D each."""
        sequences = [[*sample.prompt.tolist(), *sample.completion.tolist()[:-1]] for sample in samples]
        begins = [len(sample.prompt) - 1 for sample in samples]
        process = self._started()
        try:
            shapes = process.ask({"sequences": sequences, "begins": begins})["states"]
            found = [process.tensor(shape, torch.float32) for shape in shapes]
        except ModelError:
            self._end()  # it is dead or late: the next file, or this one again, gets a new one
            raise
        for sample, states_TD in zip(samples, found, strict=True):
            if len(states_TD) != len(sample.completion):
                raise ModelError(
                    f"vLLM gave {len(states_TD)} states for an answer of {len(sample.completion)} tokens; "
                    'set audit.engine = "torch"'
                )
        return found

    def _started(self) -> VllmProcess:
        """The version's process, which is started when the first file needs it."""
        if self._process is None:
            if self._folder is None:
                raise ModelError("vLLM has no version to compute with")
            if is_adapter(self._folder):
                raise ModelError(
                    f'{self._folder}: is an adapter, and vLLM is given whole versions; set audit.engine = "torch"'
                )
            self._process = self._held.enter_context(VllmProcess(self._python, self._folder, self._job))
        return self._process


def vllm_for(config: RunConfig, device: torch.device) -> Path | None:
    """The interpreter whose vLLM computes states, or None for torch: as `audit.engine` says, and `auto` takes vLLM on a
    CUDA device where it is there. Adapters are computed with torch: vLLM reads a version's directory, which has to hold
    all weights."""
    engine = config.audit.engine
    if engine == "torch" or config.train.lora is not None or (engine == "auto" and not is_cuda(device)):
        return None
    python = vllm_python()
    if python is None and engine == "vllm":
        raise ConfigError(
            f'audit.engine = "vllm": vLLM cannot be imported here, and {VARIABLE} names no interpreter that has it; '
            "install it, set the variable, or take torch"
        )
    return python
