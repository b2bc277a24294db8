"""Economics of cheating, in closed form: what faked answers gain in honest files' pay, and how many pass in one step.

The model: an honest answer costs `1 - margin` of its pay, a fake costs nothing and may have any length up to the limit.
A fake that is recomputed is found out, always or with a given `power`. A file that is found out is unpaid, takes its
key's locked pay and part of its stake, and from then on every file of that key is recomputed.

The result does not rest on stake. A draw by tokens misses the fakes with a probability that is the honest share of the
file's tokens, and tokens are what is paid. So on average a file with fakes is paid at most its honest tokens, however
many keys share the work, and every further draw and everything that is taken is a loss (`docs/economics.md`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, prod

from shoal.config import AuditConfig, RunConfig
from shoal.validate.audit import spot_draws

MARGIN = 0.1
# Lengths of fakes, in multiples of a mean honest answer, among which a cheater chooses.
LENGTHS = (0.01, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 1000.0)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a file of a node past its probation is looked at."""

    rate: float
    """Probability that all of it is recomputed."""
    by_tokens: int
    """Answers drawn by tokens otherwise."""
    by_answers: int
    """Answers drawn by answers otherwise."""
    power: float = 1.0
    """Probability that a fake which is recomputed is told from an honest answer; 1 in float32 with seeded noise."""

    @classmethod
    def of(cls, config: AuditConfig, answers: int) -> "Sampling":
        return cls(config.rate, *spot_draws(config, answers))

    def misses(self, share: float, length: float) -> float:
        """Probability that a file passes in which this share of the answers are fakes of this length, spread evenly.

        No other arrangement passes more often (`misses_exactly`).
        """
        if share <= 0:
            return 1.0
        of_tokens = share * length / pay(share, length)
        unseen = (1 - self.power * share) ** self.by_answers * (1 - self.power * of_tokens) ** self.by_tokens
        return (1 - self.power * self.rate) * unseen

    def misses_exactly(self, lengths: Sequence[int], fakes: Collection[int]) -> float:
        """Probability that a file of such answers passes of which these are fakes, each told for certain."""
        tokens = _honest_stretches(lengths, fakes, self.by_tokens)
        answers = _honest_stretches([1] * len(lengths), fakes, self.by_answers)
        return (1 - self.rate * bool(fakes)) * prod(tokens) * prod(answers)


def _honest_stretches(sizes: Sequence[int], fakes: Collection[int], stretches: int) -> list[float]:
    """The share of each of some equal stretches that belongs to honest answers."""
    each = sum(sizes) / stretches if stretches else 0.0
    honest = [0.0] * stretches
    begin = 0
    for number, size in enumerate(sizes):
        end = begin + size
        if number not in fakes:
            for i in range(int(begin / each) if each else 0, stretches):
                honest[i] += max(0.0, min(end, (i + 1) * each) - max(begin, i * each)) / each
                if end <= (i + 1) * each:
                    break
        begin = end
    return [min(1.0, share) for share in honest]


def pay(share: float, length: float) -> float:
    """What a file with fakes is paid if it passes."""
    return 1 + share * (length - 1)


def gain_of_file(sampling: Sampling, share: float, length: float, margin: float = MARGIN) -> float:
    """What one file gains over an honest one, where nothing is taken but the file's own pay."""
    # The cost of the honest answers, and the profit that an honest file would have made.
    given_up = (1 - margin) * (1 - share) + margin
    return sampling.misses(share, length) * pay(share, length) - given_up


def gain(
    config: RunConfig,
    share: float,
    keys: int,
    files_per_step: float,
    *,
    length: float,
    sampling: Sampling | None = None,
    margin: float = MARGIN,
    stake: float = 0.0,
) -> float:
    """What all keys together gain over honest work that cheat on a share of their answers until they are found out.

    They behaved through the probation and then paused until all of that pay was theirs: only what they earn by cheating
    is locked, and each has `stake` files' pay of deposited stake. One key with several files per step loses those of
    the same step together.
    """
    sampling = sampling or Sampling.of(config.audit, answers_per_file(config))
    each = files_per_step / keys
    batch, every = max(1, round(each)), max(1.0, 1 / each)
    paid = pay(share, length)
    passes = sampling.misses(share, length) ** batch
    if passes >= 1:
        raise ValueError(f"share {share}: is never found out, so its gain has no end")
    given_up = batch * ((1 - margin) * (1 - share) + margin)
    caught = 1 - passes
    lost = batch * paid * _locked(passes, every, config.ledger.window) + min(stake, config.ledger.slash_files * paid)
    return keys * (passes * (batch * paid - given_up) / caught - given_up - lost)


def _locked(passes: float, every: float, window: int) -> float:
    """How many earlier batches of cheated files are still locked when one is found out, on average.

    Pay is let go when the second window after its own begins, so that of `window` to `2 * window - 1` steps is locked.
    """
    steps = range(window, 2 * window)
    return sum(sum(passes**i for i in range(1, floor(held / every) + 1)) for held in steps) / window


def worst(
    config: RunConfig, keys: int, files_per_step: float, sampling: Sampling | None = None, longest: float = 1000.0
) -> tuple[float, int, float]:
    """The best that a cheater can do: its gain, how many answers of a file it fakes, and how long."""
    answers = answers_per_file(config)
    return max(
        (gain(config, k / answers, keys, files_per_step, length=length, sampling=sampling), k, length)
        for k in range(1, answers + 1)
        for length in LENGTHS
        if length <= longest
    )


# Share of a node's computing that 8-bit weights save, at most: half of the bytes that decoding reads.
SAVED_BY_INT8 = 0.5


def gain_of_rounding(
    judged_tokens: float, recomputed: float, file_tokens: float, saved: float = SAVED_BY_INT8, margin: float = MARGIN
) -> float:
    """What a key gains, in honest files' pay, that computes all answers with cheaper weights from its probation on, in
    a bfloat16 run: until its numbers have been recomputed for so many tokens, of which a file has this share.

    Such answers are not fakes that a look tells: evidence adds up, and a ban by evidence takes nothing but the file
    that was judged last. Where one file shows enough by itself, the first is the last, and it is not paid.
    """
    files = ceil(judged_tokens / (recomputed * file_tokens))
    return files * saved * (1 - margin) - 1


def worst_strike(sampling: Sampling, answers: int, length: float) -> tuple[float, int]:
    """Fakes that pass in one step before the first is found out, on average, with any number of keys that strike in it;
    and how many of them the best file to hand in has.

    From then on the step's files are all recomputed. With no end of keys the best file is always the same.
    """

    def passed(fakes: int) -> float:
        misses = sampling.misses(fakes / answers, length)
        return fakes * misses / (1 - misses) if misses < 1 else inf

    return max((passed(fakes), fakes) for fakes in range(1, answers + 1))


def poisoned_share(config: RunConfig, sampling: Sampling | None = None) -> float:
    """The most of a step that fakes of any length can be on average, of its answers or of an honest step's tokens."""
    answers = answers_per_file(config)
    sampling = sampling or Sampling.of(config.audit, answers)
    passed = (worst_strike(sampling, answers, length)[0] * max(1.0, length) for length in LENGTHS)
    return max(passed) / answers_per_step(config)


def answers_per_file(config: RunConfig) -> int:
    return config.workers.groups_per_submission * config.sampling.group_size


def answers_per_step(config: RunConfig) -> int:
    """Answers that a step is trained on, at least."""
    return config.train.groups_per_step * config.sampling.group_size
