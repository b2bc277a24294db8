"""Rules by which leases are granted and end, as pure functions of numbers: no database, no clock.

`grants`, `draws` and `leases` look the numbers up in the database and obey; `shoal simulate` keeps them in memory and
obeys as well.
"""

from collections.abc import Mapping
from typing import Literal

from shoal.coordinator.policy import Terms
from shoal.protocol.pacing import Grant, StepCount, next_grant
from shoal.protocol.stores import PROVEN

# Accepted files that outweigh one draw that was let go and not made good. With files whose mean rewards are spread
# normally, a node that drops the worst 1 of 60 has a mean 0.045 standard deviations higher.
FILES_PER_DRAW = 60
# A draw that makes workers crash is given so often, and then given up.
MAX_GIVEN = 6
# One whose files are rejected for what their maker can bring about is given so often. An honest machine has that happen
# to it once in 1,000 files, and not twice with one draw, for the next file is made with another version.
MAX_REFUSED = 2
# Signal rates are judged by this many steps before the newest version's.
MEMORY = 4
# What newcomers of all networks may have under way for a step, in multiples of the most that it takes: it bounds the
# disk that they fill, and leaves room for an honest one among many.
MAX_NEWCOMERS = 16
# Leases that a node with a record may hold without stake: one whose answers are generated, one that takes the places
# of answers that have ended, and one that is scored and sent.
PIPELINE = 3
# All nodes for which there is no work ask so often a second, together: somebody is there within 20 ms when there is
# some again, and what a thousand of them ask takes no more than a tenth of the coordinator's time.
LEASE_REQUESTS_PER_S = 50.0
MIN_RETRY_S = 0.2


def record(accepted: int, rejected: int, owed: int, abandoned: int) -> int:
    """What a node has shown: 2 that it does its work, 1 nothing yet, 0 that it does not."""
    if accepted > rejected + FILES_PER_DRAW * owed:
        return PROVEN
    return 0 if rejected or abandoned else 1


def may_hold(record: int, staked: int, terms: Terms) -> int:
    """Leases that a node may hold at once, where its stake allows for `staked`."""
    return max(staked, min(PIPELINE, terms.leases)) if record == PROVEN else staked


def unjudged_allowed(accepted: int, terms: Terms) -> int:
    """Files of a node that may wait for a verdict: as many as it has had accepted. So nobody fills a run with files
    that nobody has looked at, after honest work either."""
    return max(terms.probation_files, accepted)


def newcomers_allowed(proven: int, terms: Terms) -> int:
    """Leases and files that newcomers of a network may have under way, where it has so many nodes with a record."""
    return terms.probation_files + proven


def is_flooded(count: StepCount, terms: Terms) -> bool:
    """Whether a step has all that newcomers may have under way for it."""
    return count.seen + count.leased >= MAX_NEWCOMERS * terms.max_groups


def pays_for_itself(accepted: int, owed: int) -> bool:
    """Whether a node's own work outweighs what it owes, and one more: it does not answer for its neighbours then."""
    return accepted >= FILES_PER_DRAW * (owed + 1)


def undone_allowed(handed_in: int, terms: Terms) -> int:
    """Draws that a network may have undone after so many files."""
    return terms.probation_files + handed_in // FILES_PER_DRAW


def given_up_allowed(handed_in: int) -> int:
    """Draws that a network may have given up for good after so many files: none before it has done as many as outweigh
    one. Those that wait to be given again are not among them, however many honest machines crashed."""
    return handed_in // FILES_PER_DRAW


def is_given_again(step: int, newest: int, given: int) -> bool:
    """Whether the draw of a lease that its node does not work on is given again at once: its step is over, and nobody
    waits for it; not for ever."""
    return step < newest and given < MAX_GIVEN


def keeps_version(version: int, step: int, terms: Terms) -> bool:
    """Whether a draw that is given again, for this step, keeps the version that it had: unless the step does not take
    it any more, for another one would answer otherwise."""
    return version >= step - terms.async_level


def lateness(step: int, newest: int, began: float, until: float) -> Literal["", "expired", "over"]:
    """Why a file comes too late that began to come then; empty if it does not."""
    if began > until:
        return "expired"
    return "over" if step < newest else ""


def retry_s(workers: int) -> float:
    """Seconds after which a node asks again that got no lease, where so many workers may be in the same position."""
    return max(MIN_RETRY_S, workers / LEASE_REQUESTS_PER_S)


def next_step(terms: Terms, found: Mapping[int, StepCount], version: int, newest: int) -> Grant | None:
    """The step that a lease of a version is for, by what steps have."""
    return next_grant(
        found,
        version=version,
        async_level=terms.async_level,
        steps=terms.steps,
        needed=terms.groups_per_step,
        max_seen=terms.max_groups,
        submission_groups=terms.groups_per_submission,
        first_step=newest,
        online_filter=terms.online_filter,
    )
