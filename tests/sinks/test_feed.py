"""The feeder hands each row over once, whenever it is started and however it ended before."""

import threading
from pathlib import Path

import pytest

from shoal.errors import MissingExtraError, StorageError
from shoal.files import locked
from shoal.sinks.feed import FOLDER, feed, feed_run, sinks_of
from shoal.sinks.rows import Row
from shoal.sinks.sink import Journal
from shoal.watch.history import History
from tests.support.command import shoal
from tests.support.sink_runs import files_of, make_config, write_run, write_step


class Listed:
    """A sink in memory that remembers by a journal, as Weights & Biases' does, and fails at a row if told to."""

    def __init__(self, file: Path, taken: list[tuple[str, int]], fail_at: int | None = None) -> None:
        self.journal, self.taken, self.fail_at = Journal(file), taken, fail_at
        self.flushed = threading.Event()

    def has(self, row: Row) -> bool:
        return self.journal.has(row)

    def write(self, row: Row) -> None:
        self.journal.note(row)
        if row.number == self.fail_at:
            raise OSError("the sink is gone")
        self.taken.append((row.group, row.number))

    def flush(self) -> None:
        self.flushed.set()

    def close(self) -> None:
        self.journal.close()


def fed(run: Path, taken: list[tuple[str, int]], fail_at: int | None = None) -> int:
    return feed(History(run), Listed(run / "rows.txt", taken, fail_at), threading.Event(), follow=False)


def test_a_finished_run_is_fed_whole_and_a_second_time_nothing_goes(tmp_path: Path) -> None:
    run, taken = write_run(tmp_path / "run", 12), list[tuple[str, int]]()
    assert fed(run.path, taken) == 15
    assert sorted(taken) == [("eval", n) for n in (0, 5, 10)] + [("train", n) for n in range(12)]
    assert fed(run.path, taken) == 0
    write_step(run, 12)
    assert fed(run.path, taken) == 1


def test_a_feeder_that_fails_at_a_row_goes_on_after_it_and_doubles_none(tmp_path: Path) -> None:
    run, taken = write_run(tmp_path / "run", 10), list[tuple[str, int]]()
    with pytest.raises(OSError, match="gone"):
        fed(run.path, taken, fail_at=3)
    fed(run.path, taken)
    assert len(taken) == len(set(taken))
    assert {n for group, n in taken if group == "train"} == set(range(10)) - {3}


def test_a_step_that_a_killed_trainer_makes_again_is_no_second_point(tmp_path: Path) -> None:
    run, taken = write_run(tmp_path / "run", 4), list[tuple[str, int]]()
    fed(run.path, taken)
    write_step(run, 3, reward=0.5)
    assert fed(run.path, taken) == 0


def test_a_journal_with_a_torn_end_forgets_that_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    with Journal(file) as journal:
        journal.note(Row("train", 1, 0.0, {}))
    with file.open("ab") as torn:
        torn.write(b"train 1")
    with Journal(file) as journal:
        assert journal.has(Row("train", 1, 0.0, {}))
        assert not journal.has(Row("train", 11, 0.0, {}))
        journal.note(Row("train", 12, 0.0, {}))
    assert file.read_bytes() == b"train 1\ntrain 12\n"


def test_a_feeder_follows_until_it_is_stopped_and_then_takes_what_is_left(tmp_path: Path) -> None:
    run, taken, stop = write_run(tmp_path / "run", 2), list[tuple[str, int]](), threading.Event()
    sink = Listed(tmp_path / "rows.txt", taken)
    thread = threading.Thread(target=feed, args=(History(run.path), sink, stop), kwargs={"follow": True, "look_s": 60})
    thread.start()
    assert sink.flushed.wait(60)
    write_step(run, 2)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert ("train", 2) in taken


def test_feeding_writes_nothing_but_the_sinks_own_files(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 5)
    before = files_of(run.path)
    feed(History(run.path), Listed(run.path / FOLDER / "rows.txt", []), threading.Event(), follow=False)
    assert files_of(run.path) == before


def test_two_feeders_of_one_sink_would_double_points_and_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.sinks.feed.TAKEOVER_S", 0.1)
    run = write_run(tmp_path / "run", 1)
    (run.path / FOLDER).mkdir()
    with locked(run.path / FOLDER / "wandb.lock", "taken"):
        result = shoal(tmp_path, "feed", str(run.path), "wandb")
    assert result.returncode == 3
    assert f"feed {run.path} wandb: another process feeds it; stop that one first" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["excel"], "feed excel: unknown sink; give one of tensorboard, trackio, wandb"),
        (["wandb", "--set", "train.lr=1"], "--set train.lr=1: shoal feed takes settings of [log] alone"),
        (["wandb", "--set", "log.wandb.projct=x"], "log.wandb.projct = 'x': unknown key; did you mean log.wandb.proj"),
    ],
)
def test_what_cannot_be_fed_is_refused_by_name(tmp_path: Path, arguments: list[str], said: str) -> None:
    run = write_run(tmp_path / "run", 1)
    result = shoal(tmp_path, "feed", str(run.path), *arguments)
    assert result.returncode == 3
    assert said in " ".join(result.stderr.split())


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    result = shoal(tmp_path, "feed", str(tmp_path), "tensorboard")
    assert result.returncode == 3
    assert "not a run" in result.stderr


def test_a_sink_whose_package_is_missing_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    monkeypatch.setattr("shoal.extras.is_installed", lambda name: name != "wandb")
    run = write_run(tmp_path / "run", 1)
    with pytest.raises(MissingExtraError, match=r"log.wandb: needs wandb; run: pip install 'shoal-rl\[wandb\]'"):
        feed_run(run.path, "wandb", [], Console(), follow=False)


def test_a_config_names_any_number_of_sinks() -> None:
    assert sinks_of(make_config().log) == []
    log = make_config(log={"wandb": {"project": "p"}, "tensorboard": {}}).log
    assert sinks_of(log) == ["tensorboard", "wandb"]


def test_strangers_never_learn_where_the_owner_looks_at_curves() -> None:
    from shoal.config_io import public_tree

    assert "log" not in public_tree(make_config(log={"wandb": {"entity": "secret-team"}}))


def test_a_journal_that_cannot_be_kept_says_what_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is not a directory"):
        Journal(tmp_path / "file" / "rows.txt")
