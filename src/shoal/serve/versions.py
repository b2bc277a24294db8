"""Which versions of a run are offered under which model names: NAME is the newest, NAME@12 is version 12."""

import json
import re
from pathlib import Path

from shoal.files import parse_json, read_regular
from shoal.openai_api.errors import ApiError
from shoal.openai_api.responses import model_entry
from shoal.protocol.stores import Version
from shoal.protocol.version_directory import MANIFEST, DirectoryChannel, folder_name

NUMBER = re.compile(r"[0-9]{1,9}")
MAX_NAMED = 20


class Versions:
    """The versions in a run's directory, read from its files each time: a live run has others a minute later."""

    def __init__(self, name: str, weights: Path, pinned: int | None = None) -> None:
        """With `pinned`, NAME means that version and no other is offered."""
        self.name, self.pinned = name, pinned
        self._weights = weights
        self.channel = DirectoryChannel(weights, keep=1)  # never published to: nothing is removed through it

    def newest(self) -> Version | None:
        """What NAME means now."""
        return self.channel.latest() if self.pinned is None else self.channel.version(self.pinned)

    def find(self, number: int | None) -> Version:
        """The version of this number, or the newest one for None; an ApiError that says which there are."""
        version = self.newest() if number is None else self.channel.version(number)
        if version is None:
            raise self._unknown(self.name if number is None else f"{self.name}@{number}")
        return version

    def parse(self, model: str) -> int | None:
        """The number that a model name asks for; None for the newest, whichever that is when its turn comes."""
        name, at, number = model.rpartition("@")
        if model == self.name:
            return self.pinned
        if not at or name != self.name or not NUMBER.fullmatch(number):
            raise self._unknown(model)
        self._check_pinned(model, int(number))
        return self.find(int(number)).number

    def label(self, version: Version) -> str:
        return f"{self.name}@{version.number}"

    def entries(self, max_len: int) -> list[dict[str, object]]:
        """The list of models: the newest first, under the run's name and under its own."""
        numbers = self.channel.numbers() if self.pinned is None else [self.pinned]
        named = [(f"{self.name}@{number}", number) for number in reversed(numbers)]
        whole = [(self.name, named[0][1]), *named] if named else []
        return [model_entry(name, self._created(number), max_len, "shoal") for name, number in whole]

    def _check_pinned(self, model: str, number: int) -> None:
        if self.pinned is not None and number != self.pinned:
            raise self._unknown(model)

    def _created(self, number: int) -> int:
        try:
            return int(parse_json(read_regular(self._weights / folder_name(number) / MANIFEST))["time"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return 0

    def _unknown(self, model: str) -> ApiError:
        numbers = self.channel.numbers() if self.pinned is None else [self.pinned]
        there = ", ".join(f"{self.name}@{number}" for number in numbers[-MAX_NAMED:])
        return ApiError(
            404,
            f"model {json.dumps(model[:80])} does not exist; {self.name} is the newest version, and there are: {there}",
            param="model",
            code="model_not_found",
        )
