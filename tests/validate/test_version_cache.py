"""The weights that files are computed with, and those of the version before, whichever were needed last."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.errors import WeightsError
from shoal.models import version_reader
from shoal.models.load import Policy
from shoal.protocol.stores import Version
from shoal.validate.judging.version_cache import VersionCache

VERSIONS = [Version(number, f"root {number}") for number in range(6)]


class Channel:
    """Has all versions but those that are gone."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.fetched: list[int] = []

    def version(self, number: int) -> Version | None:
        return VERSIONS[number]

    def fetch(self, version: Version) -> Path:
        self.fetched.append(version.number)
        if version.number in self.gone:
            raise WeightsError(f"version {version.number}: not available")
        return Path(str(version.number))


@pytest.fixture
def channel() -> Channel:
    return Channel()


@pytest.fixture
def cache(channel: Channel, tiny_policy: Policy, monkeypatch: pytest.MonkeyPatch) -> VersionCache:
    def read(folder: Path, _dtype: str) -> dict[str, torch.Tensor]:
        return {name: torch.full_like(weights, float(folder.name)) for name, weights in tiny_policy.weights().items()}

    monkeypatch.setattr(version_reader, "read_weights", read)
    holds: Any = channel
    return VersionCache(holds, tiny_policy, VERSIONS[0], "float32", size=2)


def number_of(weights: Mapping[str, torch.Tensor] | None) -> float | None:
    return None if weights is None else float(next(iter(weights.values())).flatten()[0])


def test_the_version_before_is_there_though_nothing_was_computed_with_it(cache: VersionCache, channel: Channel) -> None:
    assert cache.before(VERSIONS[0]) is None
    cache.load(VERSIONS[1])
    assert number_of(cache.before(VERSIONS[1])) == 0, "the one that was loaded at the start"
    cache.load(VERSIONS[5])
    assert number_of(cache.before(VERSIONS[5])) == 4
    assert number_of(cache.policy.weights()) == 5, "what is loaded stays loaded"
    assert channel.fetched == [1, 0, 5, 4]
    assert len(cache.kept) == 2


@pytest.mark.parametrize("gone", [False, True])
def test_the_files_that_the_listener_was_told_of_are_held_beside_the_version_before(
    cache: VersionCache, channel: Channel, gone: bool
) -> None:
    """A channel holds what it was last asked for; vLLM reads files when states are asked for, and again if it died."""
    told: list[tuple[int, Path]] = []
    cache.on_load = lambda version, folder: told.append((version.number, folder))
    cache.load(VERSIONS[3])
    if gone:
        channel.gone.add(2)
    for _ in range(2):
        assert (cache.before(VERSIONS[3]) is None) == gone
        assert channel.fetched[-1] == 3
    assert set(told) == {(3, Path("3"))}


def test_a_version_before_that_is_gone_is_not_compared_with(cache: VersionCache, channel: Channel) -> None:
    channel.gone.add(2)
    cache.load(VERSIONS[3])
    assert cache.before(VERSIONS[3]) is None
    with pytest.raises(WeightsError, match="version 2"):
        cache.load(VERSIONS[2])
    assert cache.loaded == VERSIONS[3]


def test_who_is_told_of_loads_is_told_again_of_one_that_failed_and_the_policy_stays_right(cache: VersionCache) -> None:
    told: list[int] = []

    def hear(version: Version, _folder: Path) -> None:
        if not told:
            told.append(-1)
            raise WeightsError("not available for a moment")
        told.append(version.number)

    cache.on_load = hear
    with pytest.raises(WeightsError):
        cache.load(VERSIONS[1])
    cache.load(VERSIONS[1])
    assert told == [-1, 1]
    cache.load(VERSIONS[0])
    assert told == [-1, 1, 0]
    assert number_of(cache.policy.weights()) == 0


def test_after_a_load_that_failed_half_way_the_version_before_is_loaded_again(cache: VersionCache) -> None:
    """The policy has the new weights by then: it must not be taken for the version before."""

    def fail(_version: Version, _folder: Path) -> None:
        raise WeightsError("not available")

    cache.on_load = fail
    with pytest.raises(WeightsError):
        cache.load(VERSIONS[1])
    cache.load(VERSIONS[0])
    assert number_of(cache.policy.weights()) == 0
