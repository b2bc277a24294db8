"""From news of the engine to pieces of text, for all answers of one request. No input or output."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shoal.openai_api.responses import Finish, Piece, TokenLogprob, Usage
from shoal.serve.answer_text import AnswerText
from shoal.serve.desk import Ended, Tokens

Decode = Callable[[Sequence[int]], str]


@dataclass(slots=True)
class _Choice:
    text: AnswerText
    chars: int = 0
    tokens: int = 0
    over: bool = False


@dataclass(slots=True)
class Assembly:
    """Hears what the engine says of each answer, and gives what a client can be shown."""

    decode: Decode
    prompts: Sequence[Sequence[int]]
    """Of each answer."""
    stops: Sequence[str] = ()
    logprobs: bool = False
    token_ids: bool = False
    per_prompt: int = 1
    """Answers in a row that have the same prompt, which counts once."""
    _choices: list[_Choice] = field(init=False)

    def __post_init__(self) -> None:
        self._choices = [_Choice(AnswerText(self.decode, self.stops)) for _ in self.prompts]

    @property
    def is_over(self) -> bool:
        return all(choice.over for choice in self._choices)

    @property
    def usage(self) -> Usage:
        prompts = sum(len(prompt) for prompt in self.prompts[:: self.per_prompt])
        return Usage(prompts, sum(choice.tokens for choice in self._choices))

    def hear(self, news: Tokens | Ended) -> Piece | None:
        """The next piece of an answer, if there is something to show. A piece that ends with "stop" before the engine
        said so has met a stop string: the engine need not go on."""
        choice = self._choices[news.choice]
        if choice.over:
            return None
        if isinstance(news, Ended):
            return self._piece(news.choice, choice, choice.text.end(), [], [], news.finish)
        shown, used = "", 0
        for token in news.tokens:
            shown += choice.text.add(token)
            used += 1
            if choice.text.stopped:
                break
        finish: Finish | None = "stop" if choice.text.stopped else None
        return self._piece(news.choice, choice, shown, news.tokens[:used], news.logprobs[:used], finish)

    def _piece(
        self,
        index: int,
        choice: _Choice,
        text: str,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        finish: Finish | None,
    ) -> Piece | None:
        first = choice.tokens == 0
        choice.tokens += len(tokens)
        choice.over = finish is not None
        details = (self.logprobs or self.token_ids) and len(tokens) > 0
        if not text and finish is None and not details:
            return None
        offset, choice.chars = choice.chars, choice.chars + len(text)
        each = None
        if self.logprobs:
            each = [TokenLogprob(self.decode([one]), logp) for one, logp in zip(tokens, logprobs, strict=True)]
        return Piece(
            index,
            text,
            finish,
            each,
            offset,
            tokens if self.token_ids else None,
            self.prompts[index] if self.token_ids and first else None,
        )


def joined(pieces: Sequence[Piece]) -> Piece:
    """All pieces of one answer as one."""
    first = pieces[0]
    return Piece(
        first.index,
        "".join(piece.text for piece in pieces),
        pieces[-1].finish,
        None if first.logprobs is None else [token for piece in pieces for token in piece.logprobs or ()],
        0,
        None if first.token_ids is None else [token for piece in pieces for token in piece.token_ids or ()],
        first.prompt_token_ids,
    )
