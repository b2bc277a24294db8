"""Step `rates`: how far this machine's engine is off from a float32 judge, in the form that a run's odds are made of.

It is what `shoal calibrate --dtype bfloat16` measures; `shoal calibrate merge` and `shoal loosen` take the report.
"""

from shoal.doctor.steps.context import Context, Values
from shoal.protocol.rates.rates_file import read_architecture
from shoal.validate.calibrate.rates import measure_rates
from shoal.validate.calibrate.tally import to_rates_file

FILE = "rates.json"
ANSWERS = 32


def run(context: Context) -> Values:
    config = context.changed(model={"source": str(context.model), "dtype": "bfloat16"}, workers={"dtype": "bfloat16"})
    from shoal.models.load import load

    requests = context.requests(load(context.model), ANSWERS)
    tallies, noise = measure_rates(context.model, config, requests, lambda _share, _what: None, context.device)
    architecture = read_architecture(context.model)
    to_rates_file(tallies, str(architecture)[:200], architecture).write(context.scratch / FILE)
    (profile, own) = list(tallies.items())[-1]
    return {
        "profile": profile,
        "tokens": own.tokens,
        "gaps_over_judge": (own.squares / max(1, own.tokens)) ** 0.5,
        "not_the_best": own.short / max(1, own.tokens),
        "proofs_over_judge": own.proofs / max(1.0, own.chunks.count),
        "judge_gap": noise.gap,
        "judge_mantissa": noise.mantissa,
    }
