"""Step `noise-kernel`: the Triton kernel draws numpy's noise bits on the device, and the tokens that numpy chooses.

On a CPU the kernel runs in Triton's interpreter, which the process is started with.
"""

import importlib.util

import numpy as np
import torch

from shoal.devices import to_numpy
from shoal.doctor.steps.context import Context, StepFailed, StepSkipped, Values
from shoal.generate.sampling import NoiseStream, choose

ROWS = 4
VOCABULARIES = {True: (300, 1031), False: (267, 49_152, 151_936)}
TEMPERATURES = (0.6, 1.0)
MAX_LOGPROB_GAP = 1e-4


def run(context: Context) -> Values:
    if importlib.util.find_spec("triton") is None:
        raise StepSkipped("Triton is not installed")
    interpreted = context.device.type == "cpu"
    from shoal.generate.vllm.noise_kernel import draw_on_device, noise_bits

    seeds, samples = [(1 << 63) + row for row in range(ROWS)], list(range(ROWS))
    positions = [7 * row for row in range(ROWS)]
    bits_differ, differ, tokens, gap = 0, 0, 0, 0.0
    for vocab in VOCABULARIES[interpreted]:
        keys = zip(seeds, samples, positions, strict=True)
        bits = [NoiseStream(seed, sample, vocab, position).next() for seed, sample, position in keys]
        found_BV = to_numpy(noise_bits(seeds, samples, positions, vocab, context.device)).view(np.uint32)
        bits_differ += int((found_BV != np.stack(bits)).sum())
        logits_BV = torch.randn(ROWS, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
        for temperature in TEMPERATURES:
            there_BV, each = logits_BV.to(context.device), [temperature] * ROWS
            drawn_B, logp_B = draw_on_device(there_BV, seeds, samples, positions, each)
            expected_B, expected_logp_B = choose(logits_BV / temperature, bits)
            differ += int((to_numpy(drawn_B) != to_numpy(expected_B)).sum())
            gap = max(gap, float(np.abs(to_numpy(logp_B) - to_numpy(expected_logp_B)).max()))
            tokens += ROWS
    if bits_differ or differ or gap > MAX_LOGPROB_GAP:
        raise StepFailed(
            f"{bits_differ} noise bits and {differ} of {tokens} tokens differ from numpy's, log-probs by up to "
            f"{gap:.2g}; expected none, and at most {MAX_LOGPROB_GAP:g}"
        )
    return {"interpreted": interpreted, "tokens": tokens, "bits_differ": 0, "tokens_differ": 0, "logprob_gap": gap}
