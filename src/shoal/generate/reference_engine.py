"""Reference engine on plain transformers: its own attention and cache, one prompt after the other. Tests compare with
it.

It draws with the lease's noise, so an honest worker may use it instead of our engine. Slow, and no part of ours: what
the two agree on is right, and how far they differ is what a validator must allow.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from shoal import toploc
from shoal.devices import DTYPES, to_numpy
from shoal.generate.engine import Completion, Engine, Request
from shoal.generate.sampling import NoiseStream, choose
from shoal.models.load import Policy
from shoal.models.weights import read_weights


class PlainEngine(Engine):
    """An engine on a model's unchanged forward pass: each step answers one prompt to the end."""

    def __init__(self, directory: Path, like: Policy, dtype: str, temperature: float) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=DTYPES[dtype],
            attn_implementation="sdpa",
        )
        self._policy = Policy(model.to(like.device).eval(), like.tokenizer, like.eos_ids)
        self._temperature = temperature
        self._dtype = dtype
        self._waiting: deque[tuple[int, Request, bool]] = deque()
        self.set_weights(like.weights(), "the policy")

    @property
    def running(self) -> int:
        return len(self._waiting)

    def load(self, folder: Path, origin: str) -> None:
        self.set_weights(read_weights(folder, self._dtype), origin)

    def set_weights(self, weights: Mapping[str, Tensor], origin: str) -> None:
        self._policy.set_weights(weights, origin)

    def submit(self, key: int, request: Request, *, hidden: bool = False) -> None:
        self._waiting.append((key, request, hidden))

    def step(self) -> list[Completion]:
        if not self._waiting:
            return []
        same = [self._waiting.popleft()]
        first = same[0][1]
        while self._waiting and _alike(self._waiting[0][1], first):
            same.append(self._waiting.popleft())
        return self._answers([(key, request) for key, request, _ in same], any(hidden for *_, hidden in same))

    def drop(self, key: int) -> None:
        self._waiting = deque(waiting for waiting in self._waiting if waiting[0] != key)

    def abort(self) -> None:
        self._waiting.clear()

    @torch.inference_mode()
    def _answers(self, requests: Sequence[tuple[int, Request]], hidden: bool) -> list[Completion]:
        """Answers to one prompt, side by side until the last has ended."""
        policy = self._policy
        body: Any = policy.model.base_model
        first = requests[0][1]
        noise = [NoiseStream(one.seed, one.sample, policy.vocab, one.position) for _, one in requests]
        ids_BT = torch.tensor([first.prompt] * len(requests), device=policy.device)
        cache = None
        tokens: list[list[int]] = [[] for _ in requests]
        logps: list[list[float]] = [[] for _ in requests]
        states: list[Tensor] = []
        ended = [False] * len(requests)
        while not all(ended) and len(states) < first.max_new_tokens:
            out = body(input_ids=ids_BT, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            states.append(out.last_hidden_state[:, -1])
            scaled_BV = policy.head(states[-1]).float() / self._temperature
            ids_B, logp_B = choose(scaled_BV, [stream.next() for stream in noise])
            drawn = zip(to_numpy(ids_B).tolist(), to_numpy(logp_B).tolist(), strict=True)
            for row, (token, logp) in enumerate(drawn):
                if not ended[row]:
                    tokens[row].append(token)
                    logps[row].append(logp)
                    ended[row] = token in policy.eos_ids
            ids_BT = ids_B.unsqueeze(1)
        states_BTD = torch.stack(states, dim=1)
        return [
            Completion(
                key,
                tokens[row],
                logps[row],
                "eos" if ended[row] else "length",
                toploc.build(states_BTD[row, : len(tokens[row])].bfloat16()),
                states_BTD[row, : len(tokens[row])] if hidden else None,
            )
            for row, (key, _) in enumerate(requests)
        ]


def _alike(one: Request, other: Request) -> bool:
    return (one.prompt, one.max_new_tokens) == (other.prompt, other.max_new_tokens)
