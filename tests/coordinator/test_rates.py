"""Profiles at the door, and the table of honest rates that a coordinator serves: signed, kept, and only loosened."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.client.honest_rates import LOOK_EVERY_S, RatesFollower, loosen
from shoal.client.run_status import NodeRecord, node_record
from shoal.coordinator import archive
from shoal.crypto.keys import Key
from shoal.errors import BannedError, ConfigError, RolloutError
from shoal.protocol.numeric_evidence import NumericEvidence
from shoal.protocol.rates.rates_table import RatesTable, SignedRates
from shoal.protocol.rates.shipped import default_rates
from shoal.protocol.refusal import Refusal
from shoal.protocol.verdict import NUMBERS, ROUNDING, Finding, Verdict
from shoal.rundir import RunDir
from tests.protocol.test_rates_table import H100, HERE, MODEL, OTHER, rates_file
from tests.support.coordinator_in_process import COORDINATOR, TRAINER, World, key_of, world_at

A = key_of("a")


@pytest.fixture
def bfloat16(tmp_path: Path) -> Iterator[World]:
    """A run that starts with rates of two profiles of its own and admits one of them."""
    path = tmp_path / "rates.json"
    rates_file(1.0, HERE, H100).write(path)
    audit = {"rates": str(path), "profiles": ["nvidia-*"]}
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", model={"dtype": "bfloat16"}, audit=audit) as found:
        yield found


def loosen_by(world: World, key: Key, version: int, **changes: Any) -> bool:
    link = world.link(key)
    link.join("trainer" if key == TRAINER else "worker", profile=H100)
    return link.loosen(version, rates_file(2.0, H100, **changes))


def test_a_run_may_admit_some_profiles_and_shows_what_a_node_declared(bfloat16: World) -> None:
    bfloat16.link(A).join("worker", profile=H100)
    (node,) = bfloat16.link(A).get("/v1/status")["nodes"]
    assert node["profile"] == H100
    for profile in (HERE, H100.replace("vllm-0.11", "vllm-0.12"), ""):
        with pytest.raises(Refusal, match=re.escape(f"this run admits {H100}; ask its owner")):
            bfloat16.link(key_of("b")).join("worker", profile=profile)
    bfloat16.link(TRAINER).join("trainer")  # computes no answers


RUBBISH = ["rubbish", "H100/x/y/bfloat16/tp1", f"{'h' * 200}/x/y/bfloat16/tp1", "h\n/x/y/bfloat16/tp1"]


@pytest.mark.parametrize("profile", RUBBISH)
def test_a_rubbish_profile_is_refused_wherever_profiles_are_welcome(small_world: World, profile: str) -> None:
    answer = small_world.request(A, "POST", "/v1/nodes", {"role": "worker", "profile": profile})
    assert answer.status_code == 422
    assert "profile" in answer.json()["reason"]
    assert small_world.link(A).get("/v1/status")["nodes"] == []


def test_the_table_is_signed_starts_with_the_configs_rates_and_outlives_a_restart(bfloat16: World) -> None:
    first = bfloat16.link(A).rates()
    assert (first.version, first.rates.names()[-2:]) == (1, [HERE, H100])
    assert loosen_by(bfloat16, TRAINER, 2)
    bfloat16.stop()
    bfloat16.start()
    second = bfloat16.link(A).rates()
    assert second.version == 2
    assert second.rates.continues(first.rates)


def test_only_the_owner_loosens_and_nobody_replaces_what_is_there(bfloat16: World) -> None:
    with pytest.raises(Refusal, match="is not this run's trainer"):
        loosen_by(bfloat16, A, 2)
    assert loosen_by(bfloat16, TRAINER, 2)
    assert not loosen_by(bfloat16, TRAINER, 2)  # the same again, as after an answer that was lost
    for version in (1, 2, 4):
        with pytest.raises(RolloutError, match=rf"version {version}: the table has version 2, so the next is 3"):
            loosen_by(bfloat16, TRAINER, version, count=100)
    with pytest.raises(Refusal, match=r"99 layers.*3 layers"):
        loosen_by(bfloat16, TRAINER, 3, model=OTHER)
    with pytest.raises(Refusal, match="rests on 5 units"):
        loosen_by(bfloat16, TRAINER, 3, count=5)
    assert bfloat16.link(A).rates().version == 2


def test_the_first_addition_of_a_run_is_of_its_own_model_too(small_world: World) -> None:
    """It could never be taken out again, and no validator would start with it."""
    world = small_world
    world.stop()
    world.architecture = MODEL
    world.start()
    with pytest.raises(Refusal, match=r"version 1: measured on small .*99 layers.*but this run has a .*3 layers"):
        loosen_by(world, TRAINER, 1, model=OTHER)
    assert loosen_by(world, TRAINER, 1)
    assert world.link(A).rates().version == 1


def reject(world: World, name: str, check: str, rates: int | None = None) -> None:
    """Hands in a file for a node, which is rejected for this, by a version of the honest rates."""
    world.hand_in(name, world.take(name))
    (upload,) = world.validator.waiting(0, 20)
    _, sha256 = world.validator.read(upload)
    finding = Finding(check, "a rule", 1, 2)
    numbers = NumericEvidence(40.0, 64, "gaps 1", 40.0, 1, 13.8, rates)
    world.validator.judge(upload, Verdict(False, sha256, True, finding, samples=8, tokens=64, numbers=numbers))


def record_of(world: World, name: str) -> tuple[str, int, int]:
    world.coordinator._seen = None  # not the status of a moment ago
    (node,) = (n for n in world.link(A).get("/v1/status")["nodes"] if n["address"] == key_of(name).address)
    return node["state"], node["rejected"], node["owed"]


def test_looser_rates_lift_the_bans_of_those_that_were_too_strict(small_world: World) -> None:
    """An honest machine that nobody had measured goes on with its work, and owes nothing; who was banned for more than
    numbers stays out."""
    world = small_world
    world.announce()
    for name, checks in (("odd", (NUMBERS, ROUNDING)), ("cheat", (NUMBERS, "rewards"))):
        for check in checks:
            reject(world, name, check)
    world.validator.ban(key_of("odd").address, "2 files rejected", rates=0)
    world.validator.ban(key_of("cheat").address, "2 files rejected", rates=0)
    world.validator.ban(key_of("cheat").address, "2 files rejected, none of them because of numbers")
    for name in ("odd", "cheat"):
        with pytest.raises(BannedError):
            world.lease(name)
        assert record_of(world, name)[0] == "banned"
    assert loosen_by(world, TRAINER, 1)
    world.validator.ban(key_of("odd").address, "said by rates that are no more", rates=0)
    assert record_of(world, "odd") == ("joined", 0, 0)
    assert node_record(world.url, key_of("odd").address).evidence.startswith("evidence 0.0 of 13.8 nats")
    lease = world.take("odd")
    world.hand_in("odd", lease)
    (upload,) = world.validator.waiting(0, 20)
    _, sha256 = world.validator.read(upload)
    world.validator.judge(upload, Verdict(True, sha256, True, samples=8, tokens=64))
    assert [s.lease for s in world.trainer.accepted(lease.step)] == [lease]
    world.stop()
    world.start()
    with pytest.raises(BannedError):
        world.lease("cheat")
    world.validator.ban(key_of("odd").address, "by the newest rates", rates=1)
    with pytest.raises(BannedError):
        world.lease("odd")


@pytest.mark.parametrize("done", ["not yet", "before", "after"])
def test_a_draw_that_was_given_again_is_owed_no_more_by_looser_rates(small_world: World, done: str) -> None:
    """Nor is anything else forgiven for it, once it is done."""
    world = small_world
    world.announce()
    reject(world, "odd", ROUNDING)
    reject(world, "odd", "rewards")
    world.announce(1)
    again = world.take("odd", version=1)
    assert again.draw_of == "0/0"
    assert record_of(world, "odd")[1:] == (2, 2)
    if done == "before":
        world.hand_in("odd", again)
        accept(world)
        assert record_of(world, "odd")[1:] == (2, 1)
    assert loosen_by(world, TRAINER, 1)
    assert record_of(world, "odd")[1:] == (1, 1)
    if done == "after":
        world.hand_in("odd", again)
        accept(world)
    assert loosen_by(world, TRAINER, 2, count=100)
    assert record_of(world, "odd")[1:] == (1, 1)


def accept(world: World) -> None:
    (upload,) = world.validator.waiting(0, 20)
    _, sha256 = world.validator.read(upload)
    world.validator.judge(upload, Verdict(True, sha256, True, samples=8, tokens=64))


@pytest.mark.parametrize("check", [NUMBERS, ROUNDING])
def test_a_verdict_by_rates_that_were_loosened_meanwhile_holds_nothing_against_its_node(
    small_world: World, check: str
) -> None:
    """A validator asks for newer rates every ten seconds, and may be at a file for longer."""
    world = small_world
    world.announce()
    assert loosen_by(world, TRAINER, 1)
    reject(world, "odd", check, rates=0)
    state, rejected, owed = record_of(world, "odd")
    assert (state in ("joined", "healthy"), rejected, owed) == (True, 0, 0)
    assert node_record(world.url, key_of("odd").address).evidence == ""
    assert world.link(A).get("/v1/submissions/0/0")["verdict"]["accept"] is False, "a verdict is final"
    reject(world, "cheat", "rewards", rates=0)
    assert record_of(world, "cheat")[1:] == (1, 1)
    reject(world, "odd", check, rates=1)
    assert record_of(world, "odd")[1:] == (1, 1)
    assert node_record(world.url, key_of("odd").address).evidence.startswith("evidence 40.0 of 13.8 nats")


def test_shoal_loosen_says_what_became_looser(bfloat16: World, tmp_path: Path) -> None:
    noisy, said = tmp_path / "noisy.json", io.StringIO()
    rates_file(9.0, H100.replace("tp8", "tp4")).write(noisy)
    loosen(bfloat16.url, noisy, TRAINER, MODEL, Console(file=said, width=200))
    assert "honest rates of run test: version 2" in said.getvalue()
    assert "log-prob gaps: looser at" in said.getvalue()
    with pytest.raises(ConfigError, match="99 layers"):
        loosen(bfloat16.url, noisy, TRAINER, OTHER, Console(quiet=True))
    # What was added may join from now on.
    bfloat16.link(A).join("worker", profile=H100.replace("tp8", "tp4"))


def test_a_judge_takes_newer_rates_without_a_restart_and_never_tighter_or_forged_ones() -> None:
    now, notes = [0.0], list[str]()
    first = RatesTable(shipped=default_rates()).loosened(rates_file(), "rates")
    served = [SignedRates.sign("test", first, COORDINATOR)]

    def fetch() -> SignedRates:
        served[-1].check("test", COORDINATOR.address)
        return served[-1]

    follower = RatesFollower(fetch, MODEL, notes.append, lambda: now[0])
    looser = first.loosened(rates_file(4.0, H100), "rates")
    for table, signer, fault in (
        (RatesTable(shipped=default_rates()), COORDINATOR, "may loosen them, never tighten"),
        (RatesTable(shipped=default_rates(), additions=(rates_file(0.1),)), COORDINATOR, "never tighten"),
        (looser, A, f"signed by {A.address}, not by {COORDINATOR.address}"),
        (first.model_copy(update={"additions": (*first.additions, rates_file(model=OTHER))}), COORDINATOR, "99 layers"),
    ):
        served.append(SignedRates.sign("test", table, signer))
        now[0] += LOOK_EVERY_S
        assert follower.newer() is None
        assert fault in notes[-1]
        assert follower.table == first
    served.append(SignedRates.sign("test", looser, COORDINATOR))
    assert follower.newer() is None  # asked a moment ago
    now[0] += LOOK_EVERY_S
    assert follower.newer() == looser
    now[0] += LOOK_EVERY_S
    assert follower.newer() is None


def test_a_judge_that_starts_again_takes_no_older_rates_than_it_had(tmp_path: Path) -> None:
    """Somebody who recorded a table that was signed once may answer with it when a validator starts."""
    kept, notes, now = tmp_path / "nodes" / "rates.json", list[str](), [0.0]
    first = RatesTable(shipped=default_rates()).loosened(rates_file(), "rates")
    second = first.loosened(rates_file(4.0, H100), "rates")
    third = second.loosened(rates_file(5.0, H100), "rates")
    served = [first]

    def started(signer: Key = COORDINATOR) -> RatesFollower:
        return RatesFollower(
            lambda: SignedRates.sign("test", served[-1], signer), MODEL, notes.append, lambda: now[0], kept
        )

    follower = started()
    served.append(second)
    now[0] += LOOK_EVERY_S
    assert follower.newer() == second
    served.append(first)
    follower = started()
    assert follower.table == second
    assert "version 1: lacks some of version 2; a run may loosen them, never tighten" in notes[-1]
    served.append(third)
    now[0] += LOOK_EVERY_S
    assert follower.newer() == third
    assert started().table == third
    served.append(first)
    assert started(A).table == first, "another coordinator's run"
    kept.write_text("{")
    assert started().table == first
    assert "rates.json: not a table of this run's honest rates" in notes[-1]


def test_a_validator_does_not_start_with_rates_of_another_model() -> None:
    table = RatesTable(shipped=default_rates()).loosened(rates_file(model=OTHER), "rates")
    with pytest.raises(ConfigError, match=r"version 1: measured on small .*99 layers.*3 layers"):
        RatesFollower(lambda: SignedRates.sign("test", table, COORDINATOR), MODEL)


def test_a_runs_records_say_what_a_node_declared_and_what_numbers_are_judged_by(
    bfloat16: World, tmp_path: Path
) -> None:
    bfloat16.link(A).join("worker", profile=H100)
    swarm = bfloat16.config.swarm.model_copy(update={"database": bfloat16.url_of_database})
    run = RunDir(tmp_path, bfloat16.config.model_copy(update={"swarm": swarm}))
    with archive.reading(run) as db:
        assert (found := archive.node_of(db, A.address)) is not None
        assert found.profile == H100
        assert archive.node_of(db, key_of("b").address) is None
    assert archive.rates_of(run) == bfloat16.link(A).rates().rates
    assert archive.handed_in(run, 0, 0) is None
    assert node_record(bfloat16.url, A.address).profile == H100
    assert node_record(str(tmp_path / "elsewhere"), A.address) == NodeRecord()
