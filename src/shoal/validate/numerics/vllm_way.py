"""vLLM as an honest way: real states and logits of an engine that shares no code with ours, where it is installed."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from shoal.protocol.profile import Profile, slug
from shoal.validate.numerics.honest_answers import Computed, Drawn
from shoal.validate.vllm_process import VARIABLE, VllmProcess, vllm_python

__all__ = ["VARIABLE", "Vllm", "vllm_python"]


class Vllm:
    """vLLM with one model in bfloat16; alive inside the `with` block."""

    def __init__(self, python: Path, model: Path, max_len: int) -> None:
        """`max_len` is that of the longest sequence."""
        self._process = VllmProcess(python, model, {"max_len": max_len})

    def __enter__(self) -> Self:
        self._process.__enter__()
        self.profile = _profile(self._process.version)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__()

    def computed(self, texts: Sequence[Drawn], temperature: float) -> Computed:
        """What vLLM computes on these texts: the states that tokens are drawn from, and logits over temperature."""
        found = [self._sequence(text.read, len(text.prompt) - 1) for text in texts]
        return Computed([states for states, _ in found], [logits.float().div_(temperature) for _, logits in found])

    def _sequence(self, tokens: Sequence[int], begin: int) -> tuple[Tensor, Tensor]:
        reply = self._process.ask({"tokens": list(tokens), "begin": begin})
        states, logits = (self._process.tensor(reply[name], torch.bfloat16) for name in ("states", "logits"))
        return states.float(), logits


def _profile(version: str) -> Profile:
    """Of vLLM on this machine."""
    hardware = f"{platform.machine()}-cpu-{torch.backends.cpu.get_cpu_capability()}"
    engine = f"vllm-{'.'.join(version.split('.')[:2])}"
    return Profile.model_validate(
        {"hardware": slug(hardware), "engine": engine, "attention": "cpu-attn", "dtype": "bfloat16"}
    )
