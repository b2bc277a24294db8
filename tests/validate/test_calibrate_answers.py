"""Files of other machines become rates, and looser rates acquit without ever convicting."""

import io
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from shoal.client.honest_rates import LOOK_EVERY_S, RatesFollower
from shoal.client.verdict_writer import Judged
from shoal.config import RunConfig
from shoal.coordinator import archive
from shoal.errors import ConfigError, RolloutError, WeightsError
from shoal.files import sha256_file
from shoal.models.this_machine import this_profile
from shoal.protocol.rates.honest_rates import EDGES
from shoal.protocol.rates.rates_file import RatesFile
from shoal.protocol.rates.rates_table import RatesTable, SignedRates
from shoal.protocol.rates.shipped import default_rates
from shoal.protocol.submission import groups_with_signal, write_rollouts
from shoal.protocol.verdict import NUMBERS, ROUNDING, Finding
from shoal.roles.validator_process import past_strikes
from shoal.rundir import RunDir
from shoal.validate.calibrate.answers import Answers
from shoal.validate.calibrate.command import calibrate_answers
from shoal.validate.evidence import replay as again
from shoal.validate.evidence.bundle import read_bundle
from shoal.validate.numerics.bets import Bets, Noise, Observed
from shoal.validate.numerics.evidence_log import EvidenceLog
from tests.protocol.test_rates_table import H100, TABLE, rates_file
from tests.support.coordinator_in_process import COORDINATOR
from tests.support.model_and_checks import build_world
from tests.support.validator_in_process import Court, InThisProcess, open_court

OWN = this_profile("bfloat16").name


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Court:
    path = tmp_path_factory.mktemp("court") / "run"
    return open_court(path, build_world("short", "bfloat16"), model={"dtype": "bfloat16"})


@pytest.fixture(scope="module")
def files(court: Court) -> list[Path]:
    """Of honest machines; the last one's is a cheat's."""
    attacks = (None, None, None, "int4")
    return [court.store.records.file(court.hand_in(f"node-{n}", attack)) for n, attack in enumerate(attacks)]


def quiet(_share: float, _what: str) -> None:
    pass


def test_honest_files_become_rates_of_their_machine_and_have_nothing_against_them(
    court: Court, files: list[Path], tmp_path: Path
) -> None:
    said, out = io.StringIO(), tmp_path / "rates.json"
    calibrate_answers(court.run.path, files[:3], OWN, None, out, Console(file=said, width=150))
    found = RatesFile.read(out)
    assert list(found.tokens) == [OWN]
    assert found.tokens[OWN] == sum(tokens_of(file) for file in files[:3])
    units = found.rates.gaps[OWN]
    assert units.count >= 3
    # Our engine in bfloat16 is what the judge's own noise stands for.
    assert units.above[int(np.searchsorted(EDGES, 0.25))] == units.count
    assert units.above[int(np.searchsorted(EDGES, 3.0))] == 0
    assert "is dropped" not in said.getvalue()
    assert "3 files" in said.getvalue()


def tokens_of(path: Path) -> int:
    import pyarrow.parquet as pq

    return sum(map(len, pq.read_table(path)["completion"].to_pylist()))


def test_files_add_up_one_by_one(court: Court, files: list[Path]) -> None:
    together, one_by_one = Answers(court.run, OWN), Answers(court.run, OWN)
    together.add(files[:2], quiet)
    for file in files[:2]:
        one_by_one.add([file], quiet)
    assert together.tallies == one_by_one.tallies
    assert max(together.nats.values()) < 0


def test_files_of_a_run_without_proofs_become_rates_that_such_a_run_takes(tmp_path: Path) -> None:
    world, out = build_world("short", "bfloat16"), tmp_path / "rates.json"
    court = open_court(tmp_path / "run", world, model={"dtype": "bfloat16"}, audit={"proofs": False})
    paths = [court.store.records.file(court.hand_in(f"node-{n}")) for n in range(2)]
    calibrate_answers(court.run.path, paths, OWN, None, out, Console(quiet=True))
    found = RatesFile.read(out)
    assert found.rates.chunks[OWN].count == 0
    enough = found.model_copy(
        update={"rates": found.rates.model_copy(update={"gaps": rates_file(1.0, OWN).rates.gaps})}
    )
    assert TABLE.loosened(enough, "rates", proofs=False).version == 1


def test_a_file_that_the_odds_speak_against_is_pointed_out(court: Court, files: list[Path]) -> None:
    said = io.StringIO()
    calibrate_answers(court.run.path, files[-1:], OWN, None, None, Console(file=said, width=150))
    assert "a file with 6.9 nats or more is dropped" in said.getvalue()


def test_a_file_of_another_run_or_version_is_refused_by_name(court: Court, files: list[Path], tmp_path: Path) -> None:
    submission = court.honest("stranger")
    foreign, lost = tmp_path / "foreign.parquet", tmp_path / "lost.parquet"
    elsewhere = replace(submission, lease=replace(submission.lease, run="elsewhere"))
    foreign.write_bytes(write_rollouts(elsewhere, groups_with_signal(elsewhere)))
    with pytest.raises(RolloutError, match=r"foreign.parquet: is a file of run 'elsewhere', not of"):
        Answers(court.run, OWN).add([foreign], quiet)
    gone = replace(submission, weights="b0" * 32)
    lost.write_bytes(write_rollouts(gone, groups_with_signal(gone)))
    with pytest.raises(WeightsError, match=r"version 1 \(root b0b0b0b0b0b0\) is no longer here"):
        Answers(court.run, OWN).add([lost], quiet)
    with pytest.raises(WeightsError, match=r"--weights .*: "):
        Answers(court.run, OWN, tmp_path).add(files[:1], quiet)
    (tmp_path / "text.parquet").write_text("not a file of rollouts")
    with pytest.raises(RolloutError, match=r"text.parquet"):
        Answers(court.run, OWN).add([tmp_path / "text.parquet"], quiet)


def test_beside_a_runs_records_a_file_is_the_one_on_record_and_no_planted_one(
    court: Court, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted: set[tuple[int, int]] = set()
    hashes = {place_of(file): sha256_file(file) for file in files[:2]}
    leases = court.store.records.leases

    def handed_in(_run: RunDir, step: int, submission: int) -> archive.HandedIn | None:
        if (place := (step, submission)) not in hashes:
            return None
        profile = H100 if leases[place].node == "node-0" else ""
        return archive.HandedIn(leases[place], hashes[place], profile, planted=place in planted)

    for name, fake in (
        ("has_records", lambda _run: True),
        ("rates_of", lambda _run: None),
        ("handed_in", handed_in),
    ):
        monkeypatch.setattr(archive, name, fake)
    declared = Answers(court.run)
    declared.add(files[:1], quiet)
    assert list(declared.tallies) == [H100]
    with pytest.raises(ConfigError, match=r"its node node-1 declared no profile; give --profile"):
        declared.add(files[1:2], quiet)
    with pytest.raises(RolloutError, match=r"on record, or its bytes were changed"):
        declared.add(files[2:3], quiet)
    planted.add(place_of(files[0]))
    with pytest.raises(RolloutError, match=r"was planted to test validators"):
        declared.add(files[:1], quiet)


def place_of(path: Path) -> tuple[int, int]:
    return int(path.parent.name.removeprefix("step-")), int(path.stem)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model": {"dtype": "float32"}}, "is for bfloat16 runs"),
        ({"model": {"dtype": "bfloat16"}, "sampling": {"mode": "free"}}, "sampling.mode is 'free'"),
    ],
)
def test_runs_whose_files_do_not_show_rounding_are_refused(changes: dict[str, object], fault: str) -> None:
    tree = {"name": "run", "steps": 1, "tasks": [{"source": "reasoning-gym/spell_backward"}], **changes}
    with pytest.raises(ConfigError, match=fault):
        Answers(RunDir(Path("run"), RunConfig.model_validate(tree)))


def test_a_rubbish_profile_is_refused_before_anything_is_computed(court: Court) -> None:
    with pytest.raises(ConfigError, match="dtype 'fp8' must be"):
        Answers(court.run, "h100/vllm/flash/fp8/tp1")


def test_looser_rates_never_add_evidence() -> None:
    """Whatever is added, and whatever a file looks like: so a verdict by the newest table convicts nobody whom the
    one of its time acquitted."""
    rng = np.random.default_rng(0)
    noise = Noise(0.02, 0.5)
    tables = [TABLE]
    for scale in (0.1, 1.0, 3.0, 40.0):
        tables.append(tables[-1].loosened(rates_file(scale, H100), "rates"))
    odds = [Bets(table.admitted([])) for table in tables]
    for scale in (0.1, 1.0, 2.0, 8.0, 100.0):
        gaps_T, short_T, close_T = scale * 0.02 * rng.standard_normal((3, 256))
        chunks_C = 0.5 * scale * rng.uniform(0.5, 2.0, 8)
        file = [Observed(gaps_T, np.maximum(0, short_T), np.abs(close_T).clip(0, 1), chunks_C)]
        won = [bets.nats(file, noise) for bets in odds]
        for before, after in itertools.pairwise(won):
            assert all(after[bet] <= before[bet] + 1e-9 for bet in before), scale


def test_a_validator_judges_by_newer_rates_without_a_restart(court: Court) -> None:
    """A cheat under the odds that the run began with is ordinary noise under those that its owner loosened them to."""
    now = [0.0]
    served = [SignedRates.sign("test", TABLE, COORDINATOR)]
    model = rates_file().architecture
    court.validator.rates = RatesFollower(lambda: served[-1], model, clock=lambda: now[0])
    leases = [court.hand_in("noisy", "int4")]
    court.judge()
    assert court.validator.evidence is not None
    assert court.validator.evidence.of("noisy").is_over
    served.append(SignedRates.sign("test", TABLE.loosened(rates_file(300.0, H100), "rates"), COORDINATOR))
    now[0] += LOOK_EVERY_S
    leases.append(court.hand_in("another", "int4"))
    court.judge()
    assert [court.verdict(lease).accept for lease in leases] == [False, True]
    assert court.validator.checks.rates.version == 1
    # What the strict odds won is forgotten, also by the next life of this validator.
    for log in (court.validator.evidence, EvidenceLog(court.run.path / "nodes" / "evidence.jsonl")):
        account = log.of("noisy")
        assert (account.nats(), account.held_against, account.is_over, account.files) == (0.0, 0.0, False, 1)
    court.validator.rates = None
    court.validator.checks.judge_by(TABLE)


def test_strikes_that_rates_gave_end_with_these_rates(tmp_path: Path) -> None:
    """Also in the next life of the validator; those for what a file's bytes show stay."""
    court = open_court(tmp_path / "run", build_world("short", "bfloat16"), model={"dtype": "bfloat16"})
    said = court.run.path / "metrics" / "validator.jsonl"
    upload_of = {name: court.hand_in(name) for name in ("odd", "cheat")}
    for upload in court.store.waiting(0, 9):
        name = next(name for name, lease in upload_of.items() if lease == upload.lease)
        submission, sha256 = court.store.read(upload)
        for check in (NUMBERS,) if name == "odd" else (NUMBERS, "rewards", "rewards"):
            finding = Finding(check, "a rule", 1, 2)
            court.validator._reject(Judged(upload, submission, sha256, finding, audited=True, began=0.0))
    assert court.validator.strikes == {"odd": 1, "cheat": 3}
    assert past_strikes(said, 0) == {"odd": 1, "cheat": 3}
    court.store.records.bans.clear()  # as the coordinator does with bans by numbers
    court.validator.judge_by(TABLE.loosened(rates_file(300.0, H100), "rates"))
    assert court.validator.strikes == {"cheat": 2}
    assert past_strikes(said, 1) == {"cheat": 2}
    assert past_strikes(said, 1, by_numbers=True) == {}
    assert set(court.store.records.bans) == {"cheat"}, "it is banned whatever the rates say"


def test_evidence_carries_the_rates_that_it_was_judged_by(court: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay by these comes to the same; by a table that was loosened since, the accused is acquitted."""
    monkeypatch.setattr(again, "Scorer", InThisProcess)
    loosened = TABLE.loosened(rates_file(0.5), "rates")
    court.validator.checks.judge_by(loosened)
    lease = court.hand_in("cheat", "int4")
    court.judge()
    path = court.evidence(lease)
    bundle = read_bundle(path)
    assert bundle.finding.check in ("numbers", ROUNDING)
    assert bundle.rates == loosened
    assert again.judge_again(bundle, path.parent) is not None
    noisy = loosened.loosened(rates_file(300.0, H100), "rates")
    assert again.judge_again(replace(bundle, rates=noisy), path.parent) is None
    court.validator.checks.judge_by(RatesTable(shipped=default_rates()))
    tree = json.loads(path.read_bytes())
    tree["rates"]["additions"][0]["rates"]["gaps"] = {}
    path.write_text(json.dumps(tree))
    with pytest.raises(RolloutError, match="not an evidence bundle"):
        read_bundle(path)
