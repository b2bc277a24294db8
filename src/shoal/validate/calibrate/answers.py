"""`shoal calibrate RUN --answers FILES`: rates of other machines, from files that they made in a run.

Each file is computed again in float32 with the versions that it names. It counts as honest because the run's owner says
so: give files of machines that you trust. What the run's own odds make of a file is shown, so that a mistake is seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import ConfigError, RolloutError, WeightsError
from shoal.extras import require
from shoal.files import sha256_file
from shoal.models.load import Policy, load_as
from shoal.models.version_reader import VersionReader
from shoal.protocol.lease import Lease
from shoal.protocol.profile import Profile
from shoal.protocol.rates.rates_table import RatesTable
from shoal.protocol.rates.shipped import default_rates
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission, claimed_lease, read_rollouts
from shoal.protocol.version_directory import DirectoryChannel
from shoal.rundir import RunDir, limits_of
from shoal.validate.calibrate.tally import Tally
from shoal.validate.checks.all_checks import noise_keys
from shoal.validate.evidence.kept_versions import find_version
from shoal.validate.numerics.bets import Bets, Noise
from shoal.validate.numerics.calibration import Say
from shoal.validate.numerics.judge import NOISE_ANSWERS, Weighed, own_answers, seen
from shoal.validate.numerics.observe import own_noise
from shoal.validate.numerics.ways import check_emulated
from shoal.validate.spans import Part, parts_of


@dataclass(slots=True)
class Answers:
    """Files of a run, tallied by profile."""

    run: RunDir
    profile: str | None = None
    """Under which they are counted; each node's declared one if not given."""
    weights: Path | None = None
    """Folder of versions; the run's own if not given."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    nats: dict[str, float] = field(default_factory=dict)
    """What the run's odds make of each file."""
    _policy: Policy | None = None
    _loaded: Version | None = None
    _seen: dict[str, Path] = field(default_factory=dict)
    """The files that were counted, by their hash."""
    _noise: Noise | None = None
    _reader: VersionReader = field(init=False)

    def __post_init__(self) -> None:
        config, name = self.run.config, f"calibrate {self.run.path} --answers"
        if config.model.dtype != "bfloat16":
            raise ConfigError(f"{name}: is for bfloat16 runs; a float32 run is judged by audit.thresholds")
        if config.sampling.mode == "free":
            raise ConfigError(f"{name}: sampling.mode is 'free', so files do not show which tokens the noise picks")
        self._reader = VersionReader(self.run.channel(), config.model.dtype)
        if self.profile is not None:
            self.profile = Profile.parse(self.profile).name

    def add(self, paths: Sequence[Path], say: Say) -> None:
        """Counts files."""
        records = _Records(self.run)
        table = records.rates or RatesTable(shipped=default_rates())
        bets = Bets(table.admitted(self.run.config.audit.profiles))
        for number, path in enumerate(paths):
            say(number / len(paths), f"computing {path.name} again")
            submission, declared = self._read(path, records)
            digest = sha256_file(path)
            if digest in self._seen:
                same = self._seen[digest]
                raise ConfigError(f"{path}: is the same file as {same}; give it once, or rates seem too sure")
            profile = self.profile or declared
            if not profile:
                raise ConfigError(f"{path.name}: its node {submission.lease.node} declared no profile; give --profile")
            self.nats[path.name] = self._count(submission, profile, bets).total
            self._seen[digest] = path

    def _count(self, submission: Submission, profile: str, bets: Bets) -> Weighed:
        """Adds a file to its profile's tally, each version's part of it beside that version; the odds' word on it."""
        assert self._policy is not None
        keys, weighed = noise_keys(submission, self.run.config), Weighed({}, 0)
        for part in parts_of(submission, self._policy.hidden_size):
            noise = self._load(part)
            own_keys = [keys[number] for number in part.numbers]
            answers = seen(self._policy, self.run.config, part.samples, own_keys, {}, part.first)
            tally = Tally.of(answers, noise)
            self.tallies[profile] = self.tallies[profile] + tally if profile in self.tallies else tally
            weighed += Weighed(bets.nats(answers, noise), tally.tokens)
        return weighed

    def _read(self, path: Path, records: "_Records") -> tuple[Submission, str]:
        """A file, and the profile that its node declared."""
        if self._policy is None:
            self._policy = load_as(self.run.base_model, "bfloat16", "float32")
            check_emulated(self._policy)
        lease = claimed_lease(path)
        if lease.run != self.run.config.name:
            raise RolloutError(f"{path.name}: is a file of run {lease.run!r:.100}, not of {self.run.config.name!r}")
        declared = records.profile_of(path, lease)
        return read_rollouts(path, lease, limits_of(self.run.config, self._policy.vocab)), declared

    def _load(self, part: Part) -> Noise:
        """Makes the part's version the one that is computed with; the noise of the judge's own arithmetic on it."""
        assert self._policy is not None
        version = part.version
        if self._noise is None or version != self._loaded:
            folder = self._find(version)
            self._policy.set_weights(self._reader.read(folder), f"version {version.number}")
            prompts = list({tuple(sample.prompt.tolist()): None for sample in part.samples})[:NOISE_ANSWERS]
            self._noise = own_noise(own_answers(self._policy, prompts, self.run.config))
            self._loaded = version
        return self._noise

    def _find(self, version: Version) -> Path:
        if self.weights is None:
            return find_version(version, self.run.path / "evidence")
        try:
            return DirectoryChannel(self.weights, keep=1).fetch(version)
        except WeightsError as error:
            raise WeightsError(f"--weights {self.weights}: {error}") from None


class _Records:
    """What the run's coordinator has on record, where that can be read from here."""

    def __init__(self, run: RunDir) -> None:
        require("coordinator", f"calibrate {run.path} --answers")
        from shoal.coordinator.archive import has_records, rates_of

        self._run = run
        self._known = has_records(run)
        self.rates = rates_of(run)

    def profile_of(self, path: Path, lease: Lease) -> str:
        """The profile that a file's node declared, empty if none is known; a RolloutError for a file that the run has
        not on record as it is, or that was planted to test validators."""
        from shoal.coordinator.archive import handed_in

        if not self._known:
            return ""
        found = handed_in(self._run, lease.step, lease.submission)
        if found is None or (found.lease, found.sha256) != (lease, sha256_file(path)):
            raise RolloutError(
                f"{path.name}: the run has no such file of {lease} on record, or its bytes were changed; give files as "
                "the coordinator stored them"
            )
        if found.planted:
            raise RolloutError(f"{path.name}: was planted to test validators, and not computed as its node says")
        return found.profile
