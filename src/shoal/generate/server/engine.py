"""Engine over a stock vLLM server: a thread per running request, the server does the batching.

It gives no proofs: an unmodified server hands out tokens and log-probs, never its hidden states. `load` checks, after
every swap, that the server computes with the version's weights: a reload that left something old would get an honest
node banned.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path

import numpy as np
import torch

from shoal.config import RunConfig
from shoal.generate.engine import Completion, Engine, Request, check_request
from shoal.generate.noise_kinds import server_seed
from shoal.generate.server.api import TOP, Answer, ServerApi
from shoal.generate.server.probes import (
    Logprobs,
    best_shortfall,
    check_noise,
    check_release,
    check_reloaded,
    check_temperature,
    check_weights,
)
from shoal.generate.server.request_threads import RequestThreads
from shoal.models.attention import Packed
from shoal.models.load import Policy, load

PROBES = 16
PROBE_TOKENS = 128
STEP_S = 0.2


class ServerEngine(Engine):
    """Generates through the server at `config.workers.server`."""

    def __init__(self, config: RunConfig, policy: Policy, loads: Callable[[Path, str], Policy] = load) -> None:
        """`policy` tells the vocabulary and the end tokens, and needs no numbers; `loads` gives one that has them."""
        self._config, self._policy, self._loads = config, policy, loads
        self.api = ServerApi(config.workers.server)
        self._threads = RequestThreads(config.workers.max_batch)
        self._running: dict[Future[Answer], int] = {}
        self._last: tuple[Logprobs, Logprobs] | None = None
        """Log-probs of the probe, the server's and the files', as of the last version."""
        self.check_answers()

    @property
    def running(self) -> int:
        return len(self._running)

    def load(self, folder: Path, origin: str) -> None:
        self.api.reload(folder)
        self.check_weights(folder, origin)
        self.check_answers()  # it may have been started again, with other flags

    def check_answers(self) -> None:
        """A ModelError unless the server takes this run's sequences, samples by its noise and gives log-probs of its
        temperature."""
        self.api.open(self._config.max_len)
        if self._config.sampling.mode == "seeded":
            check_release(self.api.version(), self._config.sampling.noise, self.api.url)
            self._check_sampling()
        self._check_temperature()

    def check_weights(self, folder: Path, origin: str) -> None:
        """A ModelError unless the server gives a probe the log-probs that the version's files give it."""
        dtype = self._config.workers.dtype or self._config.model.dtype
        ours = probe_logprobs(self._loads(folder, dtype), self._probe())
        theirs = self.api.prompt_logprobs(self._probe())
        check_weights(theirs, ours, dtype, origin, self.api.url)
        if self._last is not None:
            check_reloaded(self._last, (theirs, ours), origin, self.api.url)
        self._last = theirs, ours

    def submit(self, key: int, request: Request, *, hidden: bool = False) -> None:
        del hidden  # a server has no states to give
        check_request(key, request, self._config.max_len)
        sampling = self._config.sampling
        seed = server_seed(request.seed, request.sample) if sampling.mode == "seeded" else None
        ends = sorted(self._policy.eos_ids)
        asked = (request.prompt, request.max_new_tokens, sampling.temperature, ends, seed)
        self._running[self._threads.submit(partial(self.api.complete, *asked))] = key

    def step(self) -> list[Completion]:
        done, _ = wait(self._running, STEP_S, FIRST_COMPLETED)
        found = []
        for future in done:
            key, answer = self._running.pop(future), future.result()
            found.append(Completion(key, answer.tokens, answer.logprobs, answer.finish))
        return found

    def abort(self) -> None:
        for future in self._running:
            future.cancel()  # what the server has begun it ends for nobody
        self._running.clear()

    def close(self) -> None:
        self.abort()
        self._threads.close()
        self.api.close()

    def _probe(self) -> list[int]:
        rng, count = np.random.default_rng(17), min(PROBE_TOKENS, self._config.max_len - 1)
        return [int(token) for token in rng.integers(0, self._policy.vocab, count)]

    def _check_sampling(self) -> None:
        """A few tokens, each under a seed of its own, are those that the run's noise draws."""
        prompt, temperature = self._probe(), self._config.sampling.temperature
        short = []
        for seed in range(1, PROBES + 1):
            answer = self.api.complete(prompt, 1, temperature, [], seed, TOP)
            (top,), (chosen,) = answer.top, answer.tokens
            # Log-probs may be those of temperature 1 or of the run's: the noise holds for one of the two.
            powers = {1.0, 1 / temperature}
            short.append(min(best_shortfall(top, chosen, power, seed, len(prompt) - 1) for power in powers))
        check_noise(short, self._config.sampling.noise, self.api.url)

    def _check_temperature(self) -> None:
        temperature = self._config.sampling.temperature
        if temperature != 1.0:
            at_run, at_one = (self.api.complete(self._probe(), 1, t, [], None, TOP).top[0] for t in (temperature, 1.0))
            check_temperature(at_run, at_one, temperature, self.api.url)


@torch.inference_mode()
def probe_logprobs(policy: Policy, tokens: Sequence[int]) -> list[float]:
    """Log-probs of all tokens but the first, by one forward pass."""
    layout = Packed([len(tokens)])
    ids_1T = torch.tensor([list(tokens)], device=policy.device)
    logits_TV = policy.head(policy.hidden(ids_1T, layout.positions_1T, layout)[0]).float()
    logp_TV = torch.log_softmax(logits_TV[:-1], dim=1)
    found: list[float] = logp_TV.gather(1, ids_1T[0, 1:, None])[:, 0].tolist()
    return found
