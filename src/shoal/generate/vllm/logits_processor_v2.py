"""The lease's noise in vLLM's V2 model runner: its logits processors keep requests by slot, and get the batch's layout.

The positions come from the host's side of that layout, so nothing waits for the device.
"""

# vLLM is an extra that type checks and most machines do not have.
# mypy: disable-error-code="misc,import-not-found,import-untyped,no-any-unimported"

from typing import TYPE_CHECKING, Any

from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

from shoal.errors import ModelError
from shoal.generate.vllm.asked import Asked
from shoal.generate.vllm.captured_states import CAPTURED
from shoal.generate.vllm.draw import Noise, Row, draw

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState


class SeededNoiseV2(LogitsProcessor):
    """Draws each row's token with its request's noise, and adds the row's state to the request's proof.

    The first token is drawn where the last of the prompt is read. A row in the middle of a prompt is before that: vLLM
    throws its token away, and it has no place in a proof.
    """

    def __init__(self, vllm_config: "VllmConfig", req_states: "LogitsProcRequestState") -> None:
        del vllm_config
        self._states = req_states
        self._requests: dict[int, Noise] = {}

    @classmethod
    def validate_params(cls, sampling_params: "SamplingParams") -> None:
        Asked.of(sampling_params.extra_args)

    def add_request(self, req_idx: int, sampling_params: "SamplingParams") -> bool:
        self._requests.pop(req_idx, None)
        asked = Asked.of(sampling_params.extra_args)
        if asked is None:
            return False
        self._requests[req_idx] = Noise(asked, self._states.vocab_size)
        return True

    def apply(self, logits: Tensor, ctx: "LogitsContext") -> Tensor:
        slots: Any = ctx.idx_mapping_np
        if len(logits) != len(slots):
            raise ModelError(
                f"vLLM gave {len(logits)} rows of logits for {len(slots)} requests; speculative decoding must be off"
            )
        read = ctx.seq_lens_upper_bound_np[: len(slots)]
        positions = (read - self._states.prompt_len.np[slots]).tolist()
        rows = [
            Row(row, self._requests[slot], position)
            for row, (slot, position) in enumerate(zip(slots.tolist(), positions, strict=True))
            if slot in self._requests and position >= 0
        ]
        CAPTURED.hand_over(rows, len(logits))
        return draw(logits, rows)
