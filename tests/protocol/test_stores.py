"""The newest version of a source whose versions are taken back."""

from pathlib import Path

import pytest

from shoal.errors import WeightsError
from shoal.protocol.stores import Version, newest_of

ONE, TWO = Version(5, "first content"), Version(5, "second content")


class Source:
    """Has nothing here until what it offers is fetched; the first offers of `gone` are taken back meanwhile."""

    def __init__(self, offers: list[Version], gone: int = 0) -> None:
        self.offers, self.gone = offers, gone
        self.here: Version | None = None

    def latest(self) -> Version | None:
        return self.here

    def offered(self) -> Version | None:
        return self.offers[0] if self.offers else None

    def version(self, number: int) -> Version | None:
        del number
        return self.here

    def was_retracted(self, version: Version) -> bool:
        return version != self.here

    def fetch(self, version: Version) -> Path:
        if self.gone:
            self.gone -= 1
            self.offers = self.offers[1:] or self.offers
            raise WeightsError(f"version {version.number}: taken back")
        self.here = version
        return Path("v")


def test_a_version_that_takes_the_place_of_those_taken_back_is_waited_for() -> None:
    assert newest_of(Source([TWO])) == TWO
    assert newest_of(Source([ONE, TWO], gone=1)) == TWO


def test_a_version_that_is_offered_and_does_not_come_is_an_error() -> None:
    with pytest.raises(WeightsError, match="version 5: taken back"):
        newest_of(Source([ONE], gone=1))


def test_a_source_without_any_version_says_what_to_do() -> None:
    with pytest.raises(WeightsError, match="no policy version is published; prepare the run with shoal run"):
        newest_of(Source([]))
