"""From the text of a request to the tokens that a policy was trained to see."""

from collections.abc import Sequence

from shoal.models.load import Policy
from shoal.models.templates import template_of
from shoal.openai_api.errors import ApiError, invalid


class Prompts:
    """Tokenizes as training does: through the chat template where the model has one, as it is otherwise."""

    def __init__(self, policy: Policy, max_len: int) -> None:
        self._policy = policy
        self.max_len = min(max_len, policy.max_positions)
        self.has_template = bool(policy.tokenizer.chat_template)

    def chat(self, turns: Sequence[dict[str, str]]) -> tuple[int, ...]:
        if not self.has_template:
            if len(turns) != 1 or turns[0]["role"] != "user":
                raise invalid(
                    "messages",
                    "this model has no chat template: it was trained on single questions; send one user message",
                    "no_chat_template",
                )
            return tuple(self._policy.encode(turns[0]["content"]))
        tokenizer = self._policy.tokenizer
        try:
            template = template_of(tokenizer)
            ids = tokenizer.apply_chat_template(
                list(turns), add_generation_prompt=True, return_dict=False, chat_template=template
            )
        except Exception as error:  # a template is a program, and raises what it likes where roles do not alternate
            raise invalid("messages", f"the model's chat template refuses them ({error!s:.200})") from None
        return tuple(map(int, ids))

    def completion(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(map(int, self._policy.tokenizer.encode(prompt)))
        vocab = self._policy.vocab
        if wrong := [token for token in prompt if not 0 <= token < vocab]:
            raise invalid("prompt", f"token {wrong[0]} is not one of the model's {vocab}")
        return tuple(prompt)

    def room(self, prompt: Sequence[int], wanted: int | None, param: str) -> int:
        """How many tokens an answer may have; an ApiError if prompt and answer do not fit together."""
        if not prompt:
            raise invalid("prompt", "has no tokens; give at least one")
        free = self.max_len - len(prompt)
        if free < (wanted or 1):
            raise ApiError(
                400,
                f"a prompt of {len(prompt)} tokens and {wanted or 1} new ones exceed the {self.max_len} this server "
                "takes; shorten the prompt or ask for fewer tokens",
                param=param,
                code="context_length_exceeded",
            )
        return wanted or free

    def decode(self, tokens: Sequence[int]) -> str:
        return self._policy.decode(tokens)
