"""Step `sampling`: tokens that are chosen on the device are those that numpy chooses, for every noise kind."""

from typing import get_args

import numpy as np
import torch

from shoal.config import NoiseName
from shoal.devices import CPU, to_numpy
from shoal.doctor.steps.context import Context, StepFailed, Values
from shoal.generate.noise_kinds import open_noise
from shoal.generate.sampling import choose, gumbel

ROWS = 16
VOCABULARIES = (267, 49_152, 151_936)
TEMPERATURES = (0.6, 1.0)
# Of a log-sum-exp over the largest vocabulary, in float32.
MAX_LOGPROB_GAP = 1e-4


def run(context: Context) -> Values:
    differ, tokens, gap = 0, 0, 0.0
    for vocab in VOCABULARIES:
        logits_BV = torch.randn(ROWS, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
        for kind in get_args(NoiseName):
            bits = [open_noise(kind, 11, row, vocab, 5).next() for row in range(ROWS)]
            for temperature in TEMPERATURES:
                scaled_BV = logits_BV / temperature
                there_BV = logits_BV.to(context.device) / temperature
                chosen_B, logp_B = choose(there_BV, bits)
                own_BV = to_numpy(scaled_BV).astype(np.float64)
                expected_B = (own_BV + gumbel(np.stack(bits))).argmax(axis=1)
                norm_B = np.log(np.exp(own_BV - own_BV.max(1, keepdims=True)).sum(1)) + own_BV.max(1)
                expected_logp_B = own_BV[np.arange(ROWS), expected_B] - norm_B
                differ += int((to_numpy(chosen_B) != expected_B).sum())
                gap = max(gap, float(np.abs(to_numpy(logp_B.to(CPU)) - expected_logp_B).max()))
                tokens += ROWS
    if differ or gap > MAX_LOGPROB_GAP:
        raise StepFailed(
            f"{differ} of {tokens} tokens are not those that numpy chooses, log-probs are off by up to {gap:.2g}; "
            f"expected none, and at most {MAX_LOGPROB_GAP:g}"
        )
    return {"tokens": tokens, "tokens_differ": differ, "logprob_gap": gap}
