"""Final states of the rows that vLLM samples, caught at `compute_logits`, and the proofs that grow from them.

`compute_logits` is called outside of CUDA graphs with exactly the rows that are sampled, in the order in which the
logits processors then see them. It does not know whose rows they are; the logits processor does, and hands the rows
over to the proofs. There is one such place per process, because vLLM creates the two ends apart from each other.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from shoal.errors import ModelError
from shoal.generate.proof_builder import ProofBuilder, chunk_proofs
from shoal.generate.vllm.draw import Row


class CapturedStates:
    """The rows of the last call of `compute_logits`, and the proof of each request so far.

    `most_held` is the most states that a request's proof has held, `resumed` how often a request came back that had
    been preempted.
    """

    def __init__(self) -> None:
        self._rows_BD: Tensor | None = None
        self._proofs: dict[int, ProofBuilder] = {}
        self._builds = False
        self.most_held = 0
        self.resumed = 0

    def watch(self, model: Any, *, builds: bool) -> None:
        """Catches what this model computes logits of, from here on, and builds proofs of it if it is told to."""
        self._builds = builds
        compute_logits: Callable[..., Any] = model.compute_logits

        def caught(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            self._rows_BD = hidden_states
            return compute_logits(hidden_states, *args, **kwargs)

        model.compute_logits = caught

    def hand_over(self, rows: Sequence[Row], count: int) -> None:
        """Adds the states of a step to the proofs of the requests that its `count` rows belong to."""
        asked = [row for row in rows if row.noise.asked.proof]
        if not asked or not self._builds:
            self._rows_BD = None
            return
        states_BD, self._rows_BD = self._rows_BD, None
        if states_BD is None or len(states_BD) != count:
            found = "no states" if states_BD is None else f"{len(states_BD)} states"
            raise ModelError(
                f"vLLM sampled {count} rows and computed logits of {found}: proofs cannot be built; "
                "Shoal knows vLLM 0.32, and speculative decoding must be off"
            )
        states = states_BD.bfloat16().unbind()
        proofs = [self._proofs.setdefault(row.noise.asked.number, ProofBuilder()) for row in asked]
        self._close_full(proofs, asked)
        for proof, row in zip(proofs, asked, strict=True):
            proof.put(row.position, states[row.row])
            self.most_held = max(self.most_held, proof.held)

    def _close_full(self, proofs: Sequence[ProofBuilder], rows: Sequence[Row]) -> None:
        """Builds what ends with this step, all of it together: answers that began together end their chunks so."""
        full = {}
        for proof, row in zip(proofs, rows, strict=True):
            if (chunk := proof.full_before(row.position)) is not None:
                full[proof] = chunk
        for proof, built in zip(full, chunk_proofs(list(full.values())), strict=True):
            proof.close(built)

    def take(self, number: int, tokens: int) -> bytes:
        """The proof of a request that has ended with so many tokens; its states are dropped."""
        if number not in self._proofs:
            raise ModelError(f"request {number}: vLLM ended it after {tokens} tokens, and no state of it was caught")
        return self._proofs.pop(number).proof(tokens)

    def drop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._proofs.pop(number, None)


CAPTURED = CapturedStates()
