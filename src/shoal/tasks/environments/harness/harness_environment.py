"""A harness as an environment: it is started with an address and a key, and what it asks there is what the policy sees.

The harness keeps control of its own loop, tools and state. `reset` starts it and waits for its first request, `step`
answers the request that waits with what the policy said and waits for the next one, and `score` is what the harness
itself returns. So an episode of any program that speaks OpenAI's API is sampled, recorded and played again like one of
an environment that was written for us.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from shoal.errors import TaskError
from shoal.tasks.environments.environment import Observation, State
from shoal.tasks.environments.harness.conversation import Message
from shoal.tasks.environments.harness.endpoint import Endpoint
from shoal.tasks.environments.harness.exchange import Exchange
from shoal.tasks.source import Score

ASK_S = 600.0
# Of tasks, whose first messages are remembered.
MAX_OPENINGS = 4096


@dataclass(frozen=True, slots=True)
class Address:
    """Where a harness finds the policy."""

    url: str
    key: str
    model: str = "policy"

    @property
    def keyed_url(self) -> str:
        """The address with the key in it, for a harness whose API key is not ours to set."""
        return self.url.replace("/v1", f"/{self.key}/v1")


class Player(Protocol):
    """Starts a harness on the episode of a seed; the future is its score. It must do the same for the same seed."""

    def number(self, seed: int) -> int:
        """Which task a seed stands for; seeds with the same number have the same episode."""
        ...

    def play(self, seed: int, at: Address) -> "Future[float | Score]": ...

    def close(self) -> None: ...


class Run:
    """A harness under way. One that nobody holds any more has its requests refused, and ends by that."""

    def __init__(self, player: Player, seed: int, endpoint: Endpoint) -> None:
        key, self.exchange = endpoint.open()
        weakref.finalize(self, Exchange.close, self.exchange)
        self.score = player.play(seed, Address(endpoint.url, key))
        exchange = self.exchange
        self.score.add_done_callback(lambda _: exchange.end())

    def result(self) -> float | Score:
        """What the harness says of its episode; 0 where the run ends an episode before its harness does, also if that
        has grown tired of waiting for the reply."""
        if self.exchange.is_asked or not self.score.done():
            self.exchange.close()
            return Score(0.0)
        return self.score.result()


class HarnessEnvironment:
    """Episodes that a harness drives.

    How a task begins is remembered: a harness whose opening is known is started with the first step, and has to begin
    as it did before.
    """

    tells_tokens = True

    def __init__(self, player: Player, where: str, *, deterministic: bool, sha256: str | None = None) -> None:
        self.deterministic, self.sha256 = deterministic, sha256
        self._player, self._where = player, where
        self._endpoint: Endpoint | None = None
        self._starting = threading.Lock()
        self._openings: OrderedDict[int, tuple[str, str]] = OrderedDict()

    def reset(self, seed: int) -> State:
        number, run = self._player.number(seed), None
        if (known := self._openings.get(number)) is None:
            run, known = self._begin(seed)
            self._openings[number] = known
            if len(self._openings) > MAX_OPENINGS:
                self._openings.popitem(last=False)
        system, prompt = known
        return {"prompt": prompt, "system": system, "seed": seed, "run": run}

    def step(self, state: State, action: str) -> Observation:
        run = self._run(state)
        run.exchange.reply(action, state.get("tokens"))
        asked = run.exchange.next(ASK_S)
        return Observation(over=True) if asked is None else observed(asked, self._where)

    def score(self, state: State) -> float | Score:
        return self._run(state).result()

    def close(self) -> None:
        """For a process that goes on without it."""
        self._player.close()
        if self._endpoint is not None:
            self._endpoint.close()

    def _run(self, state: State) -> "Run":
        if state["run"] is None:
            state["run"], begun = self._begin(state["seed"])
            if begun != (state["system"], state["prompt"]):
                raise TaskError(
                    f"{self._where}: its harness begins with {begun[1][:80]!r}, and began the same task with "
                    f"{state['prompt'][:80]!r}; it must be the same each time"
                )
        run: Run = state["run"]
        return run

    def _begin(self, seed: int) -> tuple["Run", tuple[str, str]]:
        """A harness that has asked for the first time, and what it asked: system turn and prompt."""
        with self._starting:
            if self._endpoint is None:
                self._endpoint = Endpoint()
        run = Run(self._player, seed, self._endpoint)
        asked = run.exchange.next(ASK_S)
        if asked is None:
            run.result()  # raises what the harness raised
            raise TaskError(f"{self._where}: its harness ended before it asked anything of the policy (seed {seed})")
        return run, opening(asked, run.exchange.tool_text, self._where)

    def solve(self, state: State) -> str | None:
        del state
        return None


def opening(asked: Sequence[Message], tool_text: str, where: str) -> tuple[str, str]:
    """System turn and prompt of a harness's first request; a TaskError for any other form."""
    roles = [message.role for message in asked]
    if roles[-1:] != ["user"] or any(role != "system" for role in roles[:-1]):
        raise TaskError(
            f"{where}: its harness begins with messages of {', '.join(roles)}; an episode begins with system messages "
            "and one of the user"
        )
    texts = [message.text for message in asked[:-1]] + [tool_text]
    return "\n\n".join(filter(None, texts)), asked[-1].text


def observed(asked: Sequence[Message], where: str) -> Observation:
    """What a later request adds, as one turn of the chat template; several messages of one role are joined."""
    roles = {message.role for message in asked}
    text = "\n\n".join(message.text for message in asked)
    if roles == {"user"}:
        return Observation(text, role="user")
    if roles == {"tool"}:
        return Observation(text, role="tool")
    raise TaskError(
        f"{where}: its harness goes on with messages of {', '.join(sorted(roles))}; after a reply come messages of the "
        "user, or results of tools"
    )
