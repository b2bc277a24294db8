"""Generation with continuous batching: requests in, completions out, in the order in which they finish.

The engine promises that a completion depends on the weights, the prompt, the seed and the sample number alone: which
other requests ran beside it does not matter. Continuous batching: a finished sequence leaves at once, waiting ones
enter as soon as enough slots are free to make their prefill worth a forward pass, and equal prompts are prefilled once.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, Protocol

import torch
from torch import Tensor

from shoal.config import NoiseName
from shoal.devices import CPU, to_numpy
from shoal.errors import ModelError
from shoal.generate.kv_cache import NextToken, SlotCache
from shoal.generate.noise_kinds import Noise, open_noise
from shoal.generate.sampling import choose, greedy
from shoal.models.attention import Packed, Recording
from shoal.models.load import AGREEMENT, Policy, disagreement

# A prefill pass takes at most this many prompt tokens, so that its activations stay small.
PREFILL_TOKENS = 4096
# New sequences wait until this share of the slots is free: a forward pass has a fixed cost that one prompt cannot
# repay.
ADMIT_SHARE = 1 / 16


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to generate. (seed, sample) fixes its noise."""

    prompt: tuple[int, ...]
    seed: int
    sample: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What was generated for the request at `index` of the call."""

    index: int
    tokens: list[int]
    logprobs: list[float]
    finish: Literal["eos", "length"]
    hidden_TD: Tensor | None
    """State t is the one token t was drawn from; given on request only."""


class Engine(Protocol):
    """All that a worker asks of a generation engine; any engine that can do this can serve."""

    def generate(self, requests: Sequence[Request], *, hidden: bool = False) -> Iterator[Completion]: ...

    def set_weights(self, weights: Mapping[str, Tensor], origin: str) -> None: ...


@dataclass(slots=True)
class _Running:
    index: int
    request: Request
    noise: Noise | None
    length: int  # tokens in the cache
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)


class TorchEngine:
    """Batched generation with any transformers causal LM, on plain PyTorch.

    `temperature` 0 means greedy decoding, for evaluation; the seed is then without effect.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        max_batch: int,
        max_len: int,
        temperature: float,
        noise: NoiseName = "philox4x64",
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
        self.noise: NoiseName = noise
        self._cache = SlotCache(max_batch, max_len)

    def set_weights(self, weights: Mapping[str, Tensor], origin: str) -> None:
        """Swaps the weights in place; call it between two `generate` calls, when no sequence is running."""
        self.policy.set_weights(weights, origin)

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], *, hidden: bool = False) -> Iterator[Completion]:
        """Yields each completion as soon as it is finished."""
        for index, request in enumerate(requests):
            prompt, new = len(request.prompt), request.max_new_tokens
            if prompt < 1 or new < 1 or prompt + new > self.max_len:
                raise ModelError(
                    f"request {index}: a prompt of {prompt} tokens and {new} new ones; "
                    f"neither may be empty and both must fit in {self.max_len}"
                )
        waiting = deque(enumerate(requests))
        running: list[_Running] = []
        admit_at = max(1, int(self.max_batch * ADMIT_SHARE))
        while waiting or running:
            free = self.max_batch - len(running)
            if waiting and (free >= min(admit_at, len(waiting)) or not running):
                yield from self._admit(waiting, running, free, hidden)
            if running:
                yield from self._step(running, hidden)

    def _admit(
        self, waiting: deque[tuple[int, Request]], running: list[_Running], free: int, hidden: bool
    ) -> Iterator[Completion]:
        """Prefills waiting prompts into free slots, equal neighbours once, and draws each one's first token."""
        first = len(running)
        tokens = 0
        last: tuple[int, ...] | None = None
        while waiting and free:
            prompt = waiting[0][1].prompt
            tokens += 0 if prompt == last else len(prompt)
            if tokens > PREFILL_TOKENS and last is not None:
                break
            last = prompt
            index, request = waiting.popleft()
            greedily = self.temperature == 0
            noise = None if greedily else self._noise(request)
            running.append(_Running(index, request, noise, len(prompt)))
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
        yield from self._draw(running, first, hidden_TD[ends], hidden)

    def _step(self, running: list[_Running], hidden: bool) -> Iterator[Completion]:
        """One new token for every running sequence."""
        layout = NextToken(self._cache, [r.length for r in running], self.policy.device)
        ids_B1 = torch.tensor([[r.tokens[-1]] for r in running], device=self.policy.device)
        hidden_BD = self.policy.hidden(ids_B1, layout.positions_B1, layout)[:, 0]
        for r in running:
            r.length += 1
        yield from self._draw(running, 0, hidden_BD, hidden)

    def _draw(self, running: list[_Running], first: int, hidden_BD: Tensor, keep: bool) -> Iterator[Completion]:
        """Draws a token for running[first:] from their final states, and retires those that ended."""
        drawn = running[first:]
        logits_BV = self.policy.head(hidden_BD).float()
        if self.temperature == 0:
            tokens_B, logp_B = greedy(logits_BV)
        else:
            bits = [r.noise.next() for r in drawn if r.noise is not None]
            tokens_B, logp_B = choose(self.scaled(logits_BV), bits)
        # States wait on the host until their sequence ends: there may be more of them than a device has room for.
        states_BD = hidden_BD.to(CPU) if keep else None
        tokens, logps = to_numpy(tokens_B).tolist(), to_numpy(logp_B).tolist()
        for row, (r, token, logp) in enumerate(zip(drawn, tokens, logps, strict=True)):
            r.tokens.append(token)
            r.logprobs.append(logp)
            if states_BD is not None:
                r.hidden.append(states_BD[row].clone())
        for slot in reversed(range(first, len(running))):
            r = running[slot]
            ended = r.tokens[-1] in self.policy.eos_ids
            if ended or len(r.tokens) == r.request.max_new_tokens:
                yield self._retire(running, slot, "eos" if ended else "length")

    def _noise(self, request: Request) -> Noise:
        return open_noise(self.noise, request.seed, request.sample, self.policy.vocab, len(request.prompt))

    def scaled(self, logits_BV: Tensor) -> Tensor:
        """Logits of the distribution that is sampled."""
        return logits_BV / self.temperature

    def _retire(self, running: list[_Running], slot: int, finish: Literal["eos", "length"]) -> Completion:
        """Takes one sequence out and closes its gap with the last one."""
        r = running[slot]
        tail = running.pop()
        if tail is not r:
            running[slot] = tail
            self._cache.move(len(running), slot, tail.length)
        states = torch.stack(r.hidden) if r.hidden else None
        return Completion(r.index, r.tokens, r.logprobs, finish, states)


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
