"""What a sample may look like: rules on whole columns, whose errors name the first sample that breaks one."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import RolloutError
from shoal.protocol.rollout import SCHEMA, Columns, Ragged, Rollout, read_parts, table_of
from shoal.protocol.turns import Places, breaks_form, drawn_count
from shoal.rollout_size import proof_room

MAX_REWARD = 1e6
# Messages quote what they refuse, and find their way into verdicts, evidence and metrics.
MAX_TEXT = 1000
MIN_LOGPROB = -1e4
# Softmax in float32 may round a certain token to a log-prob just above 0.
MAX_LOGPROB = 1e-4

Flags = npt.NDArray[np.bool_]
Rule = tuple[Flags, Callable[[int], str]]
"""Which samples break it, and what is said of one that does."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sample of this run may look like."""

    group_size: int
    vocab: int
    max_prompt_tokens: int
    max_new_tokens: int
    span_tokens: int = 0
    """Answers may go on with a newer version at every multiple of this; 0: never."""
    max_turns: int = 1
    """Turns of an answer; 1 where no task is an environment."""


def checked_rollouts(where: str, table: Any, limits: Limits) -> list[Rollout]:
    """All samples of a file, out of a table of SCHEMA; those of a group share their prompt.

    A RolloutError names the first sample that is out of bounds, by the first rule that it breaks.
    """
    _check(where, 0, _missing(table))
    columns = Columns.of(table)
    first_of = [number - number % limits.group_size for number in range(len(columns))]
    _check(where, 0, chain(_rules(columns, limits, 0), [_prompt_rule(columns, first_of)]))
    return columns.rollouts(first_of)


def check_samples(where: str, samples: Sequence[Rollout], limits: Limits, first: int) -> None:
    """Holds some samples of a file, from number `first` on, each by itself, to the same rules."""
    _check(where, first, _rules(Columns.of(table_of(samples)), limits, first))


def rollouts_as_written(where: str, table: Any) -> list[Rollout]:
    """The samples of a table of SCHEMA, of which nothing is known but that no value is missing."""
    _check(where, 0, _missing(table))
    return Columns.of(table).rollouts(range(table.num_rows))


def _missing(table: Any) -> Iterator[Rule]:
    for name in (field.name for field in SCHEMA if not field.nullable):
        yield np.asarray(table[name].is_null(), bool), f"{name} is missing".format


def _check(where: str, first: int, rules: Iterable[Rule]) -> None:
    broken = [(int(flags.argmax()), say) for flags, say in rules if flags.any()]
    if broken:
        sample, say = min(broken, key=lambda rule: rule[0])
        raise RolloutError(f"{where} sample {first + sample}: {say(sample)}")


def _rules(columns: Columns, limits: Limits, first: int) -> Iterator[Rule]:
    """The rules on single samples, in the order in which a sample is held to them."""
    plain, size = columns.plain, limits.group_size
    numbers = np.arange(first, first + len(columns))
    group, sample = np.array(plain["group"], np.int64), np.array(plain["sample"], np.int64)

    def placed(n: int) -> str:
        return f"numbered group {group[n]} sample {sample[n]}, expected {divmod(int(numbers[n]), size)}"

    yield (group != numbers // size) | (sample != numbers % size), placed
    yield from _token_rules("prompt", columns.prompt, limits.max_prompt_tokens, limits.vocab)
    yield from _token_rules("completion", columns.completion, limits.max_new_tokens, limits.vocab)
    broken, tokens = _turns(columns, limits)
    yield _flags(n in broken for n in range(len(columns))), lambda n: broken[n]
    given = columns.logprobs.lengths
    yield given != tokens, lambda n: f"{given[n]} log-probs for {tokens[n]} tokens"
    values = columns.logprobs.values
    yield _value_rule(
        columns.logprobs,
        ~((values >= MIN_LOGPROB) & (values <= MAX_LOGPROB)),
        lambda value: f"log-prob {value} is not in {MIN_LOGPROB:.0f}..0",
    )
    for name in ("source", "error", "parts"):
        yield _text_rule(name, plain[name])
    yield (
        _flags(f not in ("eos", "length") for f in plain["finish"]),
        lambda n: f'finish {plain["finish"][n]!r:.80} is neither "eos" nor "length"',
    )
    rewards, errors = plain["reward"], plain["error"]
    yield (
        _flags(r is not None and not -MAX_REWARD <= r <= MAX_REWARD for r in rewards),
        lambda n: f"reward {rewards[n]} is not in -{MAX_REWARD:.0f}..{MAX_REWARD:.0f}",
    )
    advantages = np.array(plain["advantage"], float)
    yield ~np.isfinite(advantages), lambda n: f"advantage {advantages[n]} is not finite"
    most = proof_room(limits.max_new_tokens, limits.max_turns)
    yield (
        _flags(len(proof) > most for proof in plain["proof"]),
        lambda n: f"a proof of {len(plain['proof'][n])} bytes, at most {most} are needed",
    )
    yield (
        _flags(not _are_parts(parts) for parts in plain["parts"]),
        lambda n: f"parts {plain['parts'][n]!r:.80} is not a JSON object of numbers",
    )
    yield (
        _flags((r is None) != bool(e) for r, e in zip(rewards, errors, strict=True)),
        lambda n: f"reward {rewards[n]} with error {errors[n]!r}; exactly one must be given",
    )


def _turns(columns: Columns, limits: Limits) -> tuple[dict[int, str], Places]:
    """The samples whose runs are not those of turns, and why; and how many tokens of each sample the policy drew."""
    tokens, broken = columns.completion.lengths.copy(), dict[int, str]()
    for n in np.flatnonzero(columns.runs.lengths).tolist():
        runs = columns.runs[n]
        if why := breaks_form(runs, int(tokens[n]), limits.max_turns):
            broken[n] = why
        else:
            tokens[n] = drawn_count(runs, int(tokens[n]))
    return broken, tokens


def _token_rules(what: str, ids: Ragged[np.int32], most: int, vocab: int) -> Iterator[Rule]:
    lengths = ids.lengths
    yield (lengths < 1) | (lengths > most), lambda n: f"{what} of {lengths[n]} tokens, allowed 1..{most}"
    # Seen as unsigned, a negative number is larger than any vocabulary.
    bad = ids.values.view(np.uint32) >= vocab
    yield _value_rule(ids, bad, lambda value: f"{what} holds token {value}, allowed 0..{vocab - 1}")


def _value_rule(ragged: Ragged[Any], bad: Flags, say: Callable[[object], str]) -> Rule:
    """A rule on single values: a sample breaks it with its first bad one."""
    flags = np.zeros(len(ragged.starts) - 1, bool)
    flags[ragged.holding(np.flatnonzero(bad))] = True

    def said(n: int) -> str:
        start = int(ragged.starts[n])
        place = start + int(bad[start : ragged.starts[n + 1]].argmax())
        return say(None if place in ragged.missing else ragged.values[place].item())

    return flags, said


def _text_rule(name: str, texts: list[str]) -> Rule:
    flags = _flags(len(text) > MAX_TEXT for text in texts)
    return flags, lambda n: f"{name} of {len(texts[n])} characters, at most {MAX_TEXT} are allowed"


def _flags(found: Iterator[bool]) -> Flags:
    return np.fromiter(found, bool)


def _are_parts(text: str) -> bool:
    try:
        read_parts(text)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return False
    return True


def _prompt_rule(columns: Columns, first_of: Sequence[int]) -> Rule:
    flags = _flags(_asks_another(columns, n, first) for n, first in enumerate(first_of))
    return flags, lambda _: "answers another prompt than the first sample of its group"


def _asks_another(columns: Columns, n: int, first: int) -> bool:
    plain = columns.plain
    return (
        plain["source"][n] != plain["source"][first]
        or plain["task"][n] != plain["task"][first]
        or not np.array_equal(columns.prompt[n], columns.prompt[first])
    )
