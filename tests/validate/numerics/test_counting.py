"""Evidence is counted once per file and forgotten never: through kills, restarts, spot checks, bans and shadow mode.

What a file shows is made up here (`Scales`), so that each test decides what is weighed and what becomes of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import BannedError
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import ROUNDING, Finding
from shoal.roles.validator import Validator
from shoal.tasks.source import InProcess, Score, Split
from shoal.validate.audit import MIN_SPOT
from shoal.validate.checks.all_checks import Checks
from shoal.validate.evidence.vote_log import Vote, Votes
from shoal.validate.numerics.account import BAN_NATS
from shoal.validate.numerics.evidence_log import EvidenceLog
from shoal.validate.numerics.judge import BETS, VOID_NATS, Weighed
from tests.support.model_and_checks import World, build_world, gym
from tests.support.roles_in_process import entries
from tests.support.validator_in_process import Court, open_court

SELDOM: dict[str, float] = {"rate": 1e-12, "probation": 0}


def nats(total: float) -> dict[str, float]:
    """Bets that come to this much together."""
    return dict.fromkeys(BETS, total)


@dataclass
class Scales:
    """Weighs what a test says: whole files of a node by turns, and parts of files as nothing."""

    of: dict[str, list[float]] = field(default_factory=dict)
    part: float = 0.0
    weighed: list[tuple[str, int]] = field(default_factory=list)
    """Nodes and numbers of answers, in the order in which they were weighed."""

    def weigh(self, submission: Submission, *_: object) -> Weighed:
        node, answers = submission.lease.node, submission.rollouts
        self.weighed.append((node, len(answers)))
        whole = len(answers) > MIN_SPOT
        found = self.of.get(node, [0.0])
        total = (found.pop(0) if len(found) > 1 else found[0]) if whole else self.part
        return Weighed(nats(total), sum(len(answer.completion) for answer in answers))


@pytest.fixture(scope="module")
def world() -> World:
    return build_world("short", "bfloat16")


@pytest.fixture
def scales(monkeypatch: pytest.MonkeyPatch) -> Scales:
    found = Scales()
    monkeypatch.setattr(Checks, "weigh", lambda self, submission, *more: found.weigh(submission, *more))
    return found


def court_of(path: Path, world: World, **audit: Any) -> Court:
    return open_court(path / "run", world, model={"dtype": "bfloat16"}, audit=audit)


def restarted(validator: Validator) -> Validator:
    """The next life of a validator that was killed: it knows what is on disk."""
    return replace(validator, strikes=validator.strikes.copy())


def log_of(court: Court) -> EvidenceLog:
    return EvidenceLog(court.run.path / "nodes" / "evidence.jsonl")


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize("killed_in", ["judge", "ban"])
def test_a_validator_killed_between_evidence_and_verdict_counts_the_file_once_and_makes_up_for_the_ban(
    tmp_path: Path, world: World, scales: Scales, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    court = court_of(tmp_path, world)
    scales.of["cheat"] = [BAN_NATS + 3]
    lease = court.hand_in("cheat")

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(type(court.store), killed_in, kill)
        with pytest.raises(Killed):
            court.judge()
    before = log_of(court).of("cheat")
    assert (before.files, before.is_over) == (1, True)
    court.validator = restarted(court.validator)
    court.judge()
    assert log_of(court).of("cheat") == before
    assert not court.verdict(lease).accept
    with pytest.raises(BannedError, match="nats"):
        court.store.lease("cheat", 1)


def test_the_same_upload_judged_twice_is_counted_once(tmp_path: Path, world: World, scales: Scales) -> None:
    court = court_of(tmp_path, world)
    scales.of["a"] = [2.0, 9.0]
    court.hand_in("a")
    waiting = court.store.waiting(0, 9)
    court.validator.judge(waiting)
    once = log_of(court).of("a")
    court.validator.judge(waiting)
    assert log_of(court).of("a") == once
    assert once.files == 1


def test_a_restart_comes_to_the_same_sums_in_the_same_order(tmp_path: Path) -> None:
    log = EvidenceLog(tmp_path / "evidence.jsonl")
    for number in range(40):
        log.add(f"0x{number % 3}", number // 4, number % 4, Weighed(nats(math.sin(number) * 3), 100 + number))
    again = EvidenceLog(tmp_path / "evidence.jsonl")
    assert [again.of(f"0x{n}") for n in range(3)] == [log.of(f"0x{n}") for n in range(3)]


def test_looser_rates_forget_what_was_too_much_by_stricter_ones(tmp_path: Path) -> None:
    log = EvidenceLog(tmp_path / "evidence.jsonl")
    assert log.add("0xa", 0, 0, Weighed(nats(BAN_NATS + 3), 10)).is_over
    log.loosened(1)
    for found in (log, EvidenceLog(tmp_path / "evidence.jsonl")):
        assert not found.of("0xa").is_over
        assert not found.with_file("0xa", 0, 1, Weighed(nats(0.0), 10)).is_over


def test_looking_ahead_writes_nothing_and_comes_to_what_counting_comes_to(tmp_path: Path) -> None:
    log = EvidenceLog(tmp_path / "evidence.jsonl")
    for number in range(3):
        weighed = Weighed(nats(1 / 3 + number), 10)
        ahead = log.with_file("0xa", 0, number, weighed)
        assert log.of("0xa").files == number
        assert log.add("0xa", 0, number, weighed) == ahead
    assert log.with_file("0xa", 0, 2, Weighed(nats(50.0), 10)) == log.of("0xa")


def test_a_spot_check_and_a_later_weighing_of_the_whole_file_are_counted_once(
    tmp_path: Path, world: World, scales: Scales
) -> None:
    """The scorer fails in the time that answers have which may be made up: then the file is weighed whole first."""

    class Hesitant(InProcess):
        def scores(self, split: Split, answers: Sequence[Any], seconds: float = math.inf) -> list[Score]:
            if math.isfinite(seconds):
                return [Score(None, "too slow")] * len(answers)
            scales.weighed.append(("scored", len(answers)))
            return super().scores(split, answers, seconds)

    court = court_of(tmp_path, world, **SELDOM)
    court.validator.checks.judge = Hesitant(gym())
    scales.of["a"] = [1.5]
    lease = court.hand_in("a")
    court.judge()
    (_, part), (_, whole), (scored, _) = scales.weighed
    assert part < whole
    assert scored == "scored", "answers are scored without a bound when they are known to be drawn"
    assert (court.verdict(lease).accept, court.verdict(lease).audited) == (True, True)
    account = log_of(court).of("a")
    assert (account.files, account.tokens) == (1, court.verdict(lease).tokens)


@pytest.mark.parametrize("so_far", [0.0, BAN_NATS - 0.5])
def test_some_answers_never_drop_a_file_nor_ban_a_node(
    tmp_path: Path, world: World, scales: Scales, so_far: float
) -> None:
    """What would decide in the answers that were drawn is weighed whole instead, of the file as of its node's life."""
    court = court_of(tmp_path, world, **SELDOM)
    scales.part = VOID_NATS + 1 if not so_far else 3.0
    scales.of["a"] = [-3.0]
    assert court.validator.evidence is not None
    court.validator.evidence.add("a", 0, 99, Weighed(nats(so_far + math.log(2)), 100))
    lease = court.hand_in("a")
    court.judge()
    assert [answers for _, answers in scales.weighed] == sorted(answers for _, answers in scales.weighed)
    assert len(scales.weighed) == 2
    assert (court.verdict(lease).accept, court.verdict(lease).audited) == (True, True)
    assert court.store.lease("a", 1) is not None


def test_files_of_a_banned_node_that_still_wait_are_dropped_however_good_they_look(
    tmp_path: Path, world: World, scales: Scales
) -> None:
    """Ville's bound is on the most that there ever was: what is won back later does not undo it, nor does a restart."""
    court = court_of(tmp_path, world)
    scales.of["cheat"] = [BAN_NATS - 3, BAN_NATS - 3, -60.0]
    leases = [court.hand_in("cheat") for _ in range(4)]
    honest = court.hand_in("honest")
    court.validator.judge([file for file in court.store.waiting(0, 9) if file.node == "cheat"][:2])
    assert log_of(court).of("cheat").is_over
    court.validator = restarted(court.validator)
    court.judge()
    account = log_of(court).of("cheat")
    assert account.nats() < 0, "it looks good by now"
    findings = [court.verdict(lease).finding for lease in leases]
    assert [finding.check for finding in findings if finding] == [ROUNDING] * 4
    assert court.validator.strikes == {}
    assert court.verdict(honest).accept
    assert [entry["node"] for entry in entries(court.run, "validator", "banned")] == ["cheat"] * 2  # once in each life


def test_a_ban_by_evidence_of_several_files_votes_void_so_that_nothing_is_slashed(
    tmp_path: Path, world: World, scales: Scales
) -> None:
    """No arbiter could see it in one file's bytes; what one file shows by itself is a reject with evidence."""
    court = court_of(tmp_path, world)
    votes = Votes(tmp_path / "votes.jsonl")
    court.validator = replace(court.validator, votes=votes)
    scales.of |= {"patient": [BAN_NATS - 3], "blunt": [BAN_NATS + 3]}
    leases = [court.hand_in(node) for node in ("patient", "patient", "blunt")]
    court.judge()
    for node in ("patient", "blunt"):
        assert log_of(court).of(node).is_over
        with pytest.raises(BannedError):
            court.store.lease(node, 1)
    found = [votes.of(lease.step, lease.submission) for lease in leases]
    assert [(vote.letter, bool(vote.evidence)) for vote in found if vote] == [("v", False), ("v", False), ("r", True)]


@pytest.mark.parametrize("shares", [True, False])
def test_void_takes_no_vote_back_that_a_verdict_of_another_validator_has_given(
    tmp_path: Path, world: World, scales: Scales, shares: bool
) -> None:
    """Where validators share the files, and this one was late. Alone, the vote is that of the verdict."""
    court = court_of(tmp_path, world)
    votes = Votes(tmp_path / "votes.jsonl")
    court.validator = replace(court.validator, votes=votes)
    court.validator.verdicts.shares = shares
    scales.of["a"] = [VOID_NATS + 1]
    lease = court.hand_in("a")
    votes.note(lease.step, lease.submission, Vote("a", "ab" * 32, 64))
    court.judge()
    finding = court.verdict(lease).finding
    assert finding is not None
    assert finding.check == ROUNDING
    found = votes.of(lease.step, lease.submission)
    assert found is not None
    assert found.letter == ("a" if shares else "v")


def test_a_node_with_too_much_evidence_is_weighed_whole_also_where_nothing_is_drawn(
    tmp_path: Path, world: World, scales: Scales
) -> None:
    """A validator killed before the ban, with audits that draw next to nothing."""
    court = court_of(tmp_path, world, rate=1e-12, probation=0, spot_share=0.0)
    assert court.validator.evidence is not None
    court.validator.evidence.add("cheat", 0, 99, Weighed(nats(BAN_NATS + 2), 100))
    leases = [court.hand_in("cheat"), court.hand_in("honest")]
    court.judge()
    assert [court.verdict(lease).accept for lease in leases] == [False, True]
    with pytest.raises(BannedError):
        court.store.lease("cheat", 1)


def test_shadow_mode_neither_bans_nor_drops_whatever_was_counted(tmp_path: Path, world: World, scales: Scales) -> None:
    court = court_of(tmp_path, world, enforce=False, **SELDOM)
    scales.of["a"] = [BAN_NATS + 9]
    assert court.validator.evidence is not None
    court.validator.evidence.add("a", 0, 99, Weighed(nats(BAN_NATS + 9), 100))
    leases = [court.hand_in("a") for _ in range(2)]
    court.judge()
    assert [court.verdict(lease).accept for lease in leases] == [True, True]
    # Two draws may meet in one answer.
    assert {answers for _, answers in scales.weighed} <= {*range(1, MIN_SPOT + 1)}, "it costs what spot checks cost"
    assert court.store.lease("a", 1) is not None
    assert log_of(court).of("a").files == 3
    assert any("not enforced: a" in entry["text"] for entry in entries(court.run, "validator", "note"))


def test_blame_for_rewards_does_not_wait_for_numbers_and_loses_no_evidence(
    tmp_path: Path, world: World, scales: Scales
) -> None:
    court = court_of(tmp_path, world)
    scales.of["cheat"] = [VOID_NATS + 1]
    lease = court.hand_in("cheat", "false_reward")
    court.judge()
    finding = court.verdict(lease).finding
    assert isinstance(finding, Finding)
    assert finding.check == "rewards"
    assert court.validator.strikes == {"cheat": 1}
    assert log_of(court).of("cheat").files == 1


def test_a_float32_run_opens_no_log_of_evidence(tmp_path: Path) -> None:
    court = open_court(tmp_path / "run", build_world("short"))
    lease = court.hand_in("a")
    court.judge()
    assert court.verdict(lease).accept
    assert court.validator.evidence is None
    assert not (court.run.path / "nodes" / "evidence.jsonl").exists()
