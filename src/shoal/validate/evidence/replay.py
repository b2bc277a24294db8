"""`shoal replay`: a verdict computed again from its evidence, by anyone who has the bundle and the version.

A bundle is what its sender wrote. Beside a run it must be that run's: its config, and the file and lease that the run's
records have. One that is bound to nothing shows what a check says of these samples, and nothing about any node; a
challenge is ruled on by the file itself (`arbiter`).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from shoal.errors import RolloutError
from shoal.extras import require
from shoal.models.load import load_as
from shoal.models.version_reader import VersionReader
from shoal.protocol.numeric_evidence import meaning
from shoal.protocol.rollout_rules import Limits, check_samples
from shoal.protocol.spans import check_span_leases
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission, read_rollouts
from shoal.protocol.verdict import MARGIN, NUMBERS, ROUNDING, Finding
from shoal.protocol.version_directory import DirectoryChannel
from shoal.rundir import DECIDES_NO_VERDICT, RUN_FILE, changes, limits_of, open_run
from shoal.tasks.files import check_foreign
from shoal.tasks.isolation.landlock import check_confinement
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.sources.filtered import layers
from shoal.tasks.untrusted import try_tasks
from shoal.validate.checks.all_checks import Checks
from shoal.validate.evidence.bundle import Bundle, find_base_model, read_bundle, rerun
from shoal.validate.evidence.kept_versions import bring_version, find_version
from shoal.validate.numerics.judge import NOT_SHOWN, OF_NODE

NEEDS_WEIGHTS = ("sampling", "logprobs", "computation", NUMBERS, ROUNDING, MARGIN)


def replay_bundle(path: Path, console: Console, weights: Sequence[Path] = ()) -> bool:
    """Prints what the bundle says, what it is bound to and what its check says now; whether they agree.

    `weights` are those of its versions, fetched again after they were removed here.
    """
    bundle = read_bundle(path)
    if weights and not bundle.versions:
        raise RolloutError(f"{path}: is about a file that could not be read, and names no version; leave --weights out")
    for folder in weights:
        bring_version(path.parent, folder, bundle.versions)
    console.print(bound_to(bundle, path.parent.parent), markup=False, highlight=False, soft_wrap=True)
    console.print(f"the verdict    {bundle.finding}", markup=False, highlight=False, soft_wrap=True)
    again = judge_again(bundle, path.parent)
    if again is None and (elsewhere := _shown_elsewhere(bundle.finding)):
        console.print(f"recomputed: this shows nothing by itself; {elsewhere}", soft_wrap=True)
        return False
    if again is None:
        console.print("recomputed: no rule is broken; the rejection does not hold", style="bold red")
        return False
    console.print(f"computed again {again}", markup=False, highlight=False, soft_wrap=True)
    if (bundle.finding.check, again.check) == (ROUNDING, NUMBERS):
        console.print("it shows enough for blame, which takes as much against the node; it was only dropped")
        return True
    agree = (again.check, again.sample) == (bundle.finding.check, bundle.finding.sample)
    console.print(
        "the same rule is broken at the same place" if agree else "a rule is broken, but the verdict names another rule"
    )
    return agree


def _shown_elsewhere(finding: Finding) -> str:
    """What a file was dropped for that its bundle does not hold; empty if its bundle holds all."""
    if finding.check != ROUNDING:
        return ""
    if OF_NODE in finding.rule:
        return "it was dropped for what other files of its node showed, which a bundle does not hold"
    if meaning(NOT_SHOWN) in str(finding.found):
        return "it was compared with the version before its own, which a bundle does not hold"
    return ""


def bound_to(bundle: Bundle, run: Path) -> str:
    """What of a bundle is that of its run, in a line; a RolloutError that names what is another's."""
    whose = f"bundle of file {bundle.sha256[:12]}"
    if not (run / RUN_FILE).is_file():
        return (
            f"{whose}: bound to nothing, for it is not in a run's directory; config, lease and samples are what "
            "its sender wrote"
        )
    require("coordinator", f"{whose}: comparing it with the run in {run}")
    from shoal.coordinator.archive import handed_in, rates_of

    own = open_run(run)
    if differs := changes(own.config, bundle.config, DECIDES_NO_VERDICT):
        raise RolloutError(f"{whose}: its config is not that of the run in {run}\n" + "\n".join(differs))
    if bundle.rates and (current := rates_of(own)) and not current.continues(bundle.rates):
        raise RolloutError(
            f"{whose}: its honest rates, version {bundle.rates.version}, are not a version of those of the run in {run}"
        )
    found = handed_in(own, bundle.lease.step, bundle.lease.submission) if bundle.lease else None
    if found is None:
        return (
            f"{whose}: bound to the run's config alone, for the run has no record of its lease; the rest is as written"
        )
    lease, sha256 = found.lease, found.sha256
    if lease != bundle.lease:
        raise RolloutError(f"{whose}: its lease is {bundle.lease}, the run gave {lease}, or with other terms")
    if sha256 != bundle.sha256:
        raise RolloutError(f"{whose}: {lease} was submitted with file {sha256[:12]}; the bundle is about another file")
    for span in bundle.later:
        if span not in (replace(given, signature=span.signature) for given in found.spans):
            raise RolloutError(f"{whose}: its answers go on from token {span.first} on as the run never said")
    return f"{whose}: bound to config, lease and hash of the run's record; its samples are as the validator copied them"


def judge_again(bundle: Bundle, folder: Path) -> Finding | None:
    """The finding of the bundle's own check, run on its content."""
    if bundle.finding.check == "version":
        raise RolloutError(f"version {bundle.version}: a bundle cannot show whether it had been published at that time")
    base = find_base_model(folder)
    _check_tasks(bundle, folder.parent)
    policy = load_as(base, bundle.config.model.dtype, "float32")
    limits = limits_of(bundle.config, policy.vocab)
    if bundle.finding.check == "format":
        return _read_again(bundle, limits)
    if not bundle.rollouts:
        raise RolloutError(f"bundle of file {bundle.sha256[:12]}: says what was found but holds no samples")
    assert bundle.version is not None
    whose = f"bundle of file {bundle.sha256[:12]}"
    check_samples(f"{whose},", bundle.rollouts, limits, bundle.first)
    assert bundle.lease is not None
    check_span_leases(whose, bundle.later, bundle.lease, limits.span_tokens, limits.max_new_tokens)
    _check_signed(bundle, bundle.submission)
    roots = {span.version: span.weights for span in bundle.submission.spans}  # that they were published is as written
    with Scorer(bundle.config.tasks, turns=bundle.config.turns) as judge:
        checks = Checks(bundle.config, policy, judge.tasks, judge, roots.get, lambda _: bundle.table)
        if bundle.rates is not None:
            bundle.rates.check_patterns(bundle.config.audit.profiles)
            checks.judge_by(bundle.rates)
        found = rerun(bundle, checks.cheap)
        free_end = bundle.finding.check == "termination" and bundle.config.sampling.mode == "free"
        if found is None and (free_end or bundle.finding.check in NEEDS_WEIGHTS):
            reader = VersionReader(DirectoryChannel(base.parent, keep=1), bundle.config.model.dtype)

            def load(version: Version) -> None:
                policy.set_weights(reader.read(find_version(version, folder)), f"version {version.number}")

            load(Version(bundle.version, bundle.root))
            found = rerun(_accused(bundle), lambda submission: next(checks.costly([submission], load)))
        return found


def _accused(bundle: Bundle) -> Bundle:
    """With the accused answer alone, if it is one: a validator that looks at some answers names the first of those."""
    number = bundle.finding.sample
    if number is None or not 0 <= number - bundle.first < len(bundle.rollouts):
        return bundle
    return replace(bundle, first=number, rollouts=[bundle.rollouts[number - bundle.first]])


def _check_tasks(bundle: Bundle, run: Path) -> None:
    """Refuses a stranger's tasks that would read or run files of this machine; the run's own tasks are trusted."""
    if (run / RUN_FILE).is_file() and open_run(run).config.tasks == bundle.config.tasks:
        return
    whose = f"bundle of file {bundle.sha256[:12]}"
    for lines in layers(bundle.config.tasks, whose):
        check_foreign(lines, whose, code=False)
    check_confinement(whose, [])
    try_tasks(bundle.config.tasks, whose)


def _read_again(bundle: Bundle, limits: Limits) -> Finding | None:
    """A file that broke the format is read again, if the bundle holds it."""
    if bundle.file is None:
        raise RolloutError(
            f"bundle of file {bundle.sha256[:12]}: does not contain the file, so it cannot be read again"
        )
    if bundle.lease is None:
        raise RolloutError(f"file {bundle.sha256[:12]}: had no lease, which its bundle cannot show")
    with TemporaryDirectory(prefix="shoal-replay-") as scratch:
        path = Path(scratch) / f"{bundle.lease.submission:04d}.parquet"  # no name that a stranger's bundle gives
        path.write_bytes(bundle.file)
        try:
            _check_signed(bundle, read_rollouts(path, bundle.lease, limits))
        except RolloutError as error:
            return replace(bundle.finding, found=str(error))
    return None


def _check_signed(bundle: Bundle, submission: Submission) -> None:
    """A RolloutError unless the coordinator that the bundle names gave all span leases."""
    for span in submission.later:
        span.check(submission.lease, bundle.coordinator)
