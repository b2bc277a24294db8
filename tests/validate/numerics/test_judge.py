"""Files of a bfloat16 run: honest ones are accepted, cheats are dropped or blamed, and nodes are banned in the end."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import BannedError
from shoal.models.load import load_as
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import ROUNDING, is_blame
from shoal.validate.numerics import judge
from shoal.validate.numerics.account import BAN_NATS, Account
from shoal.validate.numerics.alternative_names import shift_bet
from shoal.validate.numerics.alternatives import COOLER, OLDER, ROUNDED
from shoal.validate.numerics.bets import Noise
from shoal.validate.numerics.evidence_log import EvidenceLog
from shoal.validate.numerics.judge import BETS, VOID_NATS, Weighed, finding_of
from tests.support.model_and_checks import Kind, World, build_world, lease_of, model_dir, with_sample
from tests.support.roles_in_process import entries
from tests.support.validator_in_process import Court, open_court


@pytest.fixture(scope="module")
def world() -> World:
    return build_world("long", "bfloat16", group_size=8)


@pytest.fixture(scope="module")
def honest(world: World) -> Submission:
    return world.honest()


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_honest_bfloat16_files_of_our_own_engine_are_accepted(world: World, batch: int) -> None:
    lease = lease_of(world, submission=batch)
    submission = world.read(world.file(world.maker(max_batch=batch), lease), lease)
    assert next(world.checks.costly([submission])) is None
    assert world.checks.weigh(submission).total < 0


def test_an_honest_worker_may_compute_in_float32(world: World) -> None:
    wide = replace(world, workers=load_as(model_dir("long"), "bfloat16", "float32"))
    lease = lease_of(world, submission=40)
    assert next(world.checks.costly([wide.read(wide.file(wide.maker(), lease), lease)])) is None


@pytest.mark.parametrize("attack", ["int4", "temperature", "smaller_model", "edited_tokens", "random_proof"])
def test_a_file_of_a_cheat_is_blamed_by_itself(world: World, attack: str) -> None:
    lease = lease_of(world, submission=50)
    submission = world.read(world.file(world.maker(attack), lease), lease)
    finding = next(world.checks.costly([submission]))
    assert is_blame(finding), finding


def test_false_log_probs_are_evidence_though_tokens_are_right(world: World, honest: Submission) -> None:
    forged = honest
    for number, sample in enumerate(honest.rollouts):
        forged = with_sample(forged, number, logprobs=[logp - 0.3 for logp in sample.logprobs])
    weighed = world.checks.weigh(forged)
    assert weighed.total > BAN_NATS
    assert weighed.strongest.startswith(("gaps", "shift"))


def test_noise_is_measured_once_per_version_though_files_of_two_take_turns(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Noise] = []

    def own(*_: object) -> Noise:
        measured.append(Noise(1.0 + len(measured), 1.0))
        return measured[-1]

    monkeypatch.setattr(judge, "own_answers", lambda *_: [])
    monkeypatch.setattr(judge, "own_noise", own)
    assert world.checks.numbers is not None
    numbers = replace(world.checks.numbers)
    for root, gap in (("a", 1.0), ("b", 2.0), ("a", 1.0), ("b", 2.0)):
        numbers.measure(root, list)
        assert numbers.noise is not None
        assert numbers.noise.gap == gap
    for number in range(100):
        numbers.measure(str(number), list)
    assert len(numbers._measured) <= world.checks.config.async_level + 2


def test_evidence_has_three_outcomes() -> None:
    def weighed(nats: float) -> Weighed:
        return Weighed({BETS[0]: nats + np.log(len(BETS))}, 1000)

    clean, accused = Account(), Account(files=9, won=dict.fromkeys(BETS, BAN_NATS + 1))
    assert finding_of(weighed(1.0), clean) is None
    dropped = finding_of(weighed(VOID_NATS + 1), clean)
    assert dropped is not None
    assert (dropped.check, is_blame(dropped)) == (ROUNDING, False)
    # What one file shows is not enough against a node with a clean life, nor the other way round.
    for found in (finding_of(weighed(BAN_NATS + 1), clean), finding_of(weighed(0.0), accused)):
        assert found is not None
        assert not is_blame(found)
    assert is_blame(finding_of(weighed(BAN_NATS + 1), accused))


def test_what_an_arbiter_may_not_have_is_no_blame() -> None:
    """The version before may be gone when somebody challenges a verdict; without it a ruling would be for the cheat."""
    accused = Account(files=9, won=dict.fromkeys(BETS, BAN_NATS + 1))
    for name in (*ROUNDED, COOLER):
        assert is_blame(finding_of(Weighed({shift_bet(name): 100.0}, 1000), accused))
    found = finding_of(Weighed({shift_bet(OLDER): 100.0}, 1000), accused)
    assert found is not None
    assert (found.check, is_blame(found)) == (ROUNDING, False)


@pytest.mark.parametrize(("kind", "most"), [("short", 64), ("short", 3), ("long", 64)])
def test_noise_rests_on_as_many_tokens_however_short_answers_are(kind: Kind, most: int) -> None:
    world = build_world(kind, "bfloat16", max_new_tokens=most)
    prompts = [world.checks.policy.encode_task(world.checks.tasks.task("train", number)) for number in range(8)]
    answers = judge.own_answers(world.checks.policy, prompts, world.config)
    assert 256 <= sum(len(answer.gaps_T) for answer in answers) < 400
    again = judge.own_answers(world.checks.policy, prompts, world.config)
    assert [list(answer.gaps_T) for answer in again] == [list(answer.gaps_T) for answer in answers]


def test_a_log_of_evidence_survives_restarts_and_counts_a_file_once(tmp_path: Path) -> None:
    path = tmp_path / "nodes" / "evidence.jsonl"
    log = EvidenceLog(path)
    for number in range(5):
        log.add("0xa", 1, number, Weighed({BETS[0]: 2.0, BETS[-1]: -1.0}, 100))
    before = log.add("0xa", 1, 4, Weighed({BETS[0]: 50.0}, 100))
    assert (before.files, before.tokens) == (5, 500)
    with path.open("a") as file:
        file.write('{"node": "0xa", "step": 9, "subm')  # killed while it wrote
    again = EvidenceLog(path)
    assert again.of("0xa") == before
    assert again.of("0xb") == Account()
    assert again.add("0xa", 9, 0, Weighed({BETS[0]: 2.0}, 100)).files == 6
    assert EvidenceLog(path).of("0xa").files == 6
    assert all(json.loads(line)["node"] == "0xa" for line in path.read_text().splitlines() if line.endswith("}"))


@pytest.fixture
def court(tmp_path: Path) -> Court:
    return open_court(tmp_path / "run", build_world("short", "bfloat16"), model={"dtype": "bfloat16"})


def test_a_validator_accepts_honest_nodes_and_bans_a_cheat_for_its_numbers(court: Court) -> None:
    honest = [court.hand_in("honest") for _ in range(3)]
    cheats = []
    for _ in range(6):
        try:
            cheats.append(court.hand_in("cheat", "int4"))
        except BannedError:
            break
        court.judge()
    assert all(court.verdict(lease).accept for lease in honest)
    assert not any(court.verdict(lease).accept for lease in cheats[1:])
    with pytest.raises(BannedError, match="as honest bfloat16 rounding makes them differ"):
        court.store.lease("cheat", 1)
    assert court.store.lease("honest", 1) is not None
    weighed = entries(court.run, "validator", "weighed")
    assert max(entry["node_nats"] for entry in weighed if entry["node"] == "honest") < 0
    assert court.validator.evidence is not None
    assert court.validator.evidence.of("cheat").nats() >= BAN_NATS


def test_a_structural_cheat_still_has_strikes(court: Court) -> None:
    for _ in range(2):
        lease = court.hand_in("cheat", "false_reward")
        court.judge()
        finding = court.verdict(lease).finding
        assert finding is not None
        assert finding.check == "rewards"
    with pytest.raises(BannedError, match="2 files rejected"):
        court.store.lease("cheat", 1)


def test_shadow_mode_reports_and_blames_nobody(tmp_path: Path) -> None:
    court = open_court(
        tmp_path / "run", build_world("short", "bfloat16"), model={"dtype": "bfloat16"}, audit={"enforce": False}
    )
    leases = [court.hand_in("cheat", "int4") for _ in range(4)]
    court.judge()
    assert all(court.verdict(lease).accept for lease in leases)
    assert court.store.lease("cheat", 1) is not None
    notes = [entry["text"] for entry in entries(court.run, "validator", "note")]
    assert any("not enforced: cheat" in text and "nats of evidence" in text for text in notes)
