"""Profile: how a node computes (hardware, engine, attention, number format, devices), under a stable name.

A node declares it when it joins. Nothing proves it, so nobody is judged by what it declared: a file is judged by the
noisiest of all profiles that its run admits.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal.errors import ConfigError

PART = r"[a-z0-9][a-z0-9.+_-]{0,47}"
NAME = re.compile(rf"{PART}/{PART}/{PART}/(float32|bfloat16)/tp[1-9][0-9]{{0,3}}")
EXAMPLE = "nvidia-h100-80gb-hbm3/vllm-0.11/flash-attn-3/bfloat16/tp8"
MAX_NAME = 180
Part = Annotated[str, Field(pattern=rf"^{PART}$")]


class Profile(BaseModel):
    """How a node computes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hardware: Part
    engine: Part = Field(description="Name and version, such as vllm-0.11.")
    attention: Part
    dtype: Literal["float32", "bfloat16"]
    devices: int = Field(1, ge=1, le=9999, description="Degree of tensor parallelism.")

    @property
    def name(self) -> str:
        return f"{self.hardware}/{self.engine}/{self.attention}/{self.dtype}/tp{self.devices}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """The profile of a name; a ConfigError that names the part, its value and the rule if it is not one."""
        parts = name.split("/")
        if len(parts) != len(cls.model_fields):
            raise ConfigError(f"profile {name!r:.{MAX_NAME}}: must be {'/'.join(cls.model_fields)}, as in {EXAMPLE}")
        *others, devices = parts
        # Only the one spelling that `name` has: tp01 would be a second name of tp1.
        count = devices.removeprefix("tp") if re.fullmatch(r"tp[1-9][0-9]{0,3}", devices) else None
        try:
            found = dict(zip(cls.model_fields, [*others, count or 0], strict=True))
            return cls.model_validate(found)
        except ValidationError as error:
            field = str(error.errors()[0]["loc"][0])
            value = parts[list(cls.model_fields).index(field)]
            raise ConfigError(f"profile {name!r:.{MAX_NAME}}: {field} {value!r:.60} {RULES[field]}; {HOW}") from None


_PART_RULE = "must be 1 to 48 lower-case letters, digits, dots, dashes, + or _, and begin with a letter or digit"
RULES = {
    "hardware": _PART_RULE,
    "engine": _PART_RULE,
    "attention": _PART_RULE,
    "dtype": "must be float32 or bfloat16",
    "devices": "must be tp and the number of devices from 1 to 9999, as in tp8",
}
HOW = f"write it as in {EXAMPLE}"


def slug(text: str) -> str:
    """Any text as one part of a profile's name."""
    return re.sub(r"[^a-z0-9.+]+", "-", text.lower()).strip("-.+")[:48].rstrip("-.+") or "unknown"
