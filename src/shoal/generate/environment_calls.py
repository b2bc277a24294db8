"""Episodes that wait for their environments: each is asked beside the engine, which goes on with the others."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from itertools import count

from shoal.errors import TaskError
from shoal.generate.engine import Completion, Engine
from shoal.generate.episodes import Episode
from shoal.generate.flights import Answer, Flight
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version
from shoal.tasks.environments.environment import Played
from shoal.tasks.source import Host, Split

# Between two looks at whether environments have answered, where nothing else is there to do.
WAIT_S = 1.0


class EnvironmentCalls:
    """What environments are asked for the episodes of any number of leases."""

    def __init__(self, host: Host, split: Split = "train", on_news: Callable[[], None] = lambda: None) -> None:
        """`on_news` is called, in any thread, whenever one has answered."""
        self._host, self._split, self._on_news = host, split, on_news
        self._waiting: dict[Future[Played], tuple[Flight, int]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, flight: Flight, number: int, piece: Completion) -> bool:
        """Adds a piece to its answer, and asks the answer's environment if it waits for that; whether it has ended."""
        has_ended = flight.add(number, piece)
        if flight.answers[number].is_acting:
            self.ask(flight, number)
        return has_ended

    def ask(self, flight: Flight, number: int) -> None:
        """Begins to ask the environment of an episode that has come to the end of a turn."""
        episode = flight.answers[number]
        assert isinstance(episode, Episode)
        if episode.session < 0:
            episode.session = next(self._numbers)
        call = episode.call()
        future = self._host.play(
            self._split,
            episode.task,
            call.actions,
            known=call.known,
            score=call.score,
            episode=episode.session,
            tokens=call.tokens,
        )
        self._waiting[future] = flight, number
        future.add_done_callback(lambda _: self._on_news())

    def hear(self, seconds: float = 0.0) -> int:
        """Takes the answers that came, after waiting for one so long; gives how many episodes have ended with them.

        One that needs its score alone is asked for at once.
        """
        if seconds and self._waiting:
            wait(self._waiting, timeout=seconds, return_when="FIRST_COMPLETED")
        ended = 0
        for future in [future for future in self._waiting if future.done()]:
            flight, number = self._waiting.pop(future)
            episode = flight.answers[number]
            assert isinstance(episode, Episode)
            episode.observe(future.result())
            if episode.is_acting:
                self.ask(flight, number)
            else:
                ended += flight.place(number)
        return ended

    def forget(self, flight: Flight) -> None:
        """Waits no longer for what the episodes of a lease were to be told, and has them end where they are played."""
        asked = {number: future for future, (own, number) in self._waiting.items() if own is flight}
        for future in asked.values():
            del self._waiting[future]
        for number, episode in enumerate(flight.answers):
            if isinstance(episode, Episode) and episode.session >= 0 and episode.finish is None:
                if number in asked:
                    asked[number].add_done_callback(partial(self._end_after, episode))
                else:
                    self._end(episode)

    def _end_after(self, episode: Episode, asked: Future[Played]) -> None:
        """Ends an episode behind what it was asked last, unless it has ended with that."""
        if asked.exception() is None and asked.result().score is None and not asked.result().error:
            self._end(episode)

    def _end(self, episode: Episode) -> None:
        """Asks for a score that nobody waits for: what an episode holds, a program or a session on a server, is kept
        until it has one."""
        actions = episode.actions
        with suppress(TaskError):  # its process was closed, and has ended all
            self._host.play(
                self._split,
                episode.task,
                actions,
                known=len(actions),
                score=True,
                episode=episode.session,
                tokens=episode.counts,
            )


def play_all(engine: Engine, answers: Sequence[Answer], host: Host, split: Split, longest: int) -> list[Completion]:
    """Answers of which some are episodes, by an engine that has nothing else to do: none waits for another's turn."""
    lease, version = Lease("", "", 0, 0, 0, 0, 0, 0.0), Version(0, "")
    flight, calls = Flight.of(lease, version, list(answers), longest), EnvironmentCalls(host, split)
    try:
        while flight.unfinished:
            for number in flight.due(version):
                engine.submit(number, flight.ask(number))
            for piece in engine.step():
                calls.add(flight, piece.key, piece)
            calls.hear(0.0 if engine.running else WAIT_S)
    finally:
        engine.abort()
    return flight.completions()
