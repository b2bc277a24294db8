"""Several validators of one owner: a file has one judge, a dead one's files go to the others, and all hear of all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from shoal.client.peer_notes import PeerNotes
from shoal.client.rollout_store import SwarmStore
from shoal.coordinator.node_states import QUIET_S
from shoal.protocol.judge_note import JudgeNote, WeighedNote
from shoal.protocol.refusal import Refusal
from shoal.protocol.stores import Upload
from shoal.protocol.verdict import Verdict
from shoal.validate.evidence.vote_log import Vote, Votes
from tests.support.coordinator_in_process import World, key_of, make_config

JUDGES = [key_of(f"judge-{n}") for n in range(3)]
MANY = {"train": {"groups_per_step": 64}, "swarm": {"heartbeat_s": 10.0}}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    config = make_config(**MANY, audit={"count": 3, "probation": 2})
    world = World(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", config, validators=[key.address for key in JUDGES])
    world.start()
    yield world
    world.end()


def stores(world: World) -> list[SwarmStore]:
    return [world.store(key, "validator") for key in JUDGES]


def handed_in(world: World, count: int) -> set[tuple[int, int]]:
    world.announce()
    places = set()
    for n in range(count):
        lease = world.take(f"node-{n}")
        world.hand_in(f"node-{n}", lease)
        places.add((lease.step, lease.submission))
    return places


def places(uploads: list[Upload]) -> set[tuple[int, int]]:
    return {(upload.step, upload.submission) for upload in uploads}


def accept(store: SwarmStore, upload: Upload, note: JudgeNote | None = None) -> None:
    _, sha256 = store.read(upload)
    store.judge(upload, Verdict(True, sha256, False, samples=8, tokens=64), note)


def test_each_file_is_one_validators_to_judge(world: World) -> None:
    all_of_them = handed_in(world, 24)
    judges = stores(world)
    for store in judges:
        assert len(store.waiting(0, 9, hand=1)) == 1
    shares = [places(store.waiting(0, 9, hand=99)) for store in judges]
    assert set.union(*shares) == all_of_them
    assert sum(map(len, shares)) == len(all_of_them)
    assert all(shares)
    assert all(places(store.waiting(0, 9)) == all_of_them for store in judges)


def beat(world: World, judges: list[SwarmStore], seconds: float) -> None:
    """Lets time pass, in which these validators alone are heard."""
    world.clock.ahead += seconds
    for store in judges:
        store._link.heartbeat("judging", "", 0)
    world.coordinator._database.ask(world.coordinator.sweep)


def test_files_of_a_validator_that_died_are_dealt_to_the_others(world: World) -> None:
    all_of_them = handed_in(world, 12)
    dead, *others = judges = stores(world)
    held = [places(store.waiting(0, 9, hand=4)) for store in judges]
    assert sum(map(len, held)) == len(all_of_them)
    beat(world, others, QUIET_S + 1)
    now = [places(store.waiting(0, 9, hand=99)) for store in others]
    assert set.union(*now) == all_of_them
    assert not now[0] & now[1]
    assert all(old <= new for old, new in zip(held[1:], now, strict=True))
    assert places(dead.waiting(0, 9, hand=99)) == held[0]  # should it come back


def test_files_of_a_validator_that_hangs_are_taken_over_after_a_deadline(world: World) -> None:
    """It still sends heartbeats, and gives no verdicts."""
    handed_in(world, 12)
    hung, *others = judges = stores(world)
    own = places(hung.waiting(0, 9, hand=4))
    for store in others:
        store.waiting(0, 9, hand=1)
    beat(world, judges, 5.0)
    for store in others:
        while uploads := store.waiting(0, 9, hand=4):
            for upload in uploads:
                accept(store, upload)
    assert places(hung.waiting(0, 9)) == own
    beat(world, judges, world.coordinator._turns.pace.late_s + 1)
    taken = [places(store.waiting(0, 9, hand=99)) for store in others]
    assert taken[0] | taken[1] == own
    assert not taken[0] & taken[1]


def test_notes_of_all_validators_come_in_the_order_of_verdicts(world: World, tmp_path: Path) -> None:
    handed_in(world, 9)
    given: list[tuple[str, int, int]] = []
    for store in stores(world):
        for upload in store.waiting(0, 9, hand=3):
            weighed = WeighedNote(nats={"gaps 1": -0.25}, tokens=64, rates=0)
            accept(store, upload, JudgeNote(letter="a", tokens=64, weighed=weighed))
            given.append((store._link.key.address, upload.step, upload.submission))
    votes = Votes(tmp_path / "votes.jsonl")
    peers = PeerNotes(world.link(JUDGES[0]), votes)
    notes = peers.fresh()
    assert [(note.judge, note.step, note.submission) for note in notes] == given
    assert all(note.ordinal == 1 and note.note.weighed for note in notes)
    assert peers.fresh() == []
    for note in notes:
        assert votes.of(note.step, note.submission) == Vote("a", note.sha256, 64)


def test_a_verdict_that_came_too_late_leaves_no_note(world: World, tmp_path: Path) -> None:
    handed_in(world, 1)
    judges = stores(world)
    (upload,) = judges[0].waiting(0, 9)
    accept(judges[0], upload, JudgeNote(letter="a", tokens=64))
    judges[1]._known.update(judges[0]._known)
    judges[1].judge(
        upload, Verdict(True, judges[0]._known[upload.step, upload.submission][0], False), JudgeNote(letter="v")
    )
    notes = PeerNotes(world.link(JUDGES[2]), Votes(tmp_path / "votes.jsonl")).fresh()
    assert [(note.judge, note.note.letter) for note in notes] == [(JUDGES[0].address, "a")]


@pytest.mark.parametrize(("own", "says"), [("v", "a"), ("r", "r"), (None, "a")])
def test_a_validator_that_came_too_late_with_void_votes_for_the_verdict_that_stands(
    world: World, tmp_path: Path, own: Literal["v", "r"] | None, says: str
) -> None:
    """Otherwise a file that was accepted and trained on would be unpaid, if this one is drawn for its step."""
    handed_in(world, 1)
    fast, *_ = stores(world)
    (upload,) = fast.waiting(0, 9)
    votes = Votes(tmp_path / "votes.jsonl")
    if own is not None:
        votes.note(upload.step, upload.submission, Vote(own, "ab" * 32))
    accept(fast, upload, JudgeNote(letter="a", tokens=64))
    PeerNotes(world.link(JUDGES[1]), votes).pull()
    vote = votes.of(upload.step, upload.submission)
    assert vote is not None
    assert vote.letter == says


def test_notes_are_for_validators_alone(world: World) -> None:
    handed_in(world, 1)
    with pytest.raises(Refusal, match="only this run's trainer and validators"):
        world.store(key_of("node-0"))._link.send("GET", "/v1/notes")


def test_a_nodes_files_are_numbered_in_the_order_of_their_uploads(world: World) -> None:
    world.announce()
    (judge, *_) = stores(world)
    for number in (1, 2, 3):
        lease = world.take("node")
        world.hand_in("node", lease)
        (upload,) = list(judge.waiting(0, 9))
        assert upload.ordinal == number
        accept(judge, upload)
