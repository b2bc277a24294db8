"""MachineLimits of a lent machine: how a person writes them, and which are too small to mean anything."""

import re
from dataclasses import dataclass, fields

from shoal.errors import ConfigError

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?(b|bit)?", re.IGNORECASE)
# Below these no worker of any model does anything: Python and torch alone take some 400 MB, and servers cut off a line
# of less than 16 KiB per second per connection.
MIN_MEMORY, MIN_DISK, MIN_LINE, MIN_GPU = 500 * 10**6, 10 * 10**6, 64 * 10**3, 500 * 10**6


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """What a worker may use of a machine, in bytes and bytes per second; None for as much as it likes."""

    threads: int | None = None
    memory: int | None = None
    disk: int | None = None
    upload: int | None = None
    download: int | None = None
    gpu_memory: int | None = None

    def __post_init__(self) -> None:
        least = {
            "memory": MIN_MEMORY,
            "disk": MIN_DISK,
            "upload": MIN_LINE,
            "download": MIN_LINE,
            "gpu_memory": MIN_GPU,
        }
        for name, bound in {"threads": 1, **least}.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                shown = str(value) if name == "threads" else show_size(value)
                fewest = str(bound) if name == "threads" else show_size(bound)
                raise ConfigError(f"--{name.replace('_', '-')} {shown}: no worker can keep that; give {fewest} or more")

    def flags(self) -> list[str]:
        """As `shoal worker` takes them."""
        found = [(field.name.replace("_", "-"), getattr(self, field.name)) for field in fields(self)]
        return [text for name, value in found if value is not None for text in (f"--{name}", str(value))]

    def shown(self) -> dict[str, str]:
        """Name and value of each limit that is set, for people."""
        found = {}
        for field in fields(self):
            if (value := getattr(self, field.name)) is not None:
                per_s = "/s" * (field.name in ("upload", "download"))
                found[field.name] = str(value) if field.name == "threads" else show_size(value) + per_s
        return found


NO_LIMITS = MachineLimits()


def parse_size(text: str, what: str) -> int:
    """Bytes of "8G", "500 MB", "1.5GiB" or "20Mbit"; a ConfigError that names `what` otherwise."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{what} {text!r:.40}: is not a size; write it as 8G, 500M or 1.5GiB, and a line also as 20Mbit"
        )
    number, unit, kind = match.groups()
    size = float(number) * UNITS[(unit or "").lower()] / (8 if (kind or "").lower() == "bit" else 1)
    if size >= 2**60:
        raise ConfigError(f"{what} {text!r:.40}: is more than any machine has; write it as 8G, 500M or 1.5GiB")
    return int(size)


def show_size(size: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"
