"""What a supervisor of a lent machine does next, as a pure function: the owner's wish comes first, then the conditions,
then how the worker fared."""

from dataclasses import dataclass
from typing import Literal

from shoal.lend.state_files import LendState, Want
from shoal.process import EXIT_BANNED, EXIT_LIMIT

Act = Literal["start", "watch", "finish", "end at once", "rest", "exit"]
FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 300.0
# A worker that failed so often in a row may hold leases in vain.
HAND_BACK_AFTER = 2


@dataclass(frozen=True, slots=True)
class Next:
    """What to do, and what to call it."""

    act: Act
    state: LendState
    reason: str = ""


def decide(
    want: Want,
    blocked: str,
    halted: str,
    *,
    running: bool,
    retry_in_s: float,
    failure: str = "",
    renew: bool = False,
    handed_in: bool = False,
) -> Next:
    """`blocked` is why the machine may not work now, `halted` why the worker cannot, `failure` how the last one ended.

    `renew`: its limits changed; `handed_in`: the last worker was asked to finish, and ended as one that has.
    """
    if want == "stop":
        return Next("end at once" if running else "exit", "ended", "its owner ended it")
    if want == "pause":
        return Next("end at once" if running else "rest", "paused", "its owner paused it; shoal lend resume")
    if want == "finish" and not running:
        why = blocked or halted or failure
        said = f"nothing more was handed in: {why}" if why else "nothing was under way"
        return Next("exit", "ended", "the leases were handed in" if handed_in else said)
    if blocked:
        return Next("end at once" if running else "rest", "ended" if want == "finish" else "waiting", blocked)
    if want == "finish":
        return Next("finish", "finishing", "ends when the leases under way are handed in")
    if running:
        return (
            Next("finish", "finishing", "other limits after the leases under way")
            if renew
            else Next("watch", "working")
        )
    if halted:
        return Next("rest", "stopped", halted)
    if retry_in_s > 0:
        return Next("rest", "retrying", f"{failure}; the next try is in {retry_in_s:.0f} s")
    return Next("start", "starting", "")


@dataclass(frozen=True, slots=True)
class Ended:
    """What the worker's end means: it `halts` until the owner acts, it `completes` the run, or it is tried again."""

    failure: str = ""
    halts: bool = False
    completes: bool = False


def after_end(code: int, words: str, asked_to_finish: bool) -> Ended:
    """What follows from a worker's exit code and last words."""
    said = words.strip() or (
        f"the worker was killed by signal {-code}" if code < 0 else f"the worker ended with {code}"
    )
    if code == 0:
        return Ended(completes=not asked_to_finish)
    if code == EXIT_BANNED:
        return Ended(f"this node is banned: {said}", halts=True)
    if code == EXIT_LIMIT:
        return Ended(f"{said}; shoal lend limits changes it", halts=True)
    return Ended(said)


def retry_after_s(failures: int) -> float:
    """Exponential backoff: a coordinator that is away for hours is asked every five minutes."""
    return float(min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 10)))
