"""Whether a server is what a run needs, judged from a few of its answers before any lease is taken.

An honest operator whose server samples by other noise, gives log-probs of another temperature or holds other weights
would be banned for it: each of these is found here, and refused with the flag that fixes it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.config import NoiseName
from shoal.errors import ModelError
from shoal.generate.noise_kinds import VLLM_RELEASES, VllmNoise
from shoal.generate.sampling import gumbel

# Log-probs that a server rounds to float32, and its own logarithms.
CLOSE = 5e-3
# Of a log-prob, between two engines that compute in bfloat16, or in float32: a quarter of what a judge allows there.
MAX_GAP = {"bfloat16": 0.5, "float32": 5e-4}
Logprobs = Sequence[float]


def check_release(version: str, noise: NoiseName, url: str) -> None:
    """A server of a release that samples by this noise; a ModelError otherwise."""
    releases = VLLM_RELEASES.get(noise)
    if releases is None:
        raise ModelError(
            f"workers.server {url}: sampling.noise = {noise!r}, which no server draws; a run with stock servers needs "
            f"{' or '.join(map(repr, VLLM_RELEASES))}, or sampling.mode = 'free'"
        )
    if ".".join(version.split(".")[:2]) not in releases:
        raise ModelError(
            f"workers.server {url}: is vLLM {version or 'of an unknown release'}, and sampling.noise = {noise!r} is "
            f"that of vLLM {', '.join(releases)}; install that release"
        )


def best_shortfall(top: Mapping[int, float], chosen: int, power: float, seed: int, position: int) -> float:
    """How far a token is below the best of the likeliest ones under the noise of its seed; 0 if it is the best.

    `top` are their log-probs, `power` what they are multiplied by to be those that were sampled from.
    """
    words = VllmNoise(seed, max(*top, chosen) + 1, position).next()
    noisy = {token: logprob * power + float(gumbel(words[token : token + 1])[0]) for token, logprob in top.items()}
    return max(0.0, max(noisy.values()) - noisy.get(chosen, -np.inf))


def check_noise(shortfalls: Sequence[float], noise: NoiseName, url: str) -> None:
    """Tokens are the best under the noise that the run names."""
    worst = max(shortfalls)
    if worst > CLOSE:
        off = sum(short > CLOSE for short in shortfalls)
        raise ModelError(
            f"workers.server {url}: {off} of {len(shortfalls)} tokens are not those that {noise} draws (up to "
            f"{worst:.2g} below the best); its V2 model runner must sample: a GPU, VLLM_USE_V2_MODEL_RUNNER=1, no "
            "speculative decoding"
        )


def check_temperature(at_run: Mapping[int, float], at_one: Mapping[int, float], temperature: float, url: str) -> None:
    """Log-probs are those of the run's temperature: unlike those of temperature 1."""
    both = at_run.keys() & at_one.keys()
    if temperature != 1.0 and both and max(abs(at_run[token] - at_one[token]) for token in both) < CLOSE:
        raise ModelError(
            f"workers.server {url}: gives log-probs of temperature 1, the run samples at {temperature:g}; start it "
            "with --logprobs-mode processed_logprobs"
        )


def check_reloaded(before: tuple[Logprobs, Logprobs], after: tuple[Logprobs, Logprobs], origin: str, url: str) -> None:
    """The server's log-probs have changed if those of the files have; each pair is (the server's, the files')."""
    if before[0] == after[0] and before[1] != after[1]:
        raise ModelError(
            f"workers.server {url}: computes as before it loaded {origin}, whose files give other log-probs; its "
            "reload has no effect, so start the server again with the newest version"
        )


def check_weights(theirs: Logprobs, ours: Logprobs, dtype: str, origin: str, url: str) -> None:
    """The server computes what the version's files say."""
    gap = float(np.abs(np.array(theirs) - np.array(ours)).max())
    if not gap <= MAX_GAP[dtype]:
        exact = ", and on a GPU with TRITON_F32_DEFAULT=ieee, or it computes in TF32" if dtype == "float32" else ""
        raise ModelError(
            f"workers.server {url}: its log-probs are off by {gap:.2g} from those of {origin}, allowed "
            f"{MAX_GAP[dtype]:g}: it holds other weights, or half of them; start it again with the version's files, "
            f"without quantisation{exact}"
        )
