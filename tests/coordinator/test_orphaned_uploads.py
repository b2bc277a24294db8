"""Objects that belong to no submission go after a while; one that an upload still needs never does."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.coordinator.orphaned_uploads import Orphans
from shoal.coordinator.uploads import Objects, incoming_name, object_name, place_in
from tests.support.coordinator_in_process import World, good_file, key_of
from tests.support.submissions import judge_formats
from tests.support.until import until

A = key_of("a")
HOUR_S = 3600.0


def uploads(world: World) -> list[str]:
    folder = world.path / "uploads"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@contextmanager
def tidying(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A coordinator, started again, that looks for orphans all the time."""
    monkeypatch.setattr("shoal.coordinator.coordinator.TIDY_EVERY_S", 0.02)
    world.stop()
    world.start()
    yield


def leave(world: World, name: str, data: bytes, age_s: float) -> Path:
    """What somebody left in the store some time ago."""
    path = world.path / "uploads" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    then = world.clock() - age_s
    os.utime(path, (then, then))
    return path


def test_what_no_submission_names_goes_and_all_else_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.announce()
    world.hand_in("a", world.take("a"))
    (own,) = uploads(world)
    lease = world.take("a")
    young = object_name(lease.step, lease.submission, "1" * 64)
    foreign = "step-000000/notes.txt"
    orphans = [
        object_name(lease.step, lease.submission, "2" * 64),  # never committed
        object_name(0, 0, "3" * 64),  # another file was
        incoming_name(lease.step, lease.submission, "2" * 64),  # sent, and nothing said
        f"{object_name(7, 7, '4' * 64)}#1",  # half-written
    ]
    for name in orphans:
        leave(world, name, b"x", 3 * HOUR_S)
    leave(world, foreign, b"x", 3 * HOUR_S)
    leave(world, own, (world.path / "uploads" / own).read_bytes(), 3 * HOUR_S)
    leave(world, young, b"x", 60)
    with tidying(world, monkeypatch):
        until(lambda: not set(orphans) & set(uploads(world)))
        assert uploads(world) == sorted([own, young, foreign])
        judge_formats(world.validator, 0, 2)
        assert len(list(world.trainer.accepted(0))) == 1


def test_what_a_coordinator_that_was_killed_before_its_commit_left_can_be_sent_again_or_goes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.announce()
    kept, lost = world.take("a"), world.take("b")
    with monkeypatch.context() as patch:

        async def killed(*_: object) -> bool:
            raise ConnectionAbortedError

        patch.setattr(world.coordinator, "take_upload", killed)
        for name, lease in (("a", kept), ("b", lost)):
            target = f"/v1/files/{lease.step}/{lease.submission}?signal=2"
            assert world.request(key_of(name), "PUT", target, content=good_file(lease)).status_code == 500
    assert len(uploads(world)) == 2
    for name in uploads(world):
        leave(world, name, (world.path / "uploads" / name).read_bytes(), 3 * HOUR_S)
    world.hand_in("a", kept)
    with tidying(world, monkeypatch):
        until(lambda: len(uploads(world)) == 1)
        judge_formats(world.validator, 0, 2)
        assert [submission.lease for submission in world.trainer.accepted(kept.step)] == [kept]
        world.hand_in("b", lost)
        assert len(uploads(world)) == 2


def test_a_step_that_was_forgotten_and_not_removed_goes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.announce()
    world.hand_in("a", world.take("a"))
    (own,) = uploads(world)
    data = (world.path / "uploads" / own).read_bytes()
    world.trainer.forget(before=1)
    leave(world, own, data, 3 * HOUR_S)  # as if it had been killed between the two
    with tidying(world, monkeypatch):
        until(lambda: not uploads(world))


async def nothing_is_named(names: Sequence[str]) -> list[str]:
    return list(names)


def play(path: Path, story: Callable[[Objects, Orphans], Awaitable[None]]) -> None:
    objects = Objects(path)
    asyncio.run(story(objects, Orphans(objects, nothing_is_named)))  # type: ignore[arg-type]


NAME = object_name(1, 2, "ab" * 32)


def test_an_object_that_is_in_hand_stays_until_it_is_let_go(tmp_path: Path) -> None:
    async def story(objects: Objects, orphans: Orphans) -> None:
        async with orphans.holding(NAME):
            await objects.put(NAME, b"x")
            async with orphans.holding(NAME):
                assert await orphans.sweep(time.time() + 1) == 0
            assert await orphans.sweep(time.time() + 1) == 0
            assert (tmp_path / NAME).exists()
        assert await orphans.sweep(time.time() + 1) == 1
        assert not (tmp_path / NAME).exists()

    play(tmp_path, story)


def test_an_upload_that_comes_while_its_name_is_removed_is_written_after_it(tmp_path: Path) -> None:
    async def story(objects: Objects, orphans: Orphans) -> None:
        began, go_on = asyncio.Event(), asyncio.Event()
        remove = objects.remove

        async def slowly(names: Sequence[str]) -> None:
            began.set()
            await go_on.wait()
            await remove(names)

        objects.remove = slowly  # type: ignore[method-assign, assignment]

        async def upload() -> None:
            async with orphans.holding(NAME):
                await objects.put(NAME, b"new")

        await objects.put(NAME, b"old")
        sweeping = asyncio.create_task(orphans.sweep(time.time() + 1))
        await began.wait()
        uploading = asyncio.create_task(upload())
        await asyncio.sleep(0.05)
        go_on.set()
        assert await sweeping == 1
        await uploading
        assert (tmp_path / NAME).read_bytes() == b"new"

    play(tmp_path, story)


@pytest.mark.parametrize("name", ["x", "step-000001/0002.parquet", "../step-000001/0002-" + "ab" * 32 + ".parquet"])
def test_what_is_not_named_like_ours_is_none_of_ours(name: str) -> None:
    assert place_in(name) is None


def test_names_say_what_they_are() -> None:
    assert place_in(NAME) == place_in(incoming_name(1, 2, "ab" * 32)) == (1, 2, "ab" * 32)
