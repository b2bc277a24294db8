"""Ranks are one child: they start together, and the end of one, with its name, is the end of all."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.process import EXIT_REFUSED, RENDEZVOUS
from shoal.roles.rank_group import RankGroup
from tests.support.until import until

# A rank that does what a file of its number says, once there is one, and otherwise waits for the others.
RANK = """
import os, sys, time
from pathlib import Path
from shoal.process import die_with_parent, say_last_words
die_with_parent()
rank, folder = os.environ["RANK"], Path(sys.argv[1])
(folder / f"started-{rank}").write_text(f"{os.getpid()} {os.environ['SHOAL_RENDEZVOUS']} {os.environ['WORLD_SIZE']}")
while not (folder / f"order-{rank}").exists():
    time.sleep(0.01)
code = int((folder / f"order-{rank}").read_text())
if code == 3:
    say_last_words("trainer: it cannot go on")
os._exit(code)
"""


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RankGroup]:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    group = RankGroup("trainer", ["-c", RANK, str(tmp_path)], 1, tmp_path / "trainer.log", 2)
    try:
        until(lambda: len(started(tmp_path)) == 2)
        yield group
    finally:
        group.stop(1.0)
        group.close()


def started(folder: Path) -> dict[int, list[str]]:
    """Process, meeting place and number of ranks of each rank that has begun."""
    files = sorted(folder.glob("started-*"))
    return {int(file.name[-1]): words for file in files if len(words := file.read_text().split()) == 3}


def order(folder: Path, rank: int, code: int) -> None:
    (folder / "order").write_text(str(code))
    (folder / "order").rename(folder / f"order-{rank}")


def test_ranks_meet_in_one_place_and_each_has_its_own_log(tmp_path: Path, group: RankGroup) -> None:
    first, second = started(tmp_path).values()
    assert first[1:] == second[1:]
    assert first[2] == "2"
    assert (tmp_path / "trainer.log").exists()
    assert (tmp_path / "trainer-rank-1.log").exists()
    assert group.poll() is None
    assert RENDEZVOUS == "SHOAL_RENDEZVOUS"


def test_a_rank_that_is_killed_ends_all_and_is_named(tmp_path: Path, group: RankGroup) -> None:
    group._ranks[1].process.kill()
    until(lambda: group.poll() is not None)
    assert group.poll() == -9
    assert group.last_words().startswith("trainer: rank 1 of 2 (process ")
    assert "was killed by SIGKILL, so the other ranks were ended" in group.last_words()
    until(lambda: all(rank.poll() is not None for rank in group._ranks))


def test_the_rank_that_says_why_is_the_cause_and_not_one_that_crashed_over_it(tmp_path: Path, group: RankGroup) -> None:
    order(tmp_path, 0, 1)
    order(tmp_path, 1, EXIT_REFUSED)
    until(lambda: all(rank.poll() is not None for rank in group._ranks))
    assert group.poll() == EXIT_REFUSED
    assert group.last_words() == "trainer: it cannot go on"


def test_it_has_ended_well_when_all_ranks_have(tmp_path: Path, group: RankGroup) -> None:
    order(tmp_path, 0, 0)
    until(lambda: group._ranks[0].poll() is not None)
    assert group.poll() is None
    order(tmp_path, 1, 0)
    until(lambda: group.poll() is not None)
    assert group.poll() == 0


def test_after_the_death_of_one_all_are_started_again_in_another_place(tmp_path: Path, group: RankGroup) -> None:
    before = started(tmp_path)
    group._ranks[0].process.kill()
    until(lambda: group.poll() is not None)
    for file in tmp_path.glob("started-*"):
        file.unlink()
    group.restart()
    until(lambda: len(started(tmp_path)) == 2)
    after = started(tmp_path)
    assert group.poll() is None
    assert not {words[0] for words in before.values()} & {words[0] for words in after.values()}
    assert before[0][1] != after[0][1] == after[1][1]
