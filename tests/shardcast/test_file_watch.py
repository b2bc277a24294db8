"""Who waits for a file is woken when it changes, and nothing is looked at that nobody waits for."""

import asyncio
from pathlib import Path

from shoal.shardcast.serve.file_watch import Watch, state


def test_a_waiter_is_woken_by_a_change_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"

    async def main() -> float:
        loop = asyncio.get_running_loop()
        watch = Watch()
        waiters = [asyncio.ensure_future(watch.changed(path, state(path), loop.time() + 20)) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert not any(waiter.done() for waiter in waiters)
        assert watch.watched == 1
        path.write_bytes(b"x")
        began = loop.time()
        await asyncio.gather(*waiters)
        return loop.time() - began

    assert asyncio.run(main()) < 10


def test_files_that_never_come_are_not_looked_at_for_ever(tmp_path: Path) -> None:
    async def main() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        watch = Watch()
        names = [tmp_path / f"{number:06d}" for number in range(200)]
        waiting = [asyncio.ensure_future(watch.changed(name, (0, 0), loop.time() + 4)) for name in names]
        gone = asyncio.ensure_future(watch.changed(tmp_path / "other", (0, 0), loop.time() + 60))
        await asyncio.sleep(0)
        most = watch.watched
        gone.cancel()
        await asyncio.gather(*waiting)
        return most, watch.watched

    assert asyncio.run(main()) == (201, 0)


def test_a_watch_that_is_closed_lets_everyone_go_at_once(tmp_path: Path) -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        watch = Watch()
        waiters = [asyncio.ensure_future(watch.changed(tmp_path / name, (0, 0), loop.time() + 60)) for name in "abc"]
        await asyncio.sleep(0.05)
        began = loop.time()
        watch.close()
        await asyncio.gather(*waiters, watch.changed(tmp_path / "d", (0, 0), loop.time() + 60))
        return loop.time() - began

    assert asyncio.run(main()) < 10
