"""OpenEnv's environments: what the policy says becomes an action, and an observation becomes what it sees next.

An action is JSON, or the plain text for an action with one field that must be given. An observation is shown as JSON
without the fields that are for programs, or as the one field that `options.observation` names. What an episode earns is
the sum of the rewards of its steps.

| option | meaning |
|---|---|
| `prompt` | the first message; `{observation}` and `{schema}` (of an action) are put in |
| `observation` | the field of observations that is shown; default: all, as JSON |
| `reset` | arguments of `reset` besides the seed |
| `init` | arguments of the class, for an environment in this process |
"""

import json
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from shoal.errors import TaskError
from shoal.extras import require
from shoal.files import parse_json
from shoal.tasks.environments.environment import Observation, State
from shoal.tasks.source import Score
from shoal.tasks.sources.user_python import load_module

PROMPT = "{observation}\nReply with an action, as JSON: {schema}"
# Fields of actions and observations that are OpenEnv's own.
OWN_FIELDS = ("done", "metadata", "reward")
MAX_SEED = 2**31


class BadAction(ValueError):
    """An action that does not fit its schema, in our own words: those of libraries differ between their versions."""


class Game(Protocol):
    """One episode of an environment, here or on a server."""

    schema: Mapping[str, Any]
    """JSON schema of an action."""

    def reset(self, **arguments: Any) -> "Seen": ...

    def step(self, action: Mapping[str, Any]) -> "Seen": ...

    def close(self) -> None: ...


class Seen:
    """An observation with its reward, as plain values."""

    def __init__(self, fields: Mapping[str, Any], reward: float | bool | None, done: bool) -> None:
        self.fields = {name: value for name, value in fields.items() if name not in OWN_FIELDS}
        self.reward, self.done = float(reward or 0.0), done


class Session:
    """A game that is closed once: when it is over, or when nobody holds it any more. Servers have few of them."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.close = weakref.finalize(self, _close, game)
        self.close.atexit = False


def _close(game: Game) -> None:
    with suppress(Exception):  # what an episode has earned is known by then
        game.close()


class OpenEnvEnvironment:
    """Episodes of OpenEnv; each has an environment of its own."""

    tells_tokens = False

    def __init__(
        self, start: Any, options: Mapping[str, Any], where: str, *, deterministic: bool, sha256: str | None = None
    ) -> None:
        self.deterministic, self.sha256 = deterministic, sha256
        self._start, self._where = start, where
        known = {"prompt", "observation", "reset", "init"}
        if strange := set(options) - known:
            raise TaskError(f"task source {where}: options.{min(strange)} is unknown; known are {sorted(known)}")
        self._prompt = str(options.get("prompt", PROMPT))
        self._shown = options.get("observation")
        self._reset = _table(options, "reset", where)

    def reset(self, seed: int) -> State:
        session = Session(self._start())
        game = session.game
        seen = game.reset(seed=seed % MAX_SEED, **self._reset)
        schema = json.dumps(_plain_schema(game.schema), ensure_ascii=False, sort_keys=True)
        prompt = self._prompt.replace("{observation}", self._text(seen)).replace("{schema}", schema)
        return {"prompt": prompt, "system": "", "session": session, "earned": seen.reward}

    def step(self, state: State, action: str) -> Observation:
        """An action that does not fit the schema changes nothing; the policy is told why."""
        session: Session = state["session"]
        game = session.game
        try:
            read = read_action(action, game.schema)
            seen = game.step(read)
        except BadAction as error:
            return Observation(f"error: {error}")
        state["earned"] += seen.reward
        if seen.done:
            session.close()
        return Observation(over=True) if seen.done else Observation(self._text(seen))

    def score(self, state: State) -> float | Score:
        session: Session = state["session"]
        session.close()
        return float(state["earned"])

    def solve(self, state: State) -> str | None:
        del state
        return None

    def _text(self, seen: Seen) -> str:
        if self._shown is None:
            return json.dumps(seen.fields, ensure_ascii=False, sort_keys=True)
        if self._shown not in seen.fields:
            raise TaskError(
                f"{self._where}: an observation has no field {self._shown!r}; it has {', '.join(sorted(seen.fields))}"
            )
        value = seen.fields[str(self._shown)]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def read_action(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """What the policy says as an action; BadAction if it is not one."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```"):
        text = "\n".join(text.splitlines()[1:-1]).strip()
    required = [name for name in schema.get("required", []) if name not in OWN_FIELDS]
    try:
        tree = parse_json(text)
    except ValueError:
        tree = text
    if isinstance(tree, dict):
        return tree
    if len(required) != 1:
        raise BadAction(f"an action is a JSON object with {', '.join(required) or 'the fields of its schema'}")
    kind = schema.get("properties", {}).get(required[0], {}).get("type")
    return {required[0]: text if kind == "string" else tree}


def _table(options: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    value = options.get(name, {})
    if not isinstance(value, dict):
        raise TaskError(f"task source {where}: options.{name} = {value!r:.80}; must be a table of arguments")
    return value


def _plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: one for name, one in schema.get("properties", {}).items() if name not in OWN_FIELDS}
    return {"properties": fields, "required": [name for name in schema.get("required", []) if name in fields]}


class LocalGame:
    """An environment object in this process."""

    def __init__(self, environment: Any, action: Any) -> None:
        self._environment, self._action = environment, action
        self.schema: Mapping[str, Any] = action.model_json_schema()

    def reset(self, **arguments: Any) -> Seen:
        return self._seen(self._environment.reset(**arguments))

    def step(self, action: Mapping[str, Any]) -> Seen:
        try:
            read = self._action.model_validate(action)
        except ValidationError as error:
            places = {".".join(map(str, found["loc"])) or "the action" for found in error.errors()}
            raise BadAction(f"the action does not fit its schema: {', '.join(sorted(places))}") from None
        return self._seen(self._environment.step(read))

    def close(self) -> None:
        self._environment.close()

    @staticmethod
    def _seen(found: Any) -> Seen:
        return Seen(found.model_dump(mode="json"), found.reward, bool(found.done))


class RemoteGame:
    """A session on a server, over the package's client."""

    def __init__(self, address: str, schema: Mapping[str, Any]) -> None:
        from openenv import GenericEnvClient

        self.schema = schema
        self._client = GenericEnvClient(base_url=address).sync()
        self._client.connect()

    def reset(self, **arguments: Any) -> Seen:
        return self._seen(self._client.reset(**arguments))

    def step(self, action: Mapping[str, Any]) -> Seen:
        try:
            return self._seen(self._client.step(dict(action)))
        except RuntimeError as error:
            if "VALIDATION_ERROR" in str(error):  # the client's errors have no types
                raise BadAction("the action does not fit its schema") from None
            raise

    def close(self) -> None:
        self._client.close()

    @staticmethod
    def _seen(found: Any) -> Seen:
        return Seen(found.observation, found.reward, bool(found.done))


def local_environment(
    path: Path, name: str, options: Mapping[str, Any], where: str, deterministic: bool, sha256: str | None
) -> OpenEnvEnvironment:
    """The environment class `name` of a file."""
    require("openenv", f"task source {where}", TaskError)
    from openenv.core.env_server import Environment

    found = getattr(load_module(str(path)), name, None)
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise TaskError(f"task source {where}: {name} is not a class of openenv's Environment in that file")
    kind, init = found, _table(options, "init", where)
    action = _action_of(kind, where)
    return OpenEnvEnvironment(
        lambda: LocalGame(kind(**init), action), options, where, deterministic=deterministic, sha256=sha256
    )


def remote_environment(address: str, options: Mapping[str, Any], where: str, deterministic: bool) -> OpenEnvEnvironment:
    """The environment of a server, which is asked what an action is."""
    require("openenv", f"task source {where}", TaskError)
    import httpx2

    try:
        schema = httpx2.get(f"{address.rstrip('/')}/schema", timeout=10).raise_for_status().json()["action"]
    except (httpx2.HTTPError, KeyError, ValueError) as error:
        raise TaskError(f"task source {where}: its server does not say what an action is ({error!r:.120})") from error
    return OpenEnvEnvironment(lambda: RemoteGame(address, schema), options, where, deterministic=deterministic)


def _action_of(kind: Any, where: str) -> Any:
    """The action type of an environment class: the annotation of `step`, or the first argument of its generic base."""
    from typing import get_args, get_type_hints

    from openenv.core.env_server import Action

    candidates = [get_type_hints(kind.step).get("action")]
    candidates += [one for base in getattr(kind, "__orig_bases__", ()) for one in get_args(base)[:1]]
    for one in candidates:
        if isinstance(one, type) and issubclass(one, Action):
            return one
    raise TaskError(f"task source {where}: {kind.__name__}.step does not say what its action is; annotate it")
