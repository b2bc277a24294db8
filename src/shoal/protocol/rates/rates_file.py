"""Rates file: honest rates that a calibration measured, the model they belong to, and how many tokens they rest on.

The model is told by its architecture, not by its weights, which a run trains: rates are in multiples of the noise that
a judge measures on the weights at hand. Files of one model add up, whichever machines measured them.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shoal.errors import ConfigError
from shoal.files import parse_json, read_regular, write_whole
from shoal.protocol.profile import MAX_NAME, PART
from shoal.protocol.rates.honest_rates import HonestRates

# Changes with what a histogram counts: EDGES of its scale, and the length of a unit of tokens.
FORMAT = 1
# The kind of a doctor's report, which holds rates among other things.
REPORT: Literal["shoal-report"] = "shoal-report"
MAX_FILE = 4 << 20
MAX_WAYS = 1000
MAX_MODEL = 200
Way = Annotated[str, Field(max_length=MAX_NAME, pattern=rf"^{PART}(/{PART}){{0,4}}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 53)]


class Architecture(BaseModel):
    """What of a model stays the same while it is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str = Field(max_length=80)
    hidden: Count
    layers: Count
    heads: Count
    kv_heads: Count
    feed_forward: Count
    vocab: Count

    @classmethod
    def of(cls, config: Mapping[str, Any], origin: str) -> Self:
        """From a transformers config. What older ones leave out follows from the rest."""
        heads = config.get("num_attention_heads")
        try:
            return cls(
                kind=config["model_type"],
                hidden=config["hidden_size"],
                layers=config["num_hidden_layers"],
                heads=heads,
                kv_heads=config.get("num_key_value_heads") or heads,
                feed_forward=config.get("intermediate_size") or 0,
                vocab=config["vocab_size"],
            )
        except (KeyError, ValidationError) as error:
            raise ConfigError(f"{origin}: does not say what the model is made of ({_fault(error)})") from None

    def __str__(self) -> str:
        return (
            f"{self.kind} of {self.layers} layers, hidden size {self.hidden}, {self.heads}/{self.kv_heads} heads, "
            f"feed-forward {self.feed_forward}, vocabulary {self.vocab}"
        )


class RatesFile(BaseModel):
    """What one or more calibrations of one model have measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    model: str = Field(max_length=MAX_MODEL, description="What people call it.")
    architecture: Architecture
    tokens: Mapping[Way, Count] = Field(min_length=1, max_length=MAX_WAYS, description="By way or profile.")
    rates: HonestRates

    @model_validator(mode="after")
    def _covers_the_same_ways(self) -> Self:
        for kind in HonestRates.model_fields:
            if (found := set(getattr(self.rates, kind))) != set(self.tokens):
                odd = sorted(found ^ set(self.tokens))[0]
                raise ValueError(f"{kind}: {odd!r:.80} has tokens and no histogram, or the other way round")
        for kind in ("gaps", "chunks"):  # shares; of shortfalls there may be more than close calls were expected
            for way, histogram in getattr(self.rates, kind).items():
                if histogram.above[0] > histogram.count:
                    raise ValueError(f"{kind}: {way!r:.80} has {histogram.above[0]} of {histogram.count:g} off by more")
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """A file, or a ConfigError that names it and what is wrong."""
        try:
            tree = parse_json(read_regular(path, MAX_FILE))
        except OSError as error:
            raise ConfigError(f"rates {path}: cannot be read ({error.strerror}); shoal calibrate writes one") from None
        except (ValueError, RecursionError):
            raise ConfigError(f"rates {path}: not valid JSON; give a file that shoal calibrate wrote") from None
        if isinstance(tree, dict) and tree.get("kind") == REPORT:
            if tree.get("rates") is None:
                raise ConfigError(f"rates {path}: a report without rates; its step rates failed or was left out")
            tree = tree["rates"]
        return cls.of(tree, f"rates {path}")

    @classmethod
    def of(cls, tree: Any, origin: str) -> Self:
        found = tree.get("format") if isinstance(tree, dict) else None
        if found != FORMAT:
            raise ConfigError(
                f"{origin}: has format {found!r:.20}, this release reads {FORMAT}; measure again with shoal calibrate"
            )
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise ConfigError(f"{origin}: not a valid rates file ({_fault(error)})") from None

    def write(self, path: Path) -> None:
        write_whole(path, json.dumps(self.model_dump(mode="json")).encode())

    def merged(self, other: Self, own: str, others: str) -> Self:
        """The counts of both; a ConfigError that names both if they are of two models."""
        if self.architecture != other.architecture:
            raise ConfigError(
                f"{others}: measured on {other.model} ({other.architecture}), but {own} on {self.model} "
                f"({self.architecture}); rates of two models do not add up, keep them in two files"
            )
        names = [*self.tokens, *(name for name in other.tokens if name not in self.tokens)]
        tokens = {name: self.tokens.get(name, 0) + other.tokens.get(name, 0) for name in names}
        try:
            rates = self.rates + other.rates
            return type(self)(model=self.model, architecture=self.architecture, tokens=tokens, rates=rates)
        except ValidationError as error:
            raise ConfigError(
                f"{others}: together with {own} it is not a valid rates file ({_fault(error)}); keep them in two files"
            ) from None

    def must_be_of(self, architecture: Architecture, origin: str, whose: str) -> None:
        """A ConfigError that names both models if it was measured on another."""
        if self.architecture != architecture:
            raise ConfigError(
                f"{origin}: measured on {self.model} ({self.architecture}), but {whose} has a {architecture}; "
                "measure it with shoal calibrate"
            )


def read_architecture(model: Path) -> Architecture:
    """The architecture of a model directory."""
    try:
        tree = parse_json(read_regular(model / "config.json"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"model {model}: no readable config.json there ({error})") from None
    return Architecture.of(tree if isinstance(tree, dict) else {}, f"model {model}")


def merge_files(paths: list[Path]) -> RatesFile:
    """The sum of rates files of one model."""
    first, *others = paths
    total = RatesFile.read(first)
    counted = [(first, total)]
    for path in others:
        found = RatesFile.read(path)
        total = total.merged(found, f"rates {first}", f"rates {path}")
        for before, same in counted:
            if (found.tokens, found.rates) == (same.tokens, same.rates):
                raise ConfigError(
                    f"rates {path}: has the same counts as {before}; give each once, or they seem too sure"
                )
        counted.append((path, found))
    return total


def _fault(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f"{error.args[0]} is missing" if error.args else type(error).__name__
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
