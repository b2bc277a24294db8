"""State machine of a node, as a pure function: all transitions are in `RULES`.

All that a state gives a node is permission to ask for leases. `banned` is permanent, but for a ban that rests on
numbers: when the run's honest rates are loosened, it is lifted. Every other state recovers.
"""

from enum import StrEnum


class State(StrEnum):
    JOINED = "joined"
    HEALTHY = "healthy"
    SILENT = "silent"
    GONE = "gone"
    SUSPENDED = "suspended"
    BANNED = "banned"


class Event(StrEnum):
    SEEN = "seen"
    """It made a signed request."""
    QUIET = "quiet"
    """Nothing was heard of it for `QUIET_S`."""
    LOST = "lost"
    """Nothing was heard of it for `LOST_S`."""
    SUSPEND = "suspend"
    """It let too many leases expire (`lets_expire`)."""
    LIFT = "lift"
    """Its suspension is over."""
    BAN = "ban"
    """A validator rejected too many of its files."""
    READMIT = "readmit"
    """What it was banned for is held against it no more: the odds were too strict."""


_ANY = {Event.SUSPEND: State.SUSPENDED, Event.BAN: State.BANNED}
RULES: dict[State, dict[Event, State]] = {
    State.JOINED: {**_ANY, Event.SEEN: State.HEALTHY, Event.QUIET: State.SILENT, Event.LOST: State.GONE},
    State.HEALTHY: {**_ANY, Event.QUIET: State.SILENT, Event.LOST: State.GONE},
    State.SILENT: {**_ANY, Event.SEEN: State.HEALTHY, Event.LOST: State.GONE},
    State.GONE: {**_ANY, Event.SEEN: State.HEALTHY},
    State.SUSPENDED: {Event.LIFT: State.JOINED, Event.BAN: State.BANNED},
    State.BANNED: {Event.READMIT: State.JOINED},
}

# Three heartbeats of ten seconds, and the time in which a home router comes back.
QUIET_S = 30.0
LOST_S = 120.0
# A node that takes work and does not do it holds a step up, and one that does some of it chooses: it gets none for a
# while. So many in a row, or a larger share of the leases that it had last, once these are some.
MAX_EXPIRED = 3
RECENT = 20
MIN_ENDED = 10
MAX_EXPIRED_SHARE = 0.2
SUSPENDED_S = 300.0


def after(state: State, event: Event) -> State:
    """The state that follows; an event that has no rule changes nothing."""
    return RULES[state].get(event, state)


def lets_expire(in_a_row: int, expired: int, ended: int) -> bool:
    """Whether a node is to be suspended that let so many leases in a row expire, and so many of those that ended."""
    return in_a_row >= MAX_EXPIRED or (ended >= MIN_ENDED and expired > MAX_EXPIRED_SHARE * ended)


def may_lease(state: State) -> bool:
    return state in (State.JOINED, State.HEALTHY)


def holds_leases(state: State) -> bool:
    """Whether its leases count as work that will come; those of the others go back to the pool at once."""
    return state not in (State.GONE, State.BANNED)
