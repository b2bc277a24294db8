"""Child side of the environment host: drops privileges, then plays episodes.

Built-in environments are played one after the other, in a process that can compute and read Python's own files. Where
an episode may wait for something, for a program that it runs or for whatever code of others waits for, they are played
in as many threads as the parent says.
"""

import json
import os
import queue
import threading
from typing import Any

from shoal.subproc import say
from shoal.tasks.environments.source import Sessions, played_to_json
from shoal.tasks.rewards.scorer_child import Begun, begin
from shoal.tasks.source import Task

# Of a thread, in bytes: they count as memory of the process.
STACK = 2 << 20
OUT_OF_MEMORY = 12


class EpisodePlayer:
    """Plays what is asked and replies in any order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.is_threaded = False
        self._playing = 0
        self.begun: Begun | None = None
        self.sessions: Sessions | None = None

    def start_threads(self, count: int) -> None:
        if count == 1:
            return
        self.is_threaded = True
        threading.stack_size(STACK)
        for _ in range(count):
            threading.Thread(target=self._run, daemon=True).start()

    def ask(self, request: Any) -> None:
        if self.is_threaded:
            self._work.put(request)
        else:
            self._play(request)

    def _run(self) -> None:
        while True:
            self._play(self._work.get())

    def leave_unless_alone(self) -> None:
        """Ends the process if several episodes are under way: any of them may have taken the memory that one lacks. The
        parent plays each alone then, and the one that takes it is the one that is void."""
        with self._lock:
            if self._playing > 1:
                os._exit(OUT_OF_MEMORY)

    def _play(self, request: Any) -> None:
        with self._lock:
            self._playing += 1
        assert self.sessions is not None
        assert self.begun is not None
        source, split, index = request["task"]
        task = Task(source, index, "", None, {})
        played = self.sessions.play(
            split,
            task,
            request["actions"],
            request["known"],
            request["score"],
            request["episode"],
            [(before, own) for before, own in request["tokens"]],
        )
        reply = {"id": request["id"], "played": played_to_json(played), "low_memory": self.begun.memory.is_little()}
        with self._lock:
            self._playing -= 1
            say(self.begun.replies, reply)


def main() -> None:
    player = EpisodePlayer()
    if (begun := begin(player.start_threads)) is None:
        return
    player.begun = begun
    player.sessions = Sessions(begun.source, begun.spec["observation"], player.leave_unless_alone)
    begun.memory.begin()
    say(begun.replies, {"ready": True})
    for line in begun.requests:
        player.ask(json.loads(line))
    os._exit(0)  # whatever is still played, nobody waits for it any more


if __name__ == "__main__":
    main()
