"""The lease's noise in vLLM's V1 model runner: its logits processors learn of requests by changes of the batch."""

# vLLM is an extra that type checks and most machines do not have.
# mypy: disable-error-code="misc,import-not-found,import-untyped,no-any-unimported"

from typing import TYPE_CHECKING, Any

from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from shoal.generate.vllm.asked import Asked
from shoal.generate.vllm.captured_states import CAPTURED
from shoal.generate.vllm.draw import Noise, Row, draw

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig


class SeededNoiseV1(LogitsProcessor):
    """Draws each row's token with its request's noise, and adds the row's state to the request's proof.

    A request's position is the number of tokens that it has: vLLM keeps them in the list that a request is added with.
    A request in the middle of its prompt has a row as well, whose token vLLM throws away; its place is drawn again.
    """

    def __init__(self, vllm_config: "VllmConfig", device: "torch.device", is_pin_memory: bool) -> None:
        del device, is_pin_memory
        self._vocab = int(vllm_config.model_config.get_vocab_size())
        self._requests: dict[int, tuple[Noise, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: "BatchUpdate | None") -> None:
        if batch_update is None:
            return
        requests = self._requests
        for row in batch_update.removed:
            requests.pop(row, None)
        for row, params, _, tokens in batch_update.added:
            asked = Asked.of(params.extra_args)
            requests.pop(row, None)
            if asked is not None:
                requests[row] = Noise(asked, self._vocab), tokens
                CAPTURED.resumed += bool(tokens)
        for first, second, direction in batch_update.moved:
            moved, other = requests.pop(first, None), requests.pop(second, None)
            if moved is not None:
                requests[second] = moved
            if other is not None and direction == MoveDirectionality.SWAP:
                requests[first] = other

    def apply(self, logits: Tensor) -> Tensor:
        rows = [Row(row, noise, len(tokens)) for row, (noise, tokens) in sorted(self._requests.items())]
        CAPTURED.hand_over(rows, len(logits))
        return draw(logits, rows)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        Asked.of(sampling_params.extra_args)
