"""Token-exact turns: what stands between the last token that the policy drew and the first one of its next turn.

Nothing that was drawn is ever decoded and encoded again. The chat template is applied to what comes between two turns
alone: it is rendered behind a reply that stands for any, and what follows that reply is the text to insert. That is
right only if a template neither changes nor reads earlier turns. It is checked when the first episode is made; a
template that drops the thinking part of earlier replies, for example, is refused by name.

A tokenizer without a template gets the text on a line of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from shoal.errors import ModelError
from shoal.models.load import Policy
from shoal.models.templates import template_of

# Stands for a reply in a rendered conversation; nothing that a template could take for its own.
REPLY = "shoal0reply0"
ASKED = "shoal0asked0"
TOLD = "shoal0told0"
# Replies that templates are known to change once another turn follows.
TRIED = ("<think>\nhidden\n</think>\n\nshown", " two  words ", "{}")
Message = Mapping[str, str]
# Observations whose tokens are kept.
MAX_REMEMBERED = 8192


@dataclass(frozen=True, slots=True)
class Turns:
    """Renders what is inserted between turns, for one tokenizer."""

    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]

    @classmethod
    def of(cls, policy: Policy) -> "Turns":
        """A ModelError names a chat template that does not keep what came before."""
        turns = cls(policy.tokenizer, policy.eos_ids)
        turns.check()
        return turns

    def check(self) -> None:
        if self.tokenizer.chat_template:
            self._check_keeps("user")
        if not self.find_between(min(self.eos_ids), "user", ""):
            raise ModelError("chat template: inserts no token between two turns; they could not be told apart")

    def between(self, ended_with: int, role: str, text: str) -> list[int]:
        """Tokens from behind a turn, whose last token is `ended_with`, to where the next one begins.

        The text of special tokens is removed: it would become the tokens themselves. What was found is remembered,
        because environments repeat themselves.
        """
        return list(_between(self, ended_with, role, text))

    def find_between(self, ended_with: int, role: str, text: str) -> tuple[int, ...]:
        text = self._without_specials(text)
        if not self.tokenizer.chat_template:
            return self._ids(f"\n{text}\n")
        _check_role(self, role)
        return self._ids(self._behind_end(self._behind_reply({"role": role, "content": text}), ended_with))

    def check_role(self, role: str) -> None:
        """A ModelError names a template that refuses such a role, leaves out what it says, or rewrites what came before
        where it follows."""
        if TOLD not in self._behind_reply({"role": role, "content": TOLD}):
            raise ModelError(
                f"chat template: leaves out what a {role} says; use a template that has turns of that role"
            )
        if role != "user":  # which is checked at the beginning
            self._check_keeps(role)

    def _behind_reply(self, told: Message) -> str:
        return self._rendered([{"role": "user", "content": ASKED}, _reply(REPLY), told]).partition(REPLY)[2]

    def _behind_end(self, rest: str, ended_with: int) -> str:
        """What follows the token that ends a reply, which was drawn and is not inserted again."""
        end = str(self.tokenizer.convert_ids_to_tokens(ended_with))
        if rest.startswith(end):
            return rest[len(end) :]
        for other in (str(self.tokenizer.convert_ids_to_tokens(eos)) for eos in sorted(self.eos_ids)):
            if rest.startswith(other):
                return rest  # it ended with another end token: the template's own stands behind it
        raise ModelError(
            f"chat template: a reply is followed by {rest[:40]!r}, and not by a token that ends an answer "
            f"({end!r}); turns could not be told apart"
        )

    def _check_keeps(self, role: str) -> None:
        """Whether all that came before stays as it was where turns of this role follow."""
        asked, following = {"role": "user", "content": ASKED}, {"role": role, "content": "next"}
        begun = self._rendered([asked])
        shape = self._rendered([asked, _reply(REPLY), following])
        if not shape.startswith(begun + REPLY):
            raise _rewrites("begins a reply otherwise once it is followed by another turn", begun, shape)
        for reply in TRIED:
            once = self._rendered([asked, _reply(reply), following])
            expected = shape.replace(REPLY, reply, 1)
            if once != expected:
                raise _rewrites("changes a reply once it is followed by another turn", expected, once)
            more = [asked, _reply(reply), following]
            twice = self._rendered([*more, _reply("second"), {"role": role, "content": "last"}])
            if not twice.startswith(once + "second"):
                raise _rewrites("changes earlier turns when later ones follow", once, twice)
            tail = shape.partition(REPLY)[2].replace("next", "last")
            if twice != once + "second" + tail:
                raise _rewrites("puts other text between later turns than between the first ones", tail, twice)
        self._behind_end(shape.partition(REPLY)[2], min(self.eos_ids))

    def _rendered(self, messages: Sequence[Message]) -> str:
        turns = [dict(message) for message in messages]
        try:
            template = template_of(self.tokenizer)
            return str(
                self.tokenizer.apply_chat_template(
                    turns, add_generation_prompt=True, tokenize=False, chat_template=template
                )
            )
        except Exception as error:  # a template is a program, and raises what it likes
            roles = ", ".join(message["role"] for message in turns)
            raise ModelError(
                f"chat template: refuses turns of {roles} ({error!s:.200}); it cannot be used in turns"
            ) from error

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(map(int, self.tokenizer.encode(text, add_special_tokens=False)))

    def _without_specials(self, text: str) -> str:
        before = None
        while before != text:  # what is taken out may leave another one behind
            before = text
            for special in _specials(self):
                text = text.replace(special, "")
        return text


@lru_cache(maxsize=MAX_REMEMBERED)
def _between(turns: Turns, ended_with: int, role: str, text: str) -> tuple[int, ...]:
    return turns.find_between(ended_with, role, text)


@lru_cache(maxsize=32)
def _check_role(turns: Turns, role: str) -> None:
    turns.check_role(role)


@lru_cache(maxsize=8)
def _specials(turns: Turns) -> tuple[str, ...]:
    """Tokens that no text may become. Not every model calls those special that its template tells turns apart by."""
    tokenizer, template = turns.tokenizer, template_of(turns.tokenizer) or ""
    added = {
        token.content
        for number, token in tokenizer.added_tokens_decoder.items()
        if token.special or number in turns.eos_ids or (_is_mark(token.content) and token.content in template)
    }
    return tuple(sorted(added | set(tokenizer.all_special_tokens)))


def _is_mark(text: str) -> bool:
    """Whether a token is neither space nor a word, which models add for being frequent."""
    return not text.replace(" ", "").isalnum() and bool(text.strip())


def _reply(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _rewrites(how: str, expected: str, found: str) -> ModelError:
    at = next(
        (n for n, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(len(expected), len(found))
    )
    wanted, has = (text[max(0, at - 20) : at + 20] for text in (expected, found))
    return ModelError(
        f"chat template: {how} (where {wanted!r} was, {has!r} is): tokens that were drawn would be written over; use a "
        "template that keeps what came before"
    )
