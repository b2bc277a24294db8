"""Study `cheaters`: do workers that cheat change what a run learns, or how long it takes?

Two honest workers and none, one or two that round the weights to 4 bits, as processes of a swarm with proofs and a
validator. A cheater is banned after two rejected files, so it costs the run what its first files cost to check. All
processes share this machine's cores, which makes the wall time a hard test: what a cheater computes, honest workers
cannot.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.studies.claims import Claim
from shoal.studies.configs import laptop_config
from shoal.studies.drawing import COLORS, band, bars, titled
from shoal.studies.gains import finals
from shoal.studies.intervals import mean_of, paired, shared_confidence
from shoal.studies.one_run import config_of, train_in_swarm
from shoal.studies.study import Conclusion, Found, Job, Outcome, Setting, Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HONEST = 2
CHEATERS = (0, 1, 2)
ATTACK = "int4"
MARGIN, SLOWER = 0.05, 1.1


def setting(cheaters: int) -> Setting:
    share = cheaters / (cheaters + HONEST)
    changes = {"workers.count": HONEST, "cheaters": [{"attack": ATTACK}] * cheaters}
    return Setting(f"cheaters-{share:.0%}".replace("%", "-percent"), changes, swarm=True)


class CheatersStudy:
    """A share of cheaters against none."""

    name = "cheaters"
    summary = "Cheaters: held-out pass@1 and wall time of a run of which up to half of the workers cheat"
    paper = "untrusted workers contribute safely: invalid rollouts are rejected and their nodes removed"
    loop = "processes of a swarm, with proofs and validator"
    full = Size(steps=40, seeds=8, first_seed=4, groups=32, heldout=512, every=40)
    quick = Size(steps=2, seeds=1, groups=2, heldout=4, every=2, smoke=True)

    def settings(self) -> Sequence[Setting]:
        return [setting(count) for count in CHEATERS]

    def run(self, job: Job) -> Outcome:
        return train_in_swarm(job, config_of(job, laptop_config(), {}))

    def conclude(self, found: Found) -> Conclusion:
        claims = [claim for count in CHEATERS[1:] for claim in _claims(found, count)]
        figures: dict[str, float | str] = {}
        for one in self.settings():
            runs = found[one.name]
            figures[f"pass@1, {one.name}"] = str(mean_of(finals(runs)))
            figures[f"seconds, {one.name}"] = str(mean_of([run["wall_s"] for run in runs]))
            figures[f"files of cheaters that were accepted, {one.name}"] = sum(run["cheaters_accepted"] for run in runs)
        return Conclusion(claims, figures)

    def draw(self, found: Found, figure: "Figure") -> None:
        left, right = figure.subplots(1, 2)
        for one, color in zip(self.settings(), COLORS, strict=False):
            band(left, found[one.name], "reward", one.name, color)
        titled(left, "Learning", "step", "training reward")
        left.legend()
        walls = [mean_of([run["wall_s"] for run in found[one.name]]) for one in self.settings()]
        bars(right, [one.name for one in self.settings()], walls)
        titled(right, "Wall time", "seconds")


def _claims(found: Found, cheaters: int) -> list[Claim]:
    none, runs = found[setting(0).name], found[setting(cheaters).name]
    share = f"With {cheaters / (cheaters + HONEST):.0%} cheaters".replace("%", " %")
    confidence = shared_confidence(len(CHEATERS) - 1)
    return [
        Claim(
            f"{share} every cheater is banned, and no honest file is rejected",
            "banned cheaters minus rejected files of honest workers",
            mean_of([run["cheaters_banned"] - run["honest_rejected"] for run in runs], confidence),
            lower=cheaters - 0.5,
        ),
        Claim(
            f"{share} a run learns what it learns without",
            "held-out pass@1 minus that without cheaters",
            paired(finals(none), finals(runs), confidence),
            lower=-MARGIN,
            upper=MARGIN,
        ),
        Claim(
            f"{share} a run takes at most a tenth longer",
            "wall time divided by that without cheaters",
            mean_of([b["wall_s"] / a["wall_s"] for a, b in zip(none, runs, strict=True)], confidence),
            upper=SLOWER,
        ),
    ]
