"""Whether the owner's conditions hold, looked at beside the loop that hears the owner and watches the worker's memory.

A look may start programs that answer after seconds, or never. Nobody waits for it: what counts is the last look that
is over, and before the first one the machine does not work.
"""

import dataclasses
import threading

from shoal.lend.machine_state import MachineState
from shoal.lend.when import Observed, When, why_not

# How long the first look is waited for, when nothing runs yet.
FIRST_S = 0.5
NOT_YET = "it looks first whether the conditions of --when hold"


class OwnerWatch:
    """Asks a machine's state in a thread, one look at a time, and only for what a condition needs."""

    def __init__(self, machine: MachineState) -> None:
        self._machine = machine
        self._looking: threading.Thread | None = None
        self._seen: tuple[When, Observed] | None = None
        self._said = NOT_YET

    def why_not(self, when: When) -> str:
        """Why the machine may not work now, empty if it may; after a change of conditions, what was right before until
        a look is over."""
        if not (when.idle or when.plugged):
            self._said = why_not(when, self._machine.observe(when))  # the clock answers at once
            return self._said
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(target=self._look, args=(when,), daemon=True, name="owner-watch")
            self._looking.start()
            if self._said == NOT_YET:
                self._looking.join(FIRST_S)
        if (seen := self._seen) is not None and seen[0] == when:
            self._said = why_not(when, dataclasses.replace(seen[1], minute=self._machine.minute()))
        return self._said

    def _look(self, when: When) -> None:
        self._seen = when, self._machine.observe(when)
