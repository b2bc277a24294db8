"""Our own engine on PyTorch: continuous batching for any transformers causal LM.

A finished sequence leaves at once, waiting ones enter as soon as enough slots are free to make their prefill worth a
forward pass, and equal prompts that wait side by side are prefilled once.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from shoal.config import NoiseName
from shoal.devices import CPU, to_numpy
from shoal.errors import ModelError
from shoal.generate.decoding import Decoding, draw_rows
from shoal.generate.engine import Completion, Engine, Request, check_request
from shoal.generate.kv_cache import NextToken, SlotCache
from shoal.generate.noise_kinds import Noise, open_noise
from shoal.generate.proof_builder import ProofBuilder
from shoal.generate.sampling import choose, greedy
from shoal.models.attention import Packed, Recording
from shoal.models.load import AGREEMENT, Policy, disagreement
from shoal.models.weights import read_weights

# A prefill pass takes at most this many prompt tokens, so that its activations stay small.
PREFILL_TOKENS = 4096
# New sequences wait until this share of the slots is free: a forward pass has a fixed cost that one prompt cannot
# repay.
ADMIT_SHARE = 1 / 16


Reader = Callable[[Path], Mapping[str, Tensor]]


@dataclass(slots=True)
class _Sequence:
    key: int
    request: Request
    keep_states: bool
    noise: Noise | None
    proof: ProofBuilder | None
    length: int  # tokens in the cache
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)

    def finished(self, finish: Literal["eos", "length"]) -> Completion:
        states = torch.stack(self.hidden) if self.hidden else None
        proof = b"" if self.proof is None else self.proof.proof()
        return Completion(self.key, self.tokens, self.logprobs, finish, proof, states)


class TorchEngine(Engine):
    """Batched generation with any transformers causal LM, on plain PyTorch.

    `temperature` 0 means greedy decoding, for evaluation; the seed is then without effect. `reader` turns a version's
    directory into weights: that of a run's versions where they may be adapters, else their files as they are.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        max_batch: int,
        max_len: int,
        temperature: float,
        noise: NoiseName = "philox4x64",
        proofs: bool = True,
        reader: Reader | None = None,
    ) -> None:
        if max_len > policy.max_positions:
            raise ModelError(
                f"prompt and answer may take {max_len} tokens, the model handles {policy.max_positions}; "
                "lower max_prompt_tokens or max_new_tokens"
            )
        _check_decoding(policy)
        self.policy = policy
        self.max_batch = max_batch
        self.max_len = max_len
        self.temperature = temperature
        self._noise: NoiseName = noise
        self._proofs = proofs
        self._reader = reader or self._files_as_they_are
        self._cache = SlotCache(max_batch, max_len)
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []

    @property
    def running(self) -> int:
        return len(self._waiting) + len(self._running)

    def load(self, folder: Path, origin: str) -> None:
        self.set_weights(self._reader(folder), origin)

    def _files_as_they_are(self, folder: Path) -> Mapping[str, Tensor]:
        return read_weights(folder, str(self.policy.model.dtype).removeprefix("torch."))

    def set_weights(self, weights: Mapping[str, Tensor], origin: str) -> None:
        """Swaps the weights in place, when no sequence is running."""
        self.policy.set_weights(weights, origin)

    def submit(self, key: int, request: Request, *, hidden: bool = False) -> None:
        check_request(key, request, self.max_len)
        noise = None if self._decoding(request).is_greedy else self._stream(request)
        proof = ProofBuilder() if self._proofs else None
        self._waiting.append(_Sequence(key, request, hidden, noise, proof, len(request.prompt)))

    def _decoding(self, request: Request) -> Decoding:
        return request.decoding or Decoding(self.temperature)

    def _stream(self, request: Request) -> Noise:
        vocab, prompt = self.policy.vocab, len(request.prompt)
        return open_noise(self._noise, request.seed, request.sample, vocab, prompt, request.position)

    @torch.inference_mode()
    def drop(self, key: int) -> None:
        self._waiting = deque(sequence for sequence in self._waiting if sequence.key != key)
        for slot in (slot for slot, sequence in enumerate(self._running) if sequence.key == key):
            self._retire(slot)
            return

    def so_far(self) -> Iterator[tuple[int, Sequence[int], Sequence[float]]]:
        return ((r.key, r.tokens, r.logprobs) for r in self._running if r.request.streamed)

    def abort(self) -> None:
        self._waiting.clear()
        self._running.clear()

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        done = []
        free = self.max_batch - len(self._running)
        admit_at = max(1, int(self.max_batch * ADMIT_SHARE))
        if self._waiting and (free >= min(admit_at, len(self._waiting)) or not self._running):
            done += self._admit(free)
        if self._running:
            done += self._decode()
        return done

    def _admit(self, free: int) -> list[Completion]:
        """Prefills waiting prompts into free slots, equal neighbours once, and draws each one's first token."""
        running = self._running
        first = len(running)
        tokens = 0
        last: tuple[int, ...] | None = None
        while self._waiting and free:
            prompt = self._waiting[0].request.prompt
            tokens += 0 if prompt == last else len(prompt)
            if tokens > PREFILL_TOKENS and last is not None:
                break
            last = prompt
            running.append(self._waiting.popleft())
            free -= 1
        shared = [(prompt, len(list(same))) for prompt, same in groupby(running[first:], lambda r: r.request.prompt)]
        packed = Packed([len(prompt) for prompt, _ in shared])
        recording = Recording(packed)
        ids_1T = torch.tensor([[token for prompt, _ in shared for token in prompt]], device=self.policy.device)
        hidden_TD = self.policy.hidden(ids_1T, packed.positions_1T, recording)[0]
        slot = first
        ends = []
        for begin, (prompt, count) in zip(packed.starts, shared, strict=True):
            self._cache.store(recording, begin, len(prompt), slot, count)
            ends += [begin + len(prompt) - 1] * count
            slot += count
        return self._draw(first, hidden_TD[ends])

    def _decode(self) -> list[Completion]:
        """One new token for every running sequence."""
        running = self._running
        layout = NextToken(self._cache, [r.length for r in running], self.policy.device)
        ids_B1 = torch.tensor([[r.tokens[-1]] for r in running], device=self.policy.device)
        hidden_BD = self.policy.hidden(ids_B1, layout.positions_B1, layout)[:, 0]
        for r in running:
            r.length += 1
        return self._draw(0, hidden_BD)

    def _draw(self, first: int, hidden_BD: Tensor) -> list[Completion]:
        """Draws a token for running[first:] from their final states, and retires those that ended."""
        drawn = self._running[first:]
        tokens_B, logp_B = self._chosen(drawn, self.policy.head(hidden_BD).float())
        tokens, logps = to_numpy(tokens_B).tolist(), to_numpy(logp_B).tolist()
        for r, token, logp in zip(drawn, tokens, logps, strict=True):
            r.tokens.append(token)
            r.logprobs.append(logp)
        self._keep(drawn, hidden_BD)
        done = []
        for slot in reversed(range(first, len(self._running))):
            r = self._running[slot]
            ended = r.tokens[-1] in self.policy.eos_ids
            if ended or len(r.tokens) == r.request.max_new_tokens:
                self._retire(slot)
                done.append(r.finished("eos" if ended else "length"))
        return done

    def _chosen(self, drawn: list[_Sequence], logits_BV: Tensor) -> tuple[Tensor, Tensor]:
        bits = [None if r.noise is None else r.noise.next() for r in drawn]
        if any(r.request.decoding is not None for r in drawn):
            return draw_rows(logits_BV, [self._decoding(r.request) for r in drawn], bits)
        if self.temperature == 0:
            return greedy(logits_BV)
        return choose(self.scaled(logits_BV), [own for own in bits if own is not None])

    def _keep(self, drawn: list[_Sequence], hidden_BD: Tensor) -> None:
        """States go into proofs; where all of them were asked for, they wait on the host, which has room for them."""
        proven_BD = hidden_BD.bfloat16()
        states_BD = hidden_BD.to(CPU) if any(r.keep_states for r in drawn) else None
        for row, r in enumerate(drawn):
            if r.proof is not None:
                r.proof.add(proven_BD[row])
            if r.keep_states and states_BD is not None:
                r.hidden.append(states_BD[row].clone())

    def scaled(self, logits_BV: Tensor) -> Tensor:
        """Logits of the distribution that is sampled."""
        return logits_BV / self.temperature

    def _retire(self, slot: int) -> None:
        """Takes one sequence out and closes its gap with the last one."""
        tail = self._running.pop()
        if slot < len(self._running):
            self._running[slot] = tail
            self._cache.move(len(self._running), slot, tail.length)


@torch.inference_mode()
def _check_decoding(policy: Policy) -> None:
    """A token decoded from the cache must get the logits of a packed forward pass, which `load` has checked.

    Some architectures call attention more than once in a layer, or with heads of several sizes: one row of keys and
    values for each layer and token would not be their cache.
    """
    name = type(policy.model).__name__
    lengths = [3, 5]
    ids_BT = torch.randint(0, policy.vocab, (2, 6), generator=torch.Generator().manual_seed(0))
    rows = [ids_T[: n + 1] for ids_T, n in zip(ids_BT, lengths, strict=True)]
    whole, prompts = Packed([n + 1 for n in lengths]), Packed(lengths)
    ends = [start + n for start, n in zip(whole.starts, lengths, strict=True)]
    expected_BV = policy.head(policy.hidden(torch.cat(rows).unsqueeze(0), whole.positions_1T, whole)[0, ends])
    try:
        cache, recording = SlotCache(len(lengths), 8), Recording(prompts)
        policy.hidden(torch.cat([row[:-1] for row in rows]).unsqueeze(0), prompts.positions_1T, recording)
        for slot, (start, n) in enumerate(zip(prompts.starts, lengths, strict=True)):
            cache.store(recording, start, n, slot, 1)
        layout = NextToken(cache, lengths, policy.device)
        last_B1 = torch.stack([row[-1:] for row in rows])
        decoded_BV = policy.head(policy.hidden(last_B1, layout.positions_B1, layout)[:, 0])
    except (RuntimeError, LookupError) as error:
        raise ModelError(f"{name} is not supported: its keys and values do not fit our cache ({error})") from error
    if not (off := disagreement(expected_BV, decoded_BV)) <= AGREEMENT[expected_BV.dtype]:
        raise ModelError(f"{name} is not supported: decoded logits differ by {off:.3g} of their spread")
