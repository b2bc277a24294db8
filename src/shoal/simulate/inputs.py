"""What a simulation is told: how many machines there are, how fast, how long they stay, and what travels between them.

Rates are bytes or tokens per second, times are seconds. What is drawn per machine or per answer is a `Spread`.
"""

import math
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from shoal.config import AuditConfig
from shoal.coordinator.policy import Terms
from shoal.errors import ConfigError

Kind = Literal["full", "delta", "lora"]


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity that differs: log-normal about its mean, or the mean itself where `sigma` is 0."""

    mean: float
    sigma: float = 0.0
    """Standard deviation of the logarithm: with 0.5, two of three are within a factor of 1.65 of the median."""
    most: float = math.inf

    def draw(self, rng: Random) -> float:
        if not self.sigma:
            return min(self.mean, self.most)
        drawn = rng.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)
        return min(drawn, self.most)


@dataclass(frozen=True, slots=True)
class Machines:
    """The workers, and how long they stay."""

    count: int
    places: int
    """Answers that one generates side by side."""
    pass_s: float
    """Of a pass of the engine, which gives each running answer a token, at mean speed."""
    answer_s: float = 0.0
    """More for each running answer."""
    speed: Spread = Spread(1.0)
    """Relative to the mean."""
    download: Spread = Spread(125e6)
    upload: Spread = Spread(125e6)
    churn: float = 0.0
    """Share that leaves per hour without a word; a new machine joins for each."""
    load_s: float = 0.0
    """From a version on the disk to one in the engine."""
    score_s: float = 0.0
    """Of scoring a file and writing it."""
    request_s: float = 0.1
    """Of one request to the coordinator, there and back."""


@dataclass(frozen=True, slots=True)
class Services:
    """The run's own machines but for the trainer."""

    relays: int = 1
    relay_rate: float = 1250e6
    """What a relay sends, and what it receives."""
    origin_rate: float = 1250e6
    coordinator_rate: float = 125e6
    """Uploads share it."""
    coordinator_requests: float = 1000.0
    """Requests per second that it answers; what is asked of it is compared with that, and not delayed."""
    validators: int = 1
    """They share the files, and trust each other."""
    hold_s: float = math.inf
    """For which a validator may have a file before another one is given it too (`patience_s` of a config)."""
    judge_s: float = 0.0
    """Of one file, before anything in it is computed again."""
    judge_token_s: float = 0.0
    """Per token that is computed again."""
    verdict_s: float = 0.0
    """From a file's arrival to the moment at which a validator that is free has it."""
    beside_s: float = 0.0
    """Of work per file that nobody waits for, where all roles share cores: receiving, storing, passing on."""


@dataclass(frozen=True, slots=True)
class Training:
    """The trainer: what a step takes, and what a version is."""

    step_s: float
    """Per step, however many tokens it has."""
    token_s: float
    version_bytes: float
    update_bytes: float
    """What travels to a machine that has the version before; the adapter where those are trained."""
    kind: Kind = "full"
    publish_s: float = 0.0
    """From the end of a step to the first byte of its version at the origin."""
    keep: int = 5
    """Versions that the origin keeps."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a simulation needs."""

    name: str
    terms: Terms
    group_size: int
    answer: Spread
    """Tokens of an answer."""
    file_token_bytes: float
    """Bytes of a file per token of its answers."""
    machines: Machines
    services: Services
    training: Training
    signal: float = 1.0
    """Share of groups whose rewards differ."""
    target_sigma: float = 0.0
    """Spread of answer lengths between groups, beside that within one: tasks, or length targets."""
    audit: AuditConfig = field(default_factory=AuditConfig)
    cores: float = math.inf
    """Cores that all roles share, where they are on one machine."""
    seed: int = 0

    def __post_init__(self) -> None:
        machines = self.machines
        for name, value in (("nodes", machines.count), ("places", machines.places), ("steps", self.terms.steps)):
            if value < 1:
                raise ConfigError(f"simulate: {name} is {value}, must be at least 1")
        if not 0 <= machines.churn < 60:
            raise ConfigError(f"simulate: churn is {machines.churn:g} per hour, must be at least 0 and below 60")
        if not 0 < self.signal <= 1:
            raise ConfigError(f"simulate: {self.signal:g} of groups have signal, must be above 0 and at most 1")
        rates = (machines.download.mean, machines.upload.mean, self.services.relay_rate, self.services.origin_rate)
        if min(*rates, self.services.coordinator_rate) <= 0:
            raise ConfigError("simulate: a link with 0 bytes per second carries nothing; give each a rate above 0")

    def lengths(self, groups: int, rng: Random) -> list[float]:
        """Tokens of the answers of so many groups."""
        found: list[float] = []
        mean, sigma, most = self.answer.mean, self.answer.sigma, self.answer.most
        for _ in range(groups):
            group_mean = mean * Spread(1.0, self.target_sigma).draw(rng)
            center = math.log(group_mean) - sigma**2 / 2
            found += [max(1.0, min(math.exp(rng.gauss(center, sigma)), most)) for _ in range(self.group_size)]
        return found
