"""Documents are made once per revision, however many ask; a flood of different ones is refused instead of queued."""

import asyncio
import threading

import pytest

from shoal.page.documents import MAX_KEPT, MAX_WAITING, Busy, Documents, to_json


def test_many_who_ask_at_once_get_one_document_that_was_made_once() -> None:
    made: list[int] = []

    def make(n: int) -> object:
        made.append(n)
        return {"n": n}

    async def ask() -> list[bytes]:
        documents = Documents()
        answers = await asyncio.gather(*[documents.get("run", 1, lambda: make(1)) for _ in range(50)])
        answers.append(await documents.get("run", 1, lambda: make(2)))
        answers.append(await documents.get("run", 2, lambda: make(3)))
        documents.close()
        return answers

    assert asyncio.run(ask()) == [b'{"n":1}'] * 51 + [b'{"n":3}']
    assert made == [1, 3]


def test_a_document_that_cannot_be_made_is_tried_again_for_the_next_who_asks() -> None:
    async def ask() -> bytes:
        documents = Documents()
        with pytest.raises(OSError, match="gone"):
            await documents.get("run", 1, fail)
        return await documents.get("run", 1, lambda: "found")

    def fail() -> object:
        raise OSError("gone")

    assert asyncio.run(ask()) == b'"found"'


def test_more_different_documents_than_can_wait_are_refused_and_memory_is_bounded() -> None:
    release = threading.Event()

    async def ask() -> None:
        documents = Documents()
        waiting = [asyncio.create_task(documents.get(n, 1, lambda: release.wait(10))) for n in range(MAX_WAITING)]
        await asyncio.sleep(0.01)
        with pytest.raises(Busy):
            await documents.get("one more", 1, lambda: 1)
        release.set()
        await asyncio.gather(*waiting)
        for n in range(3 * MAX_KEPT):
            await documents.get(("many", n), 1, lambda: "x" * 1000)
        assert len(documents._kept) <= MAX_KEPT
        documents.close()

    asyncio.run(ask())


def test_half_a_character_of_a_stranger_never_breaks_a_document() -> None:
    assert b"\\ud83d" in to_json({"text": "\ud83d"})
