"""What a node is to the coordinator, as a pure state machine: all its rules are in `RULES`.

A node earns nothing by its state but leave to ask for leases. `banned` is for good; everything else mends itself.
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
    """It let `MOST_EXPIRED` leases in a row expire."""
    LIFT = "lift"
    """Its suspension is over."""
    BAN = "ban"
    """A validator rejected too many of its files."""


_ANY = {Event.SUSPEND: State.SUSPENDED, Event.BAN: State.BANNED}
RULES: dict[State, dict[Event, State]] = {
    State.JOINED: {**_ANY, Event.SEEN: State.HEALTHY, Event.QUIET: State.SILENT, Event.LOST: State.GONE},
    State.HEALTHY: {**_ANY, Event.QUIET: State.SILENT, Event.LOST: State.GONE},
    State.SILENT: {**_ANY, Event.SEEN: State.HEALTHY, Event.LOST: State.GONE},
    State.GONE: {**_ANY, Event.SEEN: State.HEALTHY},
    State.SUSPENDED: {Event.LIFT: State.JOINED, Event.BAN: State.BANNED},
    State.BANNED: {},
}

# Three heartbeats of ten seconds, and the time in which a home router comes back.
QUIET_S = 30.0
LOST_S = 120.0
# A node that takes work and does not do it holds a step up: it gets none for a while.
MOST_EXPIRED = 3
SUSPENDED_S = 300.0


def after(state: State, event: Event) -> State:
    """The state that follows; an event that has no rule changes nothing."""
    return RULES[state].get(event, state)


def may_lease(state: State) -> bool:
    return state in (State.JOINED, State.HEALTHY)


def holds_leases(state: State) -> bool:
    """Whether its leases count as work that will come; those of the others go back to the pool at once."""
    return state not in (State.GONE, State.BANNED)
