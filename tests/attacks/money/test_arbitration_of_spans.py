"""Disputes about files of several versions: validator, `shoal replay` and arbiter come to one verdict."""

import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.client.challenge import Rulings
from shoal.client.verdict_writer import Judged
from shoal.errors import RolloutError, WeightsError
from shoal.protocol.lease import Lease
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding
from shoal.validate.evidence import replay as again
from shoal.validate.evidence.bundle import read_bundle
from shoal.validate.evidence.replay import replay_bundle
from tests.support.challenge_trial import Trial, open_trial
from tests.support.coordinator_in_process import key_of
from tests.support.in_flight import flown
from tests.support.model_and_checks import World, build_world
from tests.support.validator_in_process import InThisProcess

OTHER_STATES = {"sampling", "logprobs", "computation"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.client.rollout_store.LONG_POLL_S", 0.02)
    monkeypatch.setattr(again, "Scorer", InThisProcess)


@pytest.fixture(scope="module")
def world() -> World:
    return build_world("long", in_flight=True)


@pytest.fixture
def trial(tmp_path: Path, world: World) -> Iterator[Trial]:
    with open_trial(tmp_path, world, workers={"in_flight": True}, train={"groups_per_step": 8}) as trial:
        yield trial


def late_leases(trial: Trial, count: int) -> dict[str, Lease]:
    """Leases of version 0 for step 1, by the names of their nodes; version 1 is out when they are given."""
    found: dict[str, Lease] = {}
    for number in range(40):
        lease = trial.swarm.take(f"n{number}")
        if lease.step == 1:
            found[f"n{number}"] = lease
        if len(found) == count:
            trial.announce(1)
            return found
    raise AssertionError(f"{len(found)} leases for step 1")


def mixed(trial: Trial, name: str, lease: Lease, stays: Callable[[int], bool] = lambda _: False) -> Submission:
    """A file that begins with version 0 and goes on with version 1 as the coordinator says."""
    versions = [trial.version(number) for number in range(2)]
    made = flown(trial.world, lease, stays, versions=versions, span_of=trial.swarm.store(key_of(name)).span)
    assert [span.version for span in made.spans] == [0, 1]
    return made


def replayed(path: Path, *weights: Path) -> tuple[bool, str]:
    said = io.StringIO()
    return replay_bundle(path, Console(file=said, width=400), weights), said.getvalue()


def test_replay_and_arbiter_agree_with_the_validator_on_files_of_two_versions(trial: Trial) -> None:
    (honest, first), (cheat, second), (forger, third) = late_leases(trial, 3).items()
    trial.hand_in(honest, mixed(trial, honest, first))
    trial.hand_in(cheat, mixed(trial, cheat, second, stays=lambda number: number % 2 == 0))
    own = mixed(trial, forger, third)
    forged = tuple(replace(span, beacon=span.beacon ^ 1).signed(third, key_of(forger)) for span in own.later)
    trial.hand_in(forger, replace(own, later=forged))
    trial.judge()
    trial.keep_records()
    for lease, checks in ((second, OTHER_STATES), (third, {"format"})):
        assert read_bundle(trial.bundle(lease)).finding.check in checks
        agrees, text = replayed(trial.bundle(lease))
        assert agrees, text
        assert "bound to config, lease and hash of the run's record" in text
    trial.settle()
    assert [trial.outcome(lease) for lease in (first, second, third)] == ["a", "r", "r"]
    for lease, claim in ((first, "reject"), (second, "accept"), (third, "accept")):
        trial.challenge(honest, lease, claim)  # the others have lost their stake
    assert trial.arbitrate() == Rulings(refuted=3), trial.said.getvalue()
    assert [trial.outcome(lease) for lease in (first, second, third)] == ["a", "r", "r"]


def test_a_validator_that_judges_a_file_of_two_versions_falsely_is_put_right(trial: Trial) -> None:
    (honest, first), (cheat, second), (friend, third) = late_leases(trial, 3).items()
    trial.hand_in(friend, mixed(trial, friend, third))
    trial.hand_in(honest, mixed(trial, honest, first))
    trial.hand_in(cheat, mixed(trial, cheat, second, stays=lambda number: number % 2 == 0))
    lie = Finding("sampling", "token 40 is the best under the lease's noise", 5, 7, 0)
    for upload in trial.validator.store.waiting(0, 9):
        submission, sha256 = trial.validator.store.read(upload)
        judged = Judged(upload, submission, sha256, None, audited=True, began=0.0)
        if upload.lease == first:
            trial.validator._reject(replace(judged, finding=lie))
        else:
            trial.validator.verdicts.accept(judged)
    agrees, text = replayed(trial.bundle(first))
    assert not agrees
    assert "the rejection does not hold" in text
    trial.settle()
    assert [trial.outcome(lease) for lease in (first, second)] == ["r", "a"]
    trial.challenge(friend, first, "accept")
    trial.challenge(friend, second, "reject")
    assert trial.arbitrate() == Rulings(upheld=2), trial.said.getvalue()
    assert [trial.outcome(lease) for lease in (first, second)] == ["a", "r"]


def edited(path: Path, change: Callable[[list[Any]], None]) -> Path:
    """The bundle with other span leases, at its place."""
    tree = json.loads(path.read_bytes())
    spans = json.loads(tree["later"])
    change(spans)
    path.write_text(json.dumps(tree | {"later": json.dumps(spans)}))
    return path


def test_evidence_stands_on_all_versions_of_a_file_and_on_span_leases_that_were_given(
    trial: Trial, tmp_path: Path
) -> None:
    ((cheat, lease),) = late_leases(trial, 1).items()
    trial.hand_in(cheat, mixed(trial, cheat, lease, stays=lambda number: number % 2 == 0))
    trial.judge()
    bundle, archive, other = trial.bundle(lease), tmp_path / "archive", tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"x")
    shutil.copytree(trial.run.path / "weights", archive)
    shutil.rmtree(trial.run.path / "weights" / "v000001")
    assert replayed(bundle)[0], "evidence keeps both versions"
    shutil.rmtree(bundle.parent / "versions")
    with pytest.raises(WeightsError, match=r"version 1 .* is no longer here"):
        replayed(bundle)
    with pytest.raises(WeightsError, match="is not version 0 or 1 of this bundle"):
        replayed(bundle, other)
    assert replayed(bundle, archive / "v000000", archive / "v000001")[0]

    def other_noise(spans: list[Any]) -> None:
        spans[0][3] ^= 1

    with pytest.raises(RolloutError, match="the lease of its span from token 32 on: signed by"):
        replayed(edited(bundle, other_noise))
    trial.keep_records()
    with pytest.raises(RolloutError, match="go on from token 32 on as the run never said"):
        replayed(bundle)
