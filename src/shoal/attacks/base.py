"""Registry of attacks by name, and the helpers that several of them share."""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shoal import toploc
from shoal.errors import ConfigError
from shoal.generate.engine import Completion, Request
from shoal.generate.submission_builder import Maker
from shoal.models.load import Policy
from shoal.protocol.rollout import bare_rollout
from shoal.validate.recompute import replay

ATTACKS: dict[str, type[Maker]] = {}
EPISODE_ATTACKS: dict[str, type[Maker]] = {}
"""Those that need tasks that are played in turns."""


def attack(kind: type[Maker]) -> type[Maker]:
    """Lists a class under its name in lower case: `FalseReward` is `false_reward`."""
    ATTACKS[_name(kind)] = kind
    return kind


def episode_attack(kind: type[Maker]) -> type[Maker]:
    """The same for one that needs tasks that are played in turns."""
    EPISODE_ATTACKS[_name(kind)] = kind
    return kind


def _name(kind: type[Maker]) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).removeprefix("_")


def attack_named(name: str) -> type[Maker]:
    known = ATTACKS | EPISODE_ATTACKS
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"attack {name!r}: unknown{hint} Known: {', '.join(known)}")
    return known[name]


@contextmanager
def fewer_layers(policy: Policy) -> Iterator[None]:
    """The policy without the last third of its layers: a smaller model that speaks much like it."""
    body: Any = policy.model.base_model
    layers = body.layers
    body.layers = layers[: max(1, 2 * len(layers) // 3)]
    try:
        yield
    finally:
        body.layers = layers


def through_the_right_model(
    maker: Maker, requests: Sequence[Request], texts: Sequence[list[int]], ended: Sequence[bool]
) -> list[Completion]:
    """Texts of any origin with the states and log-probs that the claimed model has for them."""
    samples = [bare_rollout(request.prompt, text) for request, text in zip(requests, texts, strict=True)]
    config = maker.config
    found = replay(maker.policy, samples, None, config.sampling.temperature, config.audit.token_budget)
    return [
        Completion(
            number,
            text,
            own.logprobs_T.tolist(),
            "eos" if end else "length",
            toploc.build(own.states_TD.bfloat16()),
            own.states_TD,
        )
        for number, (text, own, end) in enumerate(zip(texts, found, ended, strict=True))
    ]
