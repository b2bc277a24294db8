"""Step `rates`: how far this machine's engine is off from a float32 judge, in the form that a run's odds are made of.

It is what `shoal calibrate --dtype bfloat16` measures; `shoal calibrate merge` and `shoal loosen` take the report.
"""

from collections.abc import Sequence

from shoal.config import RunConfig
from shoal.doctor.steps.context import Context, StepFailed, Values
from shoal.extras import is_installed
from shoal.generate.engine import Request
from shoal.models.load import load, load_as
from shoal.protocol.rates.rates_file import read_architecture
from shoal.protocol.rollout import bare_rollout
from shoal.roles.worker_engine import worker_profile
from shoal.validate.calibrate.rates import measure_rates
from shoal.validate.calibrate.tally import Tally, to_rates_file
from shoal.validate.numerics.bets import Observed
from shoal.validate.numerics.judge import seen

FILE = "rates.json"
ANSWERS = 32
# Honest ways are off by at most 1.6 times the judge's noise in log-probs, 1.3 times in proofs, and have up to 1.6 % of
# tokens that are not the best (docs/validation.md): of several times as much it is not rounding that makes them differ.
# A few tokens more may be so by chance where few were drawn.
MOST_GAPS, MOST_PROOFS, MOST_SHORT, SHORT_BY_CHANCE = 4.0, 4.0, 0.08, 5


def run(context: Context) -> Values:
    config = context.changed(model={"source": str(context.model), "dtype": "bfloat16"}, workers={"dtype": "bfloat16"})
    requests = context.requests(load(context.model), ANSWERS)
    tallies, noise = measure_rates(context.model, config, requests, lambda _share, _what: None, context.device)
    if context.device.type != "cpu" and is_installed("vllm"):  # on a CPU measure_rates has measured it
        name, answers = _vllm_answers(context, config, requests)
        tallies[name] = Tally.of(answers, noise)
    for name, tally in tallies.items():
        check_honest(name, tally)
    architecture = read_architecture(context.model)
    to_rates_file(tallies, str(architecture), architecture).write(context.scratch / FILE)
    (profile, own) = list(tallies.items())[-1]
    return {
        "profile": profile,
        "tokens": own.tokens,
        "gaps_over_judge": gaps(own),
        "not_the_best": own.short / max(1, own.tokens),
        "proofs_over_judge": proofs(own),
        "judge_gap": noise.gap,
        "judge_mantissa": noise.mantissa,
    }


def gaps(tally: Tally) -> float:
    """Distance of log-probs, in multiples of the judge's noise."""
    return float((tally.squares / max(1, tally.tokens)) ** 0.5)


def proofs(tally: Tally) -> float:
    """The same of proofs."""
    return float(tally.proofs / max(1.0, tally.chunks.count))


def check_honest(name: str, tally: Tally) -> None:
    """StepFailed for answers that no honest way comes near: a run that took these for honest would let cheats pass."""
    found = {"log-probs": (gaps(tally), MOST_GAPS), "proofs": (proofs(tally), MOST_PROOFS)}
    wrong = [
        f"{what} are off by {off:.3g} times the judge's noise (honest ways: less than {most:g})"
        for what, (off, most) in found.items()
        if not off <= most
    ]
    if tally.short > MOST_SHORT * tally.tokens + SHORT_BY_CHANCE:
        share = tally.short / tally.tokens
        wrong.append(f"{share:.1%} of its tokens are not the best (honest ways: less than {MOST_SHORT:.0%})")
    if wrong:
        raise StepFailed(f"{name}: {'; '.join(wrong)}. It computes something else; its rates are not to be merged")


def _vllm_answers(context: Context, config: RunConfig, requests: Sequence[Request]) -> tuple[str, list[Observed]]:
    """What vLLM on this device answers as a worker, beside the judge: with CUDA graphs, noise and proofs."""
    from shoal.doctor.steps.vllm_engine import vllm_engine

    with vllm_engine(context, context.model, dtype="bfloat16") as engine:
        made = sorted(engine.generate(requests), key=lambda answer: answer.key)
    rollouts = [
        bare_rollout(request.prompt, answer.tokens, answer.logprobs, answer.finish, answer.proof)
        for request, answer in zip(requests, made, strict=True)
    ]
    policy = load_as(context.model, "bfloat16", "float32")
    keys = [(request.seed, request.sample) for request in requests]
    workers = config.workers.model_copy(update={"engine": "vllm"})
    profile = worker_profile(config.model_copy(update={"workers": workers}), context.device)
    return profile.name, seen(policy, config, rollouts, keys, {})
