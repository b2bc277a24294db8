"""Chosen versions stay available however fast the trainer removes them, and are what was published last."""

from pathlib import Path

import pytest

from shoal.evals.kept_versions import Chosen
from shoal.protocol.stores import Version
from shoal.protocol.version_directory import DirectoryChannel, folder_name
from tests.support.until import until


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return tmp_path / "weights"


def publish(weights: Path, number: int, data: bytes = b"weights", keep: int = 2) -> Version:
    channel = DirectoryChannel(weights, keep)
    with channel.publish(number) as staging:
        (staging / "model.safetensors").write_bytes(data * (number + 1))
    version = channel.version(number)
    assert version is not None
    return version


def test_what_was_chosen_outlives_the_trainers_own(weights: Path, tmp_path: Path) -> None:
    with Chosen(weights, tmp_path / "evals", [1, 3, 9]) as chosen:
        published = []
        for number in range(8):
            published.append(publish(weights, number))
            if number in (1, 3):
                until((tmp_path / "evals" / folder_name(number)).exists)
        assert DirectoryChannel(weights, 2).numbers() == [0, 6, 7]
        for number in (1, 3):
            version = chosen.first()
            assert version == published[number]
            assert (chosen.fetch(version) / "model.safetensors").read_bytes() == b"weights" * (number + 1)
            chosen.drop(number)
        assert chosen.first() is None
        assert chosen.missed() == []
        assert not chosen.is_over
    assert list((tmp_path / "evals").iterdir()) == []


def test_a_version_aside_takes_no_room_of_its_own(weights: Path, tmp_path: Path) -> None:
    version = publish(weights, 1)
    with Chosen(weights, tmp_path / "evals", [1]) as chosen:
        file = chosen.fetch(version) / "model.safetensors"
        assert file.stat().st_ino == (weights / "v000001" / "model.safetensors").stat().st_ino


def test_one_that_was_taken_back_is_not_evaluated_but_what_came_in_its_place(weights: Path, tmp_path: Path) -> None:
    first = publish(weights, 1)
    with Chosen(weights, tmp_path / "evals", [1]) as chosen:
        assert chosen.first() == first
        DirectoryChannel(weights, 2).retract(after=0)
        assert chosen.first() is None
        second = publish(weights, 1, b"others")
        assert chosen.first() == second != first
        assert (chosen.fetch(second) / "model.safetensors").read_bytes() == b"others" * 2


def test_one_that_came_and_went_unseen_is_told(weights: Path, tmp_path: Path) -> None:
    for number in range(5):
        publish(weights, number)
    with Chosen(weights, tmp_path / "evals", [2, 4, 6]) as chosen:
        assert chosen.missed() == [2]
        assert chosen.first() == DirectoryChannel(weights, 2).version(4)


def test_what_a_killed_evaluator_left_is_cleared_away(weights: Path, tmp_path: Path) -> None:
    publish(weights, 1)
    Chosen(weights, tmp_path / "evals", [1]).look()
    assert [path.name for path in (tmp_path / "evals").iterdir()] == ["v000001"]
    with Chosen(weights, tmp_path / "evals", [5]):
        assert list((tmp_path / "evals").iterdir()) == []
