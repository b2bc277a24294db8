"""Errors typed by the boundary they belong to.

Each message names the thing, its value, the rule it broke and the fix. The command line prints `ShoalError` without a
traceback: it is an answer to the user. Anything else is a defect of ours and keeps its traceback.
"""


class ShoalError(Exception):
    """Something that a person can fix; the message says how."""


class ConfigError(ShoalError):
    """A run's description is wrong."""


class LimitError(ConfigError):
    """A limit of a lent machine is too small for what the run needs; to start again changes nothing."""


class MissingExtraError(ConfigError):
    """An optional package that is not installed; the message says which extra of shoal-rl has it."""


class ModelError(ShoalError):
    """A model directory cannot be used."""


class DeviceError(ShoalError):
    """A device that is not here, or cannot do what was asked of it."""


class TaskError(ShoalError):
    """A task source cannot be built, or a scorer failed."""


class RolloutError(ShoalError):
    """A rollout file is not what it claims to be: data to refuse, never a reason to stop."""


class UnreadError(ShoalError):
    """A rollout file could not be fetched or read here. That says nothing about the file, nor about its maker."""

    def __init__(self, message: str, *, again: bool) -> None:
        """`again`: whether another try may go better."""
        super().__init__(message)
        self.again = again


class BannedError(ShoalError):
    """A node's files were rejected too often; it gets no more leases."""


class WeightsError(ShoalError):
    """A policy version is missing, half written or not the one that was named."""


class StorageError(ShoalError):
    """The disk refused: full, read-only or gone."""


class LockedError(StorageError):
    """Another process holds the lock of a file or directory."""


class WaitError(ShoalError):
    """A wait reached its deadline; the message names what never came."""


class NoSignalError(ShoalError):
    """Every group was answered all right or all wrong: there is nothing to learn from."""


class DivergedError(ShoalError):
    """Losses or gradients stopped being finite several steps in a row."""


class ToplocError(ShoalError):
    """Hidden states that cannot be proved, or bytes that are not a proof."""


class FbamError(ShoalError):
    """A frame, a recording, a repository or a run of an action model that cannot be used."""


class IdentityError(ShoalError):
    """A key, an address or a signature is not what it should be."""


class ShardcastError(ShoalError):
    """A source of weights sent what the origin did not sign, or a package cannot be published or fetched."""


class DeltaError(ShoalError):
    """A delta is damaged, invalid, or belongs to another base; nothing is made of it."""


class SwarmError(ShoalError):
    """The coordinator refused a request or cannot be reached, or is not the one that was meant."""


class BenchError(ShoalError):
    """A peer we measure ourselves against could not be installed, or stopped."""


class LedgerError(ShoalError):
    """An entry that the rules refuse, a history that was tampered with, or a chain that does not answer."""


class AwayError(LedgerError):
    """A ledger that cannot be reached or paid for now; what was to be entered can be entered later."""


class HiddenError(AwayError):
    """A contract's history that cannot be read: its coordinator, or the chain's node, leaves something out."""


def first_line(error: Exception) -> str:
    """What a library's error says, short enough for a message of ours; what SQLAlchemy wraps is what it says."""
    said = str(getattr(error, "orig", None) or error)
    return (said.splitlines() or [type(error).__name__])[0][:300]
