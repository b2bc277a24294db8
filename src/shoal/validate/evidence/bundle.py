"""Evidence: what a rejection rests on, small enough to send and whole enough for people to compute again.

A bundle holds the accused sample's group (the whole file where the finding is about all of it), the lease, the run's
config as strangers may see it, the version's root hash, and the finding: one JSON file, with a Parquet file beside it
where answers are long (`samples`). `replay_bundle` runs the one check that was not passed; the weights of the version,
where the check needs them, are found by their root hash: one copy per version beside the bundles (`kept_versions`), or
what somebody fetched again. A bundle proves nothing: it points at a file, and an arbiter judges that file.
"""

import base64
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shoal.config import RunConfig
from shoal.config_io import check_config, public_tree
from shoal.errors import RolloutError, WeightsError
from shoal.files import (
    parse_json,
    read_regular,
    sha256_file,
    write_whole,
)
from shoal.protocol.lease import Lease
from shoal.protocol.rates.rates_table import RatesTable
from shoal.protocol.rollout import Rollout
from shoal.protocol.spans import SpanLease, read_span_leases, spans_of, write_span_leases
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding
from shoal.rollout_size import MAX_BYTES
from shoal.tasks.difficulty import Table
from shoal.validate.evidence.samples import read_samples, samples_path, write_samples

FORMAT = 5
MAX_FILE = 1 << 20
MAX_SAMPLES = 1 << 31
# Keys cost nothing: what strangers hand in fills no disk. Bundles beyond this say what was found, and hold no samples.
MAX_BYTES_OF_BUNDLES = 1 << 30
# Old bundles go some steps at a time: looking for them takes as long as there are bundles.
PRUNE_EVERY = 8
ROOT = re.compile(r"[0-9a-f]{64}|")
ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}|")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A rejection and all it rests on."""

    config: RunConfig
    finding: Finding
    sha256: str
    lease: Lease | None
    version: int | None
    root: str
    first: int
    """Number in the file of the first sample that is here."""
    rollouts: list[Rollout]
    file: bytes | None
    """The file itself where it could not even be read, if it is small."""
    table: Table | None = None
    """What the lease draws its tasks by, where the run has such tables."""
    rates: RatesTable | None = None
    """The version of the run's honest rates that its numbers were judged by, where it is about these."""
    later: tuple[SpanLease, ...] = ()
    """What the file's answers went on with, span by span."""
    coordinator: str = ""
    """Address of the coordinator that the validator knows, whose signature span leases must have."""

    @property
    def submission(self) -> Submission:
        assert self.lease is not None
        assert self.version is not None
        return Submission(self.lease, self.version, self.root, self.rollouts, self.later)

    @property
    def versions(self) -> list[Version]:
        """The versions that the file's answers were drawn with; none of a file that could not be read."""
        if self.version is None:
            return []
        return [Version(span.version, span.weights) for span in spans_of(self.version, self.root, self.later)]


def bundle_of(
    config: RunConfig,
    path: Path,
    lease: Lease | None,
    submission: Submission | None,
    finding: Finding,
    table: Table | None = None,
    *,
    whole: bool = True,
    rates: RatesTable | None = None,
    coordinator: str = "",
) -> Bundle:
    """What is worth keeping of a rejected file; the finding and what it is about alone if not `whole`."""
    sha256 = ""
    with suppress(OSError):
        sha256 = sha256_file(path) if path.stat().st_size <= MAX_BYTES else ""
    if submission is None:
        data = None
        with suppress(OSError):
            data = read_regular(path, MAX_FILE) if whole else None
        return Bundle(config, finding, sha256, lease, None, "", 0, [], data, coordinator=coordinator)
    first, rollouts = 0, submission.rollouts if whole else []
    if whole and finding.sample is not None:
        group = rollouts[finding.sample].group
        first = next(n for n, sample in enumerate(rollouts) if sample.group == group)
        rollouts = [sample for sample in rollouts if sample.group == group]
    lease, version, root = submission.lease, submission.version, submission.weights
    later = submission.later
    return Bundle(
        config, finding, sha256, lease, version, root, first, rollouts, None, table, rates, later, coordinator
    )


def write_bundle(bundle: Bundle, target: Path) -> None:
    tree = {
        "format": FORMAT,
        "config": public_tree(bundle.config),
        "finding": asdict(bundle.finding),
        "sha256": bundle.sha256,
        "lease": asdict(bundle.lease) if bundle.lease else None,
        "version": bundle.version,
        "root": bundle.root,
        "later": write_span_leases(bundle.later),
        "coordinator": bundle.coordinator,
        "first": bundle.first,
        "rollouts": write_samples(bundle.rollouts, target),
        "file": base64.b64encode(bundle.file).decode() if bundle.file is not None else None,
        "table": bundle.table.model_dump(mode="json") if bundle.table else None,
        "rates": bundle.rates.model_dump(mode="json") if bundle.rates else None,
    }
    write_whole(target, json.dumps(tree).encode())


def read_bundle(path: Path) -> Bundle:
    """A bundle, or a RolloutError that says what is wrong with it."""
    try:
        tree: Any = parse_json(path.read_bytes())
        if tree["format"] != FORMAT:
            raise RolloutError(f"{path}: bundle format {tree['format']!r}, this program reads {FORMAT}")
        config = check_config(tree["config"], str(path))
        bundle = Bundle(
            config=config,
            finding=Finding(**tree["finding"]),
            sha256=str(tree["sha256"]),
            lease=Lease.from_json(json.dumps(tree["lease"])) if tree["lease"] else None,
            version=None if tree["version"] is None else int(tree["version"]),
            root=str(tree["root"]),
            first=int(tree["first"]),
            rollouts=read_samples(tree["rollouts"], path, config.max_file_bytes),
            file=base64.b64decode(tree["file"], validate=True) if tree["file"] is not None else None,
            table=Table.model_validate(tree["table"]) if tree.get("table") is not None else None,
            rates=RatesTable.model_validate(tree["rates"]) if tree.get("rates") is not None else None,
            later=read_span_leases(str(path), tree["later"]),
            coordinator=str(tree["coordinator"]),
        )
        if not 0 <= bundle.first < MAX_SAMPLES:
            raise ValueError(f"first is sample {bundle.first}, a file has at most {MAX_SAMPLES}")
        if not ROOT.fullmatch(bundle.root):
            raise ValueError(f"root {bundle.root[:80]!r} is not a valid hash")
        if not ADDRESS.fullmatch(bundle.coordinator):
            raise ValueError(f"coordinator {bundle.coordinator[:80]!r} is not an address")
        if bundle.finding.check != "format" and not (bundle.lease and bundle.version is not None):
            raise ValueError(f"a finding of {bundle.finding.check} without a lease and a version")
        return bundle
    except OSError as error:
        raise RolloutError(f"{path}: cannot be read ({error})") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise RolloutError(f"{path}: not an evidence bundle ({error})") from error


def bundle_name(step: int, submission: int) -> str:
    return f"step-{step:06d}-{submission:04d}.json"


def has_room(folder: Path) -> bool:
    """Whether bundles may still hold samples."""
    return sum(path.stat().st_size for path in folder.glob("step-*")) < MAX_BYTES_OF_BUNDLES


def prune_evidence(folder: Path, before: int) -> None:
    """Removes bundles of steps before this one, whose verdicts nobody can challenge any more. However many files are
    rejected, none of a later step goes."""
    steps = {path: int(path.name[5:11]) for path in folder.glob("step-[0-9][0-9][0-9][0-9][0-9][0-9]-*.json")}
    if min(steps.values(), default=before) > before - PRUNE_EVERY:
        return
    for path, step in steps.items():
        if step < before:
            path.unlink(missing_ok=True)
            samples_path(path).unlink(missing_ok=True)


def rerun(bundle: Bundle, check: Callable[[Submission], Finding | None]) -> Finding | None:
    """The finding of a check on the bundle's samples, numbered as in the file."""
    again = check(bundle.submission)
    if again is None or again.sample is None:
        return again
    return replace(again, sample=again.sample + bundle.first)


def find_base_model(folder: Path) -> Path:
    """The directory of the base model of the run that a folder of evidence belongs to."""
    base = folder.parent / "weights" / "v000000"
    if not base.is_dir():
        raise WeightsError(f"{base}: the run's base model is missing and its vocabulary is needed; copy it there")
    return base
