"""What vLLM's workers do for us, one per rank of tensor parallelism: called by name through `collective_rpc`.

An error is returned as its text, because an exception in a rank ends the engine.
"""

# vLLM is an extra that type checks and most machines do not have.
# mypy: disable-error-code="import-not-found,import-untyped,no-any-unimported"

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.errors import ModelError, ShoalError, first_line
from shoal.generate.vllm.captured_states import CAPTURED
from shoal.generate.vllm.fingerprint import first_difference
from shoal.generate.vllm.parent_watch import end_with
from shoal.models.weights import read_weights


class WorkerExtension:
    """Methods that vLLM adds to its worker class."""

    model_runner: Any
    vllm_config: Any
    rank: int
    use_v2_model_runner: bool

    def shoal_prepare(self, front: int) -> None:
        """Once, before the first request, by the process `front`. Only the first rank's proofs are asked for."""
        end_with(front)
        CAPTURED.watch(self.model_runner.get_model(), builds=self.rank == 0)

    def shoal_load(self, folder: str, dtype: str, origin: str) -> str:
        """Loads a version and compares what was loaded; an empty text if it is what the files say."""
        try:
            weights = read_weights(Path(folder), dtype)
            reload(self, weights)
            check(self.model_runner.get_model(), weights, origin)
        except ShoalError as error:
            return str(error)
        except Exception as error:  # whatever vLLM makes of weights that do not fit it
            return f"{origin}: vLLM cannot load it ({type(error).__name__}: {first_line(error)})"
        return ""

    def shoal_check(self, folder: str, dtype: str, origin: str) -> str:
        """Compares what is loaded with a version's files."""
        try:
            check(self.model_runner.get_model(), read_weights(Path(folder), dtype), origin)
        except ShoalError as error:
            return str(error)
        except Exception as error:  # such as a device without memory for it
            return f"{origin}: vLLM's weights cannot be compared with it ({type(error).__name__}: {first_line(error)})"
        return ""

    def shoal_take(self, ended: Sequence[tuple[int, int]]) -> list[bytes] | str:
        """The proofs of requests that ended, each with its number of tokens."""
        try:
            return [CAPTURED.take(number, tokens) for number, tokens in ended] if self.rank == 0 else []
        except ShoalError as error:
            return str(error)

    def shoal_drop(self, numbers: Sequence[int]) -> None:
        CAPTURED.drop(numbers)

    def shoal_graphs(self) -> tuple[bool, str]:
        """Whether vLLM was told to use no graphs, and the mode of CUDA graphs that it came to on this device."""
        config = self.vllm_config
        return bool(config.model_config.enforce_eager), config.compilation_config.cudagraph_mode.name

    def shoal_runner(self) -> int:
        """Which of vLLM's two model runners the worker has built."""
        return 2 if self.use_v2_model_runner else 1

    def shoal_counts(self) -> tuple[int, int]:
        """The most states that a request's proof has held, and how often preempted requests came back."""
        return CAPTURED.most_held, CAPTURED.resumed


def reload(worker: Any, weights: Mapping[str, Tensor]) -> None:
    """Loads weights in place, through the worker: layers of some models ask for vLLM's config meanwhile, which the
    model runner by itself does not give them."""
    worker.reload_weights(weights_iterator=iter(weights.items()))
    pack_heads(worker.model_runner.get_model())


def pack_heads(model: Any) -> None:
    """On CPUs a head that is tied to the embedding computes with a packed copy, which a reload leaves as it was."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def check(model: Any, weights: Mapping[str, Tensor], origin: str) -> None:
    """Refuses a model that does not compute with these weights."""
    if (different := first_difference(model, weights)) is not None:
        raise ModelError(
            f"{origin}: vLLM's fingerprint of it differs from its files at {different}; its weights are stale or "
            'half-loaded, and nothing is generated with them. Restart the worker, or set workers.engine = "torch"'
        )
