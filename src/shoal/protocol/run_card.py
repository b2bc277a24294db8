"""The run card: all that a node needs to know of a run besides a URL, signed by its coordinator.

It says what is trained, with which settings, who signs the weights and where they are served. A node that was given
the coordinator's address with the URL believes no other; one that was not takes the address that it finds there.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from shoal.config import RUN_NAME, RunConfig
from shoal.config_io import check_config
from shoal.crypto.keys import Key, checked_address, signer_of
from shoal.crypto.signed import canonical, message
from shoal.errors import ConfigError, IdentityError, SwarmError, first_line
from shoal.files import parse_json
from shoal.protocol.invite import Invite
from shoal.text import one_line

DOMAIN = "shoal run card 2"
SCHEMA = 3
MAX_CARD_BYTES = 1 << 20
Address = Annotated[str, Field(pattern=r"^0x[0-9a-f]{40}$")]


class Card(BaseModel):
    """What a run is."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: int = Field(description="Of this card and of the protocol; a node that knows another one stops.")
    run: str = Field(pattern=RUN_NAME, max_length=100, description="Name of the run, part of every lease's seed.")
    coordinator: Address = Field(description="Whom requests are signed for, and who signs leases.")
    origin: Address = Field(description="Who signs the policy versions; a relay is trusted with nothing.")
    relays: tuple[str, ...] = Field(strict=False, max_length=256, description="URLs of relays that serve versions.")
    max_upload: int = Field(description="Most bytes of one rollout file.")
    heartbeat_s: float = Field(description="Seconds between heartbeats.")
    direct_uploads: bool = Field(description="Whether files go to an object store, with URLs that are asked for.")
    packages: dict[str, str] = Field(
        max_length=32, description="Versions of what decides tasks and rewards, Python's among them."
    )
    config: dict[str, JsonValue] = Field(description="The run's config: model, tasks, sampling, thresholds and so on.")

    def run_config(self) -> RunConfig:
        """The config, for a machine that is lent: its rules hold for strangers' runs too."""
        try:
            config = check_config(dict(self.config), f"of run card {self.run}")
        except ConfigError as error:
            raise SwarmError(f"{error}\n  do not join it, or use the release of shoal that the run uses") from None
        if config.name != self.run:
            raise SwarmError(f"run card of {self.run}: its config is of run {config.name}; do not join it")
        return config

    def message(self) -> bytes:
        return message(DOMAIN, canonical(self.model_dump(mode="json")))


class SignedCard(BaseModel):
    """A card and its coordinator's signature over it."""

    card: Card
    signature: str = Field(description="EIP-191, over the domain line and the card as canonical JSON (RFC 8785).")


@dataclass(frozen=True, slots=True)
class Join:
    """Where to join: a URL, the coordinator's address if it was given as URL#0xADDRESS, and an invite after a plus."""

    url: str
    coordinator: str | None
    invite: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        url, _, fragment = text.strip().partition("#")
        address, _, invite = fragment.partition("+")
        if not url.startswith(("http://", "https://")):
            raise SwarmError(f"--join {text}: must be the URL of a coordinator, as in https://HOST:7000#0xADDRESS")
        if fault := url_fault(url):
            raise SwarmError(f"--join {one_line(url)}: {fault}; give it as in https://HOST:7000#0xADDRESS")
        if invite:
            Invite.parse(invite)  # a damaged one is told before anything is sent
        return cls(url.rstrip("/"), checked_address(address) if address else None, invite)

    @property
    def is_secure(self) -> bool:
        return self.url.startswith("https://")


def url_fault(url: str) -> str:
    """Why a URL leads nowhere: its host or its port is missing or invalid; empty if it may lead somewhere."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return one_line(str(error))
    if not parts.hostname:
        return "names no host"
    return "no server listens on port 0" if port == 0 else ""


def sign_card(card: Card, key: Key) -> SignedCard:
    return SignedCard(card=card, signature=key.sign(card.message()))


def read_card(data: bytes, join: Join) -> Card:
    """A card whose signature is its coordinator's, and the one that was meant; a SwarmError otherwise."""
    where = f"run card of {join.url}"
    try:
        tree: Any = parse_json(data)
        version = tree["card"]["schema_version"]
        if version != SCHEMA:
            raise SwarmError(
                f"{where}: has schema version {version!r:.20}, this program knows {SCHEMA}; install the release of "
                "shoal that the run uses"
            )
        signed = SignedCard.model_validate(tree)
        signer = signer_of(signed.card.message(), signed.signature)
    except (ValueError, TypeError, KeyError, RecursionError, ValidationError, IdentityError) as error:
        reason = one_line(first_line(error))
        raise SwarmError(f"{where}: is not one ({reason}); is a coordinator at that URL?") from None
    if signer != signed.card.coordinator:
        raise SwarmError(f"{where}: names {signed.card.coordinator} as coordinator, but {signer} signed it")
    if join.coordinator is not None and signer != join.coordinator:
        raise SwarmError(f"{where}: the coordinator there is {signer}, expected {join.coordinator}; do not join it")
    return signed.card
