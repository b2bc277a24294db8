"""The planter: what it hands in as bad is rejected for sure, and no address outlives its planted file."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.config_io import check_config
from shoal.coordinator.honeypots import Plants
from shoal.errors import ConfigError, RolloutError
from shoal.generate.submission_builder import Maker
from shoal.generate.torch_engine import TorchEngine
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version
from shoal.protocol.verdict import is_blame
from shoal.roles.planter import KEPT, SEEN_AT_ONCE, PlanterStore, PlantingMaker, start_planter, ways
from shoal.roles.session import JoinOptions
from shoal.rundir import RunDir
from shoal.tasks.source import InProcess
from shoal.validate.checks.all_checks import Checks
from shoal.validate.numerics.account import BAN_NATS, Account
from shoal.validate.numerics.judge import BETS, Weighed, finding_of
from tests.protocol.test_rates_table import H100
from tests.support.coordinator_in_process import VALIDATOR, good_file, key_of, world_at
from tests.support.coordinator_in_process import World as Swarm
from tests.support.model_and_checks import VERSIONS, World, build_world, gym, lease_of, weights
from tests.support.submissions import ROOT

PLANTS = Plants(key_of("planter"), "test")


def planting(world: World) -> PlantingMaker:
    engine = TorchEngine(
        world.workers, max_batch=16, max_len=world.config.max_len, temperature=world.config.sampling.temperature
    )
    engine.set_weights(weights(world.kind)[1], "version 1")
    judge = InProcess(gym())
    roots = {version.number: version.root for version in VERSIONS}
    checks = Checks(world.config, world.workers, gym(), judge, roots.get)
    return PlantingMaker(world.config, world.workers, engine, gym(), judge, plants=PLANTS, checks=checks)


def place(world: World, letter: str, way: str = "", after: int = 0) -> Lease:
    """A lease at a place for such a file, that goes wrong in this way."""
    known = ways(world.config)
    leases = (lease_of(world, number) for number in range(after, 1000))
    return next(
        lease
        for lease in leases
        if PLANTS.letter(lease.step, lease.submission) == letter
        and (not way or known[PLANTS.draw(lease.step, lease.submission, len(known))] == way)
    )


@pytest.mark.parametrize("mode", ["seeded", "free"])
def test_whatever_goes_wrong_with_a_bad_file_an_honest_validator_rejects_it(mode: str) -> None:
    world = build_world("short", mode=mode)
    caught: Counter[str] = Counter()
    for way in ways(world.config):
        lease = place(world, "r", way)
        finding = world.verdict(planting(world).file(lease, VERSIONS[1])[1], lease)
        assert finding is not None, f"{way} passed"
        caught[finding.check] += 1
    assert {"rewards", "computation"} <= caught.keys()
    assert ("sampling" in caught) == (mode == "seeded")


def test_good_files_and_ordinary_ones_are_honest_work() -> None:
    world = build_world("short")
    for letter in ("a", "."):
        lease = place(world, letter)
        data = planting(world).file(lease, VERSIONS[1])[1]
        assert data == world.file(world.maker(), lease)
        assert world.verdict(data, lease) is None


def test_a_way_that_changes_nothing_is_not_handed_in_as_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    world = build_world("short")
    lease = place(world, "r", "own_mean_proof")
    real = PlantingMaker._bad

    def harmless(self: PlantingMaker, way: str, lease: Lease, version: Version) -> Any:
        return Maker.file(self, lease, version) if way == "own_mean_proof" else real(self, way, lease, version)

    monkeypatch.setattr(PlantingMaker, "_bad", harmless)
    finding = world.verdict(planting(world).file(lease, VERSIONS[1])[1], lease)
    assert finding is not None
    assert finding.check == "rewards"


@pytest.mark.parametrize("total", [7.0, BAN_NATS + 0.1, BAN_NATS + 4.0, BAN_NATS + 7.0, BAN_NATS + 14.0])
def test_what_a_validator_may_find_void_is_not_handed_in_as_bad(total: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 blame takes evidence against the address too, over all of its files: a planted one may be any of the
    first, and a validator that votes void on it would lose its standing."""
    world = build_world("short", "bfloat16")
    lease = place(world, "r", "temperature")
    weighed = Weighed({**dict.fromkeys(BETS, 0.0), BETS[0]: total + math.log(len(BETS))}, 1000)
    monkeypatch.setattr(Checks, "weigh", lambda *_args, **_options: weighed)
    submission = world.read(planting(world).file(lease, VERSIONS[1])[1], lease)
    if world.checks.cheap(submission) is not None:
        return  # what every validator sees went wrong instead
    account = Account()
    for _ in range(world.config.audit.probation):
        judged = replace(account, won=dict(account.won))
        judged.add(weighed.nats, weighed.tokens, BETS)
        assert is_blame(finding_of(weighed, judged)), f"void as file {judged.files}"
        account.add(dict.fromkeys(BETS, -9.0), 1000, BETS)


NOT_ALL = [
    ("float32", {"rate": 0.0}),
    ("float32", {"probation": 0}),
    ("bfloat16", {"count": 2}),
]


@pytest.mark.parametrize(("dtype", "audit"), NOT_ALL)
def test_where_not_every_validator_blames_by_numbers_only_what_all_see_goes_wrong(
    dtype: str, audit: dict[str, float]
) -> None:
    config = build_world("short", dtype).config
    assert ways(config) != SEEN_AT_ONCE
    assert ways(check_config(config.model_dump() | {"audit": audit}, "test")) == SEEN_AT_ONCE


class Source:
    """Version 0, and nothing else."""

    def latest(self) -> Version:
        return Version(0, ROOT)

    def offered(self) -> Version:
        return self.latest()

    def version(self, number: int) -> Version | None:
        return Version(0, ROOT) if number == 0 else None

    def was_retracted(self, version: Version) -> bool:
        return False

    def fetch(self, version: Version) -> Path:
        raise NotImplementedError


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    database = f"sqlite:///{tmp_path / 'state.db'}"
    many = {"groups_per_step": 400, "oversample": 3.0, "token_budget": 256}
    with world_at(tmp_path, database, plants=PLANTS, ledger={"plants": 6}, train=many, steps=99) as world:
        world.announce()
        yield world


def store_in(swarm: Swarm) -> PlanterStore:
    run = RunDir(swarm.path, swarm.config)
    return PlanterStore(run, swarm.url, PLANTS, Source(), run.status("planter"), run.metrics("planter"))


def hand_in(store: PlanterStore) -> Lease:
    lease = store.lease("planter", 0)
    assert lease is not None
    store.put(lease, good_file(lease))
    return lease


def test_an_address_ends_with_its_planted_file_and_stays_to_be_seen(swarm: Swarm) -> None:
    swarm.link(key_of("worker")).join("worker", profile=H100)
    with store_in(swarm) as store:
        store._due = 100.0
        leases = [hand_in(store) for _ in range(16)]
        planted = [PLANTS.letter(lease.step, lease.submission) != "." for lease in leases]
        for before, after, last in zip(leases, leases[1:], planted, strict=False):
            own = [one for one in leases if one.node == before.node]
            ended = last or len(own) == swarm.config.audit.probation
            assert (before.node == after.node) == (not ended or before is not own[-1])
        assert {lease.node for lease in leases} <= PLANTS.addresses
        assert any(planted)
        assert len(store._identities) == KEPT + 1
        spent = store._identities[0]
        assert spent.now.doing == "policy version 1"
    swarm.coordinator._seen = None  # half a second old at most; the planter has looked as well
    nodes = {node["address"]: node for node in swarm.link(VALIDATOR).get("/v1/status")["nodes"]}
    assert {nodes[lease.node]["name"] for lease in leases} == {"worker"}
    # It computes otherwise than that worker; a profile of its own would tell which files are planted.
    assert {nodes[lease.node]["profile"] for lease in leases} == {H100}


def test_a_planter_that_was_killed_goes_on_with_a_fresh_address(swarm: Swarm) -> None:
    with store_in(swarm) as store:
        store._due = 2.0
        first = store.lease("planter", 0)
    with store_in(swarm) as store:
        second = store.lease("planter", 0)
    assert first is not None
    assert second is not None
    assert first.node != second.node


def test_a_banned_address_is_followed_by_the_next(swarm: Swarm) -> None:
    with store_in(swarm) as store:
        store._due = 10.0
        lease = store.lease("planter", 0)
        assert lease is not None
        swarm.validator.ban(lease.node, "rejects everything")
        with pytest.raises(RolloutError, match="gets no more leases"):
            store.put(lease, good_file(lease))
        assert hand_in(store).node != lease.node
        last = store._identities[-1]
        last.is_spent = False
        swarm.validator.ban(last.address, "rejects everything")
        assert store.lease("planter", 0) is None
        assert hand_in(store).node != last.address


def test_files_are_due_at_the_rate_that_the_run_asks_for(swarm: Swarm) -> None:
    with store_in(swarm) as store:
        hand_in(store)
        assert store.lease("planter", 0) is None
        store._files_per_step = 0.5
        swarm.announce(2)
        assert store.lease("planter", 1) is None
        assert store.lease("planter", 2) is not None


def test_a_planter_needs_a_run_that_plants(tmp_path: Path) -> None:
    config = build_world("short").config
    with pytest.raises(ConfigError, match=r"ledger\.plants = 0"):
        start_planter(RunDir(tmp_path, config), JoinOptions("http://127.0.0.1:1"))
