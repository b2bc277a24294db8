"""`WeightChannel` of the trainer: publishes a version to its directory, then announces it to the coordinator."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.client.client import CoordinatorClient
from shoal.errors import WeightsError
from shoal.protocol.stores import Version
from shoal.protocol.version_directory import DirectoryChannel


class AnnouncedChannel:
    """A `WeightChannel`: versions go to the directory first, and are announced when they are there."""

    def __init__(self, channel: DirectoryChannel, link: CoordinatorClient) -> None:
        self._channel = channel
        self._link = link

    @contextmanager
    def publish(self, number: int) -> Iterator[Path]:
        with self._channel.publish(number) as staging:
            yield staging
        self._announce(number)

    def retract(self, after: int) -> list[int]:
        """Takes versions back at both places, and announces what stays: a trainer that was killed may not have."""
        lost = {*self._channel.retract(after), *self._link.retract(after)}
        for number in self._channel.numbers():
            self._announce(number)
        return sorted(lost)

    def _announce(self, number: int) -> None:
        version = self._channel.version(number)
        if version is None:
            raise WeightsError(f"version {number}: was removed the moment it was published; is the run's disk shared?")
        self._link.announce(number, version.root, self._channel.table(number))

    def latest(self) -> Version | None:
        return self._channel.latest()

    def offered(self) -> Version | None:
        return self._channel.offered()

    def version(self, number: int) -> Version | None:
        return self._channel.version(number)

    def was_retracted(self, version: Version) -> bool:
        return self._channel.was_retracted(version)

    def fetch(self, version: Version) -> Path:
        return self._channel.fetch(version)

    def is_whole(self, number: int) -> bool:
        return self._channel.is_whole(number)
