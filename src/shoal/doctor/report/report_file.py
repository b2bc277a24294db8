"""The report file: what was run on which hardware and how it went, in one JSON file that can be sent and merged.

Its `rates` are a rates file as `shoal calibrate` writes it, so `shoal calibrate merge` takes a report as it is.
"""

import json
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal.doctor.report.private import cleaned_tree
from shoal.errors import ConfigError
from shoal.files import parse_json, read_regular, write_whole
from shoal.protocol.rates.rates_file import MAX_FILE, REPORT, RatesFile

FORMAT = 1
Status = Literal["passed", "failed", "skipped"]


class StepResult(BaseModel):
    """How one step went."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    status: Status
    seconds: float
    reason: str = ""
    """Why it failed or was skipped."""
    values: dict[str, float | int | str | bool] = Field(default_factory=dict)


class Machine(BaseModel):
    """What the steps ran on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    system: str
    cores: int
    memory: int | None
    devices: list[str]
    """Names of the GPUs, or of the processor's instruction set."""
    device: str
    driver: str
    cuda: str
    torch: str
    vllm: str
    triton: str
    transformers: str
    python: str


class Report(BaseModel):
    """One run of `shoal doctor --report`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["shoal-report"] = REPORT
    format: Literal[1] = 1
    shoal: str
    model: str
    """The architecture of the model that was used."""
    machine: Machine
    steps: list[StepResult]
    rates: RatesFile | None

    @classmethod
    def read(cls, path: Path) -> Self:
        """A report, or a ConfigError that names the file and what is wrong."""
        try:
            return cls.model_validate(parse_json(read_regular(path, MAX_FILE)))
        except OSError as error:
            raise ConfigError(f"report {path}: cannot be read ({error.strerror}); shoal doctor writes one") from None
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"]))
            raise ConfigError(f"report {path}: not a report of this release ({where}: {fault['msg']})") from None
        except (ValueError, RecursionError):
            raise ConfigError(f"report {path}: not valid JSON; give a file that shoal doctor --report wrote") from None

    def write(self, path: Path) -> None:
        """Writes it without anything private; what cleaning would break is written as it is."""
        tree = self.model_dump(mode="json")
        rates = tree.pop("rates")  # histograms under names of profiles, which look like paths and are none
        write_whole(path, (json.dumps(cleaned_tree(tree) | {"rates": rates}, indent=1) + "\n").encode())
