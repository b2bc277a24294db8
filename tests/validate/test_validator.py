"""The validator on a directory: honest files are accepted, others get evidence, and their makers no more leases."""

import shutil
from pathlib import Path

import pytest

from shoal.errors import BannedError
from shoal.generate.submission_builder import Maker
from shoal.protocol.stores import Version, WeightSource
from shoal.protocol.verdict import Verdict
from shoal.roles.validator_process import past_strikes
from tests.support.model_and_checks import World, with_sample
from tests.support.roles_in_process import entries
from tests.support.validator_in_process import Court, open_court


@pytest.fixture
def court(tmp_path: Path, world: World) -> Court:
    return open_court(tmp_path / "run", world)


def test_honest_files_are_accepted_and_bound_to_their_bytes(court: Court) -> None:
    leases = [court.hand_in("honest") for _ in range(3)]
    court.judge()
    for lease in leases:
        verdict = court.verdict(lease)
        assert (verdict.accept, verdict.audited, verdict.finding) == (True, True, None)
        assert len(verdict.sha256) == 64
    assert [s.lease for s in court.store.accepted(leases[0].step)] == leases
    assert court.store.waiting(0, 9) == []
    assert not (court.run.path / "evidence").exists()


def test_every_upload_gets_its_verdict_and_every_rejection_its_evidence(court: Court) -> None:
    honest = court.hand_in("honest")
    cheats = [court.hand_in("cheat", attack) for attack in ("false_reward", "best_of_n", "truncated")]
    court.judge()
    assert court.verdict(honest).accept
    verdicts = [court.verdict(lease) for lease in cheats]
    assert [v.finding.check for v in verdicts if v.finding] == ["rewards", "sampling", "format"]
    assert [v.audited for v in verdicts] == [True, True, False]  # answers are scored when they are known to be drawn
    assert all(court.evidence(lease).is_file() for lease in cheats)
    assert [s.lease for s in court.store.accepted(honest.step)] == [honest]
    said = entries(court.run, "validator", "verdict")
    assert [(e["node"], e["accept"]) for e in said].count(("cheat", False)) == 3


def test_a_node_is_banned_at_its_last_strike_and_nobody_else(court: Court) -> None:
    first = court.hand_in("cheat", "false_reward")
    court.judge()
    court.hand_in("honest")
    court.hand_in("cheat", "false_advantage")
    court.judge()
    with pytest.raises(BannedError, match=r"cheat: gets no more leases.*2 files rejected.*rewards.*evidence/step-"):
        court.store.lease("cheat", 1)
    assert court.store.lease("honest", 1) is not None
    assert [entry["node"] for entry in entries(court.run, "validator", "banned")] == ["cheat"]
    assert past_strikes(court.run.path / "metrics" / "validator.jsonl") == {"cheat": 2}
    assert not court.verdict(first).accept


def test_a_ban_that_a_kill_prevented_is_made_up_for(court: Court) -> None:
    """Strikes are counted from the metrics; the ban may be what was not written any more."""
    court.validator.strikes["cheat"] = court.run.config.audit.strikes
    court.hand_in("cheat", "false_reward")
    court.judge()
    with pytest.raises(BannedError):
        court.store.lease("cheat", 1)


def test_a_retracted_version_is_nobodys_fault(court: Court) -> None:
    leases = [court.hand_in("honest") for _ in range(4)]
    court.run.channel().retract(0)
    court.judge()
    for lease in leases:
        verdict = court.verdict(lease)
        assert not verdict.accept
        assert verdict.finding is not None
        assert verdict.finding.check == "version"
    assert court.store.lease("honest", 1) is not None


class Cut:
    """A line to relays that are away: version 1 is out, and is not heard of."""

    def __init__(self, channel: WeightSource) -> None:
        self._channel = channel

    def latest(self) -> Version | None:
        return self._channel.version(0)

    def offered(self) -> Version | None:
        return self.latest()

    def version(self, number: int) -> Version | None:
        return self._channel.version(number) if number == 0 else None

    def was_retracted(self, version: Version) -> bool:
        return self._channel.was_retracted(version)

    def fetch(self, version: Version) -> Path:
        return self._channel.fetch(version)


def test_a_file_whose_version_has_not_come_here_yet_waits_for_it(court: Court) -> None:
    lease = court.hand_in("honest")
    whole, court.validator.channel = court.validator.channel, Cut(court.validator.channel)
    court.judge()
    assert len(court.store.waiting(0, 9)) == 1
    court.validator.channel = whole
    court.judge()
    assert court.verdict(lease).accept
    assert court.validator.strikes["honest"] == 0


def test_a_version_that_is_replaced_while_files_are_judged_is_nobodys_fault(
    court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the cheap checks and the audit a resumed trainer may publish other weights under the same number."""
    leases = [court.hand_in("honest") for _ in range(2)]
    audits = court.validator.audits

    def replaced() -> bool:
        channel = court.run.channel()
        old = channel.fetch(court.version()) / "model.safetensors"
        keep = old.with_name("kept")
        shutil.copy2(old, court.run.path / keep.name)
        channel.retract(0)
        with channel.publish(1) as staging:
            shutil.copy2(court.run.path / keep.name, staging / "model.safetensors")
            (staging / "note.txt").write_text("another root")
        monkeypatch.undo()
        return True

    monkeypatch.setattr(type(audits), "drawn", lambda self, node, sha256, step: replaced())
    court.judge()
    findings = [court.verdict(lease).finding for lease in leases]
    assert all(finding is not None and finding.check == "version" for finding in findings)
    assert court.store.lease("honest", 1) is not None


@pytest.mark.parametrize("content", [b"", b"PAR1", b"rubbish" * 100, b"\x00" * 5000])
def test_anything_may_be_handed_in(court: Court, content: bytes) -> None:
    lease = court.lease("cheat")
    court.store.put(lease, content)
    court.judge()
    finding = court.verdict(lease).finding
    assert finding is not None
    assert finding.check == "format"
    assert court.evidence(lease).is_file()


def test_without_audits_only_what_is_cheap_is_seen(tmp_path: Path, world: World) -> None:
    court = open_court(tmp_path / "run", world, audit={"rate": 0.0})
    unseen, seen = court.hand_in("cheat", "best_of_n"), court.hand_in("cheat", "false_reward")
    court.judge()
    found = court.verdict(unseen)
    assert found == Verdict(True, found.sha256, False, samples=found.samples, tokens=found.tokens)
    assert found.tokens >= found.samples > 0
    assert not court.verdict(seen).accept


SELDOM: dict[str, float] = {"rate": 1e-12, "probation": 0}


@pytest.mark.parametrize("attack", ["int4", "smaller_model", "constant_proof"])
def test_one_answer_tells_a_file_that_is_wrong_throughout(tmp_path: Path, world: World, attack: str) -> None:
    court = open_court(tmp_path / "run", world, audit=SELDOM)
    honest, cheat = court.hand_in("honest"), court.hand_in("cheat", attack)
    court.judge()
    found = court.verdict(honest)
    assert found == Verdict(True, found.sha256, False, samples=found.samples, tokens=found.tokens)
    assert found.tokens >= found.samples > 0
    verdict = court.verdict(cheat)
    assert (verdict.accept, verdict.audited) == (False, True)
    assert court.evidence(cheat).is_file()


def test_a_spot_sees_what_it_looks_at_and_the_verdict_is_that_of_the_whole_file(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    court = open_court(tmp_path / "run", world, audit=SELDOM | {"strikes": 9})
    for node, spot, accept in (("a", [0, 2], True), ("b", [1, 2], False)):
        own = court.honest(node)
        forged = with_sample(own, 1, logprobs=[p - 0.1 for p in own.rollouts[1].logprobs])
        lease = court.hand_in_submission(forged)
        monkeypatch.setattr(type(court.validator.audits), "spot", lambda self, sha256, lengths, spot=spot: spot)
        court.judge()
        verdict = court.verdict(lease)
        assert (verdict.accept, verdict.audited) == (accept, not accept)
        if verdict.finding is not None:
            assert (verdict.finding.check, verdict.finding.sample) == ("logprobs", 1)


def test_files_of_several_versions_are_judged_each_by_its_own(court: Court, world: World) -> None:
    leases = [court.hand_in("one")]
    maker: Maker = world.maker()
    maker.policy.set_weights(court.validator.checks.policy.weights(), "version 0")
    lease = court.lease("zero", version=0)
    court.store.put(lease, maker.file(lease, court.version(0))[1])
    world.maker()
    leases += [lease, court.hand_in("one")]
    court.judge()
    assert all(court.verdict(lease).accept for lease in leases)


def test_where_our_scorer_fails_the_file_is_rejected_and_its_maker_not_blamed(
    court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.tasks.source import InProcess, Score

    lease = court.hand_in("honest")
    monkeypatch.setattr(
        InProcess, "scores", lambda self, split, answers, seconds: [Score(None, "too slow")] * len(answers)
    )
    court.judge()
    monkeypatch.undo()
    finding = court.verdict(lease).finding
    assert finding is not None
    assert finding.check == "scorer"
    assert court.validator.strikes == {}
