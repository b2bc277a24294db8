"""`audit.engine = "vllm"`: final states of answers from vLLM's pooling runner, in float32, for the judge's own head.

vLLM computes states alone: log-probs, noise and proofs are checked by the same code as with torch. A process of its own
reads a version's directory when it starts. It takes other versions in place where its interpreter has Shoal, and every
layer is then compared with the files (`generate/vllm/fingerprint.py`): no weights of another version are left in it.
Prompts are prefilled in chunks, and nothing is taken from a prefix cache.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from shoal.config import RunConfig
from shoal.devices import Room, is_cuda, least_room
from shoal.errors import ConfigError, DeviceError, ModelError
from shoal.generate.vllm.device_room import share_of, states_needs
from shoal.models.adapter_files import is_adapter
from shoal.protocol.rollout import Rollout
from shoal.validate.vllm_process import VARIABLE, VllmProcess, vllm_python

# Processes that die one after the other, with no answer in between, before vLLM is given up.
MAX_DEATHS = 3


@dataclass(frozen=True, slots=True)
class StatesJob:
    """What vLLM computes states of."""

    max_len: int
    budget: int
    """Tokens in a forward pass at most."""
    held: str = "float32"
    """Number format of the versions."""
    cuda: bool = False

    def engine_args(self, folder: Path) -> dict[str, Any]:
        """Arguments of vLLM's engine that follow from the device; a ModelError where it has no room."""
        if not self.cuda:
            return {}
        return on_device(least_room(1), folder, self)


def on_device(room: Room, folder: Path, job: StatesJob) -> dict[str, Any]:
    """How much of a device vLLM may take: what states need, for the judge's own policy is on it, too, and may not be
    all that is. One device: who judges has room on it for a float32 policy, so vLLM's copy is not split either."""
    share = share_of(room, states_needs(folder, job.held, job.max_len, job.budget))
    args: dict[str, Any] = {"gpu_memory_utilization": share.share}
    return args if share.cache is None else {**args, "kv_cache_memory_bytes": share.cache}


class VllmStates:
    """Computes states with the version that is in use; inside the `with` block.

    With `give_up` torch may take its place: `states` is None where vLLM cannot start or does not answer. After a start
    that failed, or MAX_DEATHS deaths in a row, it is told why, once, and vLLM is not asked again. Without it that is a
    DeviceError, and a death alone, or a version whose files are gone, a ModelError.
    """

    def __init__(self, python: Path, job: StatesJob, give_up: Callable[[str], None] | None = None) -> None:
        self._python, self._job, self._give_up = python, job, give_up
        self._folder: Path | None = None
        self._number = 0
        self._process: VllmProcess | None = None
        self._has: tuple[int, Path] | None = None
        """The version that the process computes with."""
        self._held = ExitStack()
        self._deaths = 0
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def use(self, number: int, folder: Path) -> None:
        """Computes with this version from now on. Nothing is loaded until states are asked for."""
        self._number, self._folder = number, folder

    def _end(self) -> None:
        self._held.close()
        self._process = self._has = None

    def states(self, samples: Sequence[Rollout]) -> list[Tensor] | None:
        """The states that the tokens of each answer were drawn from, T x D each; None where torch has to."""
        if self._is_over:
            return None
        process = self.start()
        if process is None:
            return None
        sequences = [[*sample.prompt.tolist(), *sample.completion.tolist()[:-1]] for sample in samples]
        begins = [len(sample.prompt) - 1 for sample in samples]
        try:
            shapes = process.ask({"sequences": sequences, "begins": begins})["states"]
            found = [process.tensor(shape, torch.float32) for shape in shapes]
            _check_lengths(samples, found)
        except ModelError as error:
            self._end()  # it is dead or late: the next file, or this one again, gets a new one
            self._deaths += 1
            if self._deaths >= MAX_DEATHS:
                self._stop(f"vLLM died {self._deaths} times in a row: {error}")
            elif self._give_up is None:
                raise
            return None
        self._deaths = 0
        return found

    def start(self) -> VllmProcess | None:
        """The process with the version in use: started when it is needed first, then given other versions.

        Where the interpreter lacks what loads them, a later version takes a new process, and torch computes with
        earlier ones: a file whose answers change versions would else cost two starts. The same where a version's files
        are gone: that says nothing about vLLM.
        """
        if self._folder is None:
            raise ModelError("vLLM has no version to compute with")
        wanted = self._number, self._folder
        if self._has != wanted and self._is_gone(self._folder):
            return None
        if self._process is not None and self._has != wanted:
            assert self._has is not None
            if not self._process.reloads and self._number < self._has[0]:
                return None
            if not self._reloaded(self._process, self._folder):
                self._end()
        if self._process is None:
            try:
                self._process = self._opened(self._folder)
            except ModelError as error:
                if not self._is_gone(self._folder):
                    self._stop(str(error))
                return None
        self._has = wanted
        return self._process

    def _is_gone(self, folder: Path) -> bool:
        """Whether a version's files have been removed; a ModelError if torch may not take vLLM's place."""
        if folder.is_dir():
            return False
        if self._give_up is None:
            raise ModelError(f"{folder}: the version was removed before vLLM had read it")
        return True

    def _reloaded(self, process: VllmProcess, folder: Path) -> bool:
        """Whether the process has taken a version; a new one reads it from its files if not."""
        try:
            return process.reloads and process.load(folder, self._job.held) == ""
        except ModelError:
            return False

    def _opened(self, folder: Path) -> VllmProcess:
        if is_adapter(folder):
            raise ModelError(f"{folder}: is an adapter, and vLLM is given whole versions")
        job = {
            "max_len": self._job.max_len,
            "budget": self._job.budget,
            "states": True,
            "engine": self._job.engine_args(folder),
        }
        return self._held.enter_context(VllmProcess(self._python, folder, job))

    def _stop(self, why: str) -> None:
        self._end()
        if self._give_up is None:
            raise DeviceError(f'audit.engine = "vllm": {why}; set audit.engine = "torch", or audit.device = "cpu"')
        self._is_over = True
        self._give_up(f"states are computed with torch from now on: {why}")


def _check_lengths(samples: Sequence[Rollout], found: Sequence[Tensor]) -> None:
    for sample, states_TD in zip(samples, found, strict=True):
        if len(states_TD) != len(sample.completion):
            raise ModelError(
                f"vLLM gave {len(states_TD)} states for an answer of {len(sample.completion)} tokens; "
                'set audit.engine = "torch"'
            )


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
