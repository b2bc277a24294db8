"""Signed lists of open runs, which anybody may host as a static file.

Each entry is signed by its run's coordinator and the whole by its publisher: a publisher can leave runs out but cannot
change what they say, and a host can do neither. All of it is text from strangers: bounded, and without characters that
steer a terminal. An entry that breaks a rule is left out and counted; the others are shown.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from shoal.config import RUN_NAME
from shoal.crypto.keys import Key, signer_of
from shoal.crypto.signed import canonical, message
from shoal.errors import IdentityError, SwarmError, first_line
from shoal.files import parse_json
from shoal.protocol.messages import Plain, Url
from shoal.protocol.run_card import Address
from shoal.text import one_line

ENTRY_DOMAIN, LIST_DOMAIN = "shoal run entry 1", "shoal run list 1"
SCHEMA: Final = 1
MAX_LIST_BYTES = 4 << 20
MAX_RUNS = 2000
DAY_S = 86_400
MAX_DAYS = 90
# Clocks may differ by so much.
AHEAD_S = 600
LeftOut = Literal["malformed", "forged", "expired", "duplicate"]


def _single_line(text: str) -> str:
    if text != one_line(text):
        raise ValueError("must be one line of printable text")
    return text


Line = Annotated[Plain, AfterValidator(_single_line)]
Time = Annotated[int, Field(ge=0, lt=10**12, description="Seconds since 1970.")]


class _Listed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1] = SCHEMA
    updated: Time
    expires: Time

    @model_validator(mode="after")
    def _lasts(self) -> "_Listed":
        if not 0 < self.expires - self.updated <= MAX_DAYS * DAY_S:
            raise ValueError(f"must expire after it was made, and within {MAX_DAYS} days")
        return self


class RunEntry(_Listed):
    """What a run's coordinator says of it."""

    run: str = Field(pattern=RUN_NAME, max_length=100)
    coordinator: Address
    url: Annotated[Url, Field(min_length=8)]
    model: Annotated[Line, Field(max_length=100)]
    about: Annotated[Line, Field(max_length=280)] = ""
    needs: tuple[Annotated[Line, Field(max_length=120)], ...] = Field((), strict=False, max_length=8)
    nodes: Annotated[int, Field(ge=0, lt=10**9)]
    version: Annotated[int, Field(ge=0, lt=10**9)]
    steps: Annotated[int, Field(ge=0, lt=10**9)]
    invite: bool = False

    @property
    def join_line(self) -> str:
        """What a machine types to join. The URL's form leaves nothing that a shell would take for more than a word."""
        line = f"shoal worker --join {self.url}#{self.coordinator}"
        return f"{line}+INVITE" if self.invite else line

    def message(self) -> bytes:
        return message(ENTRY_DOMAIN, canonical(self.model_dump(mode="json")))


class SignedEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    entry: RunEntry
    signature: Annotated[str, Field(max_length=140)]


class RunList(_Listed):
    """Entries as they came: one that this release does not understand must not hide the others."""

    publisher: Address
    runs: list[dict[str, JsonValue]] = Field(max_length=MAX_RUNS)

    def message(self) -> bytes:
        return message(LIST_DOMAIN, canonical(self.model_dump(mode="json")))


class SignedList(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    list: RunList
    signature: Annotated[str, Field(max_length=140)]


@dataclass(frozen=True, slots=True)
class Listing:
    """What a list tells those who trust its publisher."""

    publisher: str
    updated: int
    runs: list[SignedEntry]
    left_out: Counter[str] = field(default_factory=Counter)


def sign_entry(entry: RunEntry, key: Key) -> SignedEntry:
    if entry.coordinator != key.address:
        raise SwarmError(f"run entry of {entry.run}: names {entry.coordinator}, but the key is that of {key.address}")
    return SignedEntry(entry=entry, signature=key.sign(entry.message()))


def sign_list(entries: Iterable[SignedEntry], key: Key, now: int, days: int) -> SignedList:
    """A list of the newest entry of each run, without those that have expired."""
    listing = _sorted_out([entry.model_dump(mode="json") for entry in entries], now)
    if len(listing.runs) > MAX_RUNS:
        raise SwarmError(f"run list: {len(listing.runs)} runs, at most {MAX_RUNS} fit into a list")
    tree = [entry.model_dump(mode="json") for entry in listing.runs]
    made = RunList(publisher=key.address, updated=now, expires=now + days * DAY_S, runs=tree)
    return SignedList(list=made, signature=key.sign(made.message()))


def read_entry(data: bytes, where: str, now: int) -> SignedEntry:
    """One entry, whose signature is its coordinator's; a SwarmError otherwise."""
    try:
        tree = parse_json(data)
    except (ValueError, RecursionError) as error:
        raise SwarmError(f"{where}: is not JSON ({one_line(first_line(error))})") from None
    found = _entry(tree, now)
    if not isinstance(found, SignedEntry):
        raise SwarmError(f"{where}: is not a valid run entry ({found}); shoal runs entry makes one")
    return found


def read_list(data: bytes, where: str, now: int, publisher: str | None) -> Listing:
    """A list that its publisher signed and that has not expired; a SwarmError otherwise."""
    if len(data) > MAX_LIST_BYTES:
        raise SwarmError(f"{where}: has more than {MAX_LIST_BYTES} bytes, which no list of runs needs")
    try:
        signed = SignedList.model_validate(parse_json(data))
        signer = signer_of(signed.list.message(), signed.signature)
    except (ValueError, TypeError, RecursionError, ValidationError, IdentityError) as error:
        raise SwarmError(f"{where}: is not a list of runs ({one_line(_reason(error)):.200})") from None
    if signer != signed.list.publisher:
        raise SwarmError(
            f"{where}: names {signed.list.publisher} as publisher, but {signer} signed it, or it was changed"
        )
    if publisher is not None and signer != publisher:
        raise SwarmError(f"{where}: is published by {signer}, expected {publisher}")
    if signed.list.updated > now + AHEAD_S:
        raise SwarmError(
            f"{where}: was made {signed.list.updated - now} s in the future; is this machine's clock right?"
        )
    if signed.list.expires <= now:
        late = (now - signed.list.expires) / DAY_S
        raise SwarmError(f"{where}: expired {late:.1f} days ago; its publisher, {signer}, must publish it again")
    listing = _sorted_out(signed.list.runs, now)
    return Listing(signer, signed.list.updated, listing.runs, listing.left_out)


def _sorted_out(trees: Iterable[Any], now: int) -> Listing:
    """The newest valid entry of each run, in the order of their names."""
    newest: dict[tuple[str, str], SignedEntry] = {}
    left_out: Counter[str] = Counter()
    for tree in trees:
        found = _entry(tree, now)
        if not isinstance(found, SignedEntry):
            left_out[found] += 1
            continue
        name = found.entry.run, found.entry.coordinator
        if name in newest:
            left_out["duplicate"] += 1
        if name not in newest or newest[name].entry.updated < found.entry.updated:
            newest[name] = found
    return Listing("", now, [newest[name] for name in sorted(newest)], left_out)


def _entry(tree: Any, now: int) -> SignedEntry | LeftOut:
    try:
        found = SignedEntry.model_validate(tree)
        signer = signer_of(found.entry.message(), found.signature)
    except IdentityError:
        return "forged"
    except (ValueError, TypeError, RecursionError):
        return "malformed"
    if signer != found.entry.coordinator:
        return "forged"
    if found.entry.updated > now + AHEAD_S:
        return "malformed"
    return "expired" if found.entry.expires <= now else found


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        fault = error.errors(include_input=False, include_url=False)[0]
        return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
    return first_line(error)
