"""The arbiter's ruling: every check on the whole file, with the run's own config.

Nothing that a challenger or a validator wrote is believed. The file is the one whose hash is on the ledger, the lease
is the one that the coordinator signed, and the version is the one whose root hash that lease names; later versions of a
file whose answers went on with them are those that the run has under that root hash.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from shoal.errors import RolloutError
from shoal.models.load import Policy, load_as
from shoal.models.version_reader import VersionReader
from shoal.protocol.lease import Lease, no_table
from shoal.protocol.rates.rates_table import RatesTable
from shoal.protocol.signed_lease import SignedLease
from shoal.protocol.stores import Version
from shoal.protocol.submission import read_rollouts
from shoal.protocol.verdict import Finding, is_blame
from shoal.rundir import RunDir, limits_of
from shoal.tasks.difficulty import Table
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import Judge, TaskSource
from shoal.validate.checks.all_checks import Checks
from shoal.validate.evidence.bundle import find_base_model
from shoal.validate.evidence.kept_versions import find_version

TableOf = Callable[[Lease], Table | None]
EVIDENCE = "evidence"


def ruling(claim: Literal["a", "r"], finding: Finding | None) -> bool | None:
    """Whether a challenge is upheld. None where the file shows neither that it is right nor that its maker is to blame:
    then nobody is ruled against."""
    if finding is not None and not is_blame(finding):
        return None
    return (claim == "r") == (finding is not None)


@dataclass(slots=True)
class Arbiter:
    """Judges files of one run; use `open_arbiter`."""

    run: RunDir
    policy: Policy
    tasks: TaskSource
    scorer: Judge
    rates: RatesTable | None = None
    """The run's honest rates. The newest: a file that was judged by older, tighter ones can only be acquitted."""
    _loaded: Version | None = field(default=None, init=False)
    _reader: VersionReader = field(init=False)

    def __post_init__(self) -> None:
        self._reader = VersionReader(self.run.channel(), self.run.config.model.dtype)

    def judge(self, path: Path, signed: SignedLease, table_of: TableOf = no_table) -> Finding | None:
        """What is wrong with a file that was handed in under a lease. WeightsError if its version is not here."""
        return self._judge(path, signed, table_of, self.rates)

    def judge_as_begun(self, path: Path, signed: SignedLease, table_of: TableOf = no_table) -> Finding | None:
        """What was wrong with it by the honest rates that the run began with, the strictest that any of its validators
        ever had; None where they are the newest."""
        began = int(bool(self.run.config.audit.rates))
        if self.rates is None or self.rates.version <= began:
            return None
        first = self.rates.model_copy(update={"additions": self.rates.additions[:began]})
        return self._judge(path, signed, table_of, first)

    def _judge(self, path: Path, signed: SignedLease, table_of: TableOf, rates: RatesTable | None) -> Finding | None:
        config = self.run.config
        try:
            submission = read_rollouts(path, signed.lease, limits_of(config, self.policy.vocab))
            for span in submission.later:
                span.check(signed.lease, signed.signer)
        except RolloutError as error:
            return Finding("format", "a file is what its lease asks for", path.name, str(error))
        later = {span.version: span.weights for span in submission.spans[1:]}
        for number, root in later.items():
            find_version(Version(number, root), self.run.path / EVIDENCE)  # what the run once published

        def root_of(number: int) -> str | None:
            return signed.root_of(number) or later.get(number)

        checks = Checks(config, self.policy, self.tasks, self.scorer, root_of, table_of)
        if rates is not None:
            checks.judge_by(rates)
        if found := checks.formal(submission):
            return found
        self._load(Version(submission.version, submission.weights))
        (found,) = checks.costly([submission], self._load)
        if is_blame(found):
            return found
        scored = checks.rewards(submission)
        return scored if is_blame(scored) else found or scored

    def _load(self, version: Version) -> None:
        if version != self._loaded:
            weights = self._reader.read(find_version(version, self.run.path / EVIDENCE))
            self.policy.set_weights(weights, f"version {version.number}")
            self._loaded = version


@contextmanager
def open_arbiter(run: RunDir) -> Iterator[Arbiter]:
    """An arbiter with the model, the tasks and the scorer of the run in a directory."""
    base = find_base_model(run.path / EVIDENCE)
    with Scorer(run.config.tasks, turns=run.config.turns) as scorer:
        yield Arbiter(run, load_as(base, run.config.model.dtype, "float32"), scorer.tasks, scorer)
