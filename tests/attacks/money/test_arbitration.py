"""Challenges end to end: whatever a challenger writes, the arbiter rules by the file that the ledger names."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.client.challenge import Rulings
from shoal.client.verdict_writer import Judged
from shoal.coordinator.retention import drop_rejected
from shoal.errors import RolloutError
from shoal.protocol.lease import Lease
from shoal.protocol.submission import Submission, groups_with_signal, write_rollouts
from shoal.protocol.verdict import Finding
from shoal.validate.audit import Audits
from shoal.validate.evidence import replay as again
from shoal.validate.evidence.arbiter import Arbiter
from shoal.validate.evidence.bundle import bundle_name, read_bundle
from shoal.validate.evidence.replay import replay_bundle
from shoal.validate.evidence.vote_log import Vote
from tests.support.challenge_trial import Trial, open_trial
from tests.support.coordinator_in_process import VALIDATOR, key_of
from tests.support.model_and_checks import World, build_world, with_sample
from tests.support.validator_in_process import InThisProcess

PASSWORD = "hunter2-and-more"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.client.rollout_store.LONG_POLL_S", 0.02)
    monkeypatch.setattr(again, "Scorer", InThisProcess)


@pytest.fixture(scope="module")
def world() -> World:
    return build_world("short")


@pytest.fixture
def trial(tmp_path: Path, world: World) -> Iterator[Trial]:
    secret = {"leases": 4, "relays": ["http://127.0.0.1:1"], "store_options": {"secret_access_key": PASSWORD}}
    many = {"groups_per_step": 64, "token_budget": 256}
    with open_trial(tmp_path, world, train=many, swarm=secret, cheaters=[{"attack": "int4"}]) as trial:
        trial.announce(1)
        yield trial


def bad(submission: Submission) -> Submission:
    """With a false reward, which every judge sees."""
    reward = submission.rollouts[2].reward
    assert reward is not None
    return with_sample(submission, 2, reward=reward + 0.5)


def edited(path: Path, change: Callable[[dict[str, Any]], None], name: str) -> Path:
    tree = json.loads(path.read_bytes())
    change(tree)
    target = path.with_name(name)
    target.write_text(json.dumps(tree))
    return target


def test_an_unrelated_bundle_never_slashes_an_honest_node(trial: Trial) -> None:
    honest = trial.hand_in("victim", trial.honest("victim"))
    cheat = trial.hand_in("cheat", bad(trial.honest("cheat")))
    trial.judge()
    trial.settle()
    assert (trial.outcome(honest), trial.outcome(cheat)) == ("a", "r")
    trial.challenge("cheat", honest, "reject", trial.bundle(cheat))
    assert trial.arbitrate() == Rulings(refuted=1)
    assert trial.outcome(honest) == "a"
    assert trial.slashed("victim") == 0
    assert trial.state.judges[VALIDATOR.address].refuted == 0


def test_a_bundle_with_other_thresholds_or_another_lease_never_slashes_an_honest_file(trial: Trial) -> None:
    honest = trial.hand_in("victim", trial.honest("victim"))
    cheat = trial.hand_in("cheat", bad(trial.honest("cheat")))
    trial.judge()
    trial.settle()

    def strict(tree: dict[str, Any]) -> None:
        tree["config"]["audit"]["thresholds"]["logprob"] = 0.0
        tree["finding"] = {"check": "logprobs", "rule": "r", "claimed": 0, "found": 1, "sample": 0}

    def moved(tree: dict[str, Any]) -> None:
        tree["lease"]["submission"] = honest.submission

    trial.keep_records()
    # Under the name that the honest file's own bundle would have: where a validator would have put it.
    for change, reason in ((strict, "thresholds.logprob"), (moved, "its lease is")):
        forged = edited(trial.bundle(cheat), change, bundle_name(honest.step, honest.submission))
        with pytest.raises(RolloutError, match=reason):
            replay_bundle(forged, Console(file=trial.said))
    trial.challenge("cheat", honest, "reject", forged)
    assert trial.arbitrate() == Rulings(refuted=1)
    assert (trial.outcome(honest), trial.slashed("victim")) == ("a", 0)


def test_a_broken_bundle_or_file_blocks_no_other_ruling(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trial.hand_in("a", trial.honest("a"))
    second = trial.hand_in("b", trial.honest("b"))
    third = trial.hand_in("c", trial.honest("c"))
    trial.judge()
    trial.settle()
    broken = trial.run.path / "evidence" / bundle_name(first.step, first.submission)
    broken.parent.mkdir(exist_ok=True)
    broken.write_bytes(b'{"format": 2, "config": [[[')
    (trial.run.path / "evidence" / "directory.json").mkdir()
    for lease in (first, second, third):
        trial.challenge("a", lease, "reject", broken)
    real = Arbiter.judge

    def judge(self: Arbiter, path: Path, *rest: Any) -> Finding | None:
        if path.name == f"{first.submission:04d}.parquet":
            raise ZeroDivisionError("what a stranger's file did to its reader")
        return real(self, path, *rest)

    monkeypatch.setattr(Arbiter, "judge", judge)
    assert trial.arbitrate() == Rulings(refuted=2, left_open=1)
    assert "left open: ZeroDivisionError" in trial.said.getvalue()
    assert [trial.outcome(lease) for lease in (first, second, third)] == ["a", "a", "a"]


def test_a_challenge_whose_bytes_are_gone_is_left_open(trial: Trial) -> None:
    lease = trial.hand_in("a", trial.honest("a"))
    trial.judge()
    trial.settle()
    trial.swarm.trainer.forget(before=lease.step + 1)
    trial.challenge("a", lease, "reject")
    assert trial.arbitrate() == Rulings(left_open=1)
    assert "its bytes are missing" in trial.said.getvalue()
    assert (trial.outcome(lease), trial.slashed("a")) == ("a", 0)


def test_a_true_accusation_is_upheld_without_any_bundle(trial: Trial) -> None:
    """A validator that accepts without looking is put right by anybody who noticed."""
    lease = trial.hand_in("cheat", bad(trial.honest("cheat")))
    other = trial.hand_in("b", trial.honest("b"))
    (upload,) = [upload for upload in trial.validator.store.waiting(0, 9) if upload.submission == lease.submission]
    submission, sha256 = trial.validator.store.read(upload)
    trial.validator.verdicts.accept(Judged(upload, submission, sha256, None, audited=False, began=0.0))
    trial.judge()
    trial.settle()
    assert (trial.outcome(lease), trial.outcome(other)) == ("a", "a")
    trial.challenge("b", lease, "reject")
    assert trial.arbitrate() == Rulings(upheld=1)
    assert trial.outcome(lease) == "r"
    assert trial.slashed("cheat") > 0
    assert trial.state.judges[VALIDATOR.address].refuted == 1


def test_a_false_reject_is_put_right_for_the_rejected_bytes_are_kept(trial: Trial) -> None:
    lease = trial.hand_in("a", trial.honest("a"))
    (upload,) = trial.validator.store.waiting(0, 9)
    submission, sha256 = trial.validator.store.read(upload)
    lie = Finding("sampling", "token 0 is the best under the lease's noise", 5, 7, 0)
    trial.validator._reject(Judged(upload, submission, sha256, lie, audited=True, began=0.0))
    trial.settle()
    assert (trial.outcome(lease), trial.slashed("a") > 0) == ("r", True)
    trial.challenge("a", lease, "accept")
    assert trial.arbitrate() == Rulings(upheld=1)
    assert (trial.outcome(lease), trial.slashed("a")) == ("a", 0)
    assert trial.state.accounts[key_of("a").address].lock.total == tokens_of(submission) > 0, "and it is paid"
    assert trial.arbitrate() == Rulings(), "what was ruled on is ruled on once"


def tokens_of(submission: Submission) -> int:
    return sum(len(rollout.completion) for rollout in submission.rollouts)


def test_a_rejected_file_never_costs_less_than_a_multiple_of_its_own_pay(trial: Trial) -> None:
    submission = bad(trial.honest("cheat"))
    lease = trial.hand_in("cheat", submission)
    trial.judge()
    trial.settle()
    assert trial.outcome(lease) == "r"
    terms = trial.state.terms
    assert trial.slashed("cheat") == terms.slash_files * terms.rate * tokens_of(submission) > terms.slash


def test_answers_that_an_audit_did_not_draw_never_put_its_validator_out(trial: Trial) -> None:
    """A node spoils one answer of each of three files, and a friend challenges what was accepted: all of it is upheld,
    and the validator, which looked at other answers, can be drawn as before."""
    few = trial.run.config.audit.model_copy(update={"rate": 1e-9, "probation": 0})
    trial.hand_in("friend", trial.honest("friend"))
    spoiled = []
    for name in ("a", "b", "c"):
        honest = trial.honest(name)
        made = with_sample(honest, 0, logprobs=[p - 0.5 for p in honest.rollouts[0].logprobs])
        data = write_rollouts(made, groups_with_signal(made))
        lengths = [len(rollout.completion) for rollout in made.rollouts]
        spoiled.append((trial.hand_in(name, made), hashlib.sha256(data).hexdigest(), lengths))
    secrets = (bytes([n]) * 32 for n in range(256))
    trial.validator.files.audits = next(
        audits
        for audits in (Audits(few, secret) for secret in secrets)
        if all(0 not in audits.spot(sha256, lengths) for _, sha256, lengths in spoiled)
    )
    trial.judge()
    trial.settle()
    assert [trial.outcome(lease) for lease, _, _ in spoiled] == ["a", "a", "a"]
    for lease, _, _ in spoiled:
        trial.challenge("friend", lease, "reject")
    assert trial.arbitrate() == Rulings(upheld=3)
    assert [trial.outcome(lease) for lease, _, _ in spoiled] == ["r", "r", "r"]
    judge = trial.state.judges[VALIDATOR.address]
    assert (judge.standing, judge.refuted) == (100, 3)


def test_a_bundle_never_holds_a_password_nor_who_plays_the_cheat(trial: Trial) -> None:
    lease = trial.hand_in("cheat", bad(trial.honest("cheat")))
    trial.judge()
    text = trial.bundle(lease).read_text()
    assert PASSWORD not in text
    assert "swarm" not in json.loads(text)["config"], "the database's URL may hold a password too"
    assert "int4" not in text
    assert PASSWORD in (trial.run.path / "run.json").read_text(), "the run itself needs it"
    assert (trial.run.path / "run.json").stat().st_mode & 0o777 == 0o600


def test_a_file_near_a_threshold_is_rejected_and_nobody_is_blamed_or_ruled_against(trial: Trial) -> None:
    """Else a node that aims at the threshold sets validator and arbiter against each other."""
    honest = trial.honest("near")
    allowed = trial.run.config.audit.thresholds.logprob
    off = [logprob - 1.5 * allowed for logprob in honest.rollouts[0].logprobs]
    near = trial.hand_in("near", with_sample(honest, 0, logprobs=off))
    far = trial.honest("far")  # a small fault in front hides no large one
    both = with_sample(with_sample(far, 0, logprobs=[p - 1.5 * allowed for p in far.rollouts[0].logprobs]), 1)
    both = with_sample(both, 1, logprobs=[p - 0.5 for p in far.rollouts[1].logprobs])
    cheat = trial.hand_in("far", both)
    trial.judge()
    assert trial.votes.of(near.step, near.submission) == Vote("v", _sha256(trial, near), tokens_of(honest))
    vote = trial.votes.of(cheat.step, cheat.submission)
    assert vote is not None
    assert vote.letter == "r"
    assert read_bundle(trial.bundle(cheat)).finding.check == "logprobs"
    assert trial.validator.strikes == {key_of("far").address: 1}
    trial.settle()
    assert (trial.outcome(near), trial.outcome(cheat)) == ("v", "r")
    trial.challenge("far", near, "reject")
    assert trial.arbitrate() == Rulings(left_open=1)


def _sha256(trial: Trial, lease: Lease) -> str:
    told = trial.swarm.link(key_of("x")).get(f"/v1/submissions/{lease.step}/{lease.submission}")
    return str(told["sha256"])


def test_rejected_bytes_go_when_the_window_is_over_or_the_budget_is_spent(trial: Trial) -> None:
    leases = [trial.hand_in(name, bad(trial.honest(name))) for name in ("a", "b")]
    trial.judge()

    def sizes() -> list[int]:
        return sorted(path.stat().st_size for path in (trial.swarm.path / "uploads").rglob("*.parquet"))

    assert len(sizes()) == 2
    assert trial.swarm.ledger_writer.first_open() == 0
    ask = trial.swarm.database.ask
    assert ask(lambda db: drop_rejected(db, 1, 0, sum(sizes()))) == []
    assert len(ask(lambda db: drop_rejected(db, 1, 0, sum(sizes()) - 1))) == 1
    trial.settle()
    assert trial.swarm.ledger_writer.first_open() == leases[0].step
    assert ask(lambda db: drop_rejected(db, 1, leases[0].step, 1 << 30)) == []
    assert len(ask(lambda db: drop_rejected(db, 1, leases[0].step + 1, 1 << 30))) == 1
