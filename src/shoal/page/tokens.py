"""Tokens as text: a whole answer, and each token by itself. What cannot be decoded is shown by its number."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shoal.errors import ModelError

MAX_PIECE = 40


class Decoder(Protocol):
    def text(self, ids: Sequence[int]) -> str: ...

    def pieces(self, ids: Sequence[int]) -> list[str]: ...


class TokenizerFile:
    """The run's own tokenizer, read without transformers: a fraction of a second instead of several."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises nothing more special
            raise ModelError(f"{path.name}: not a readable tokenizer ({error})") from error

    def text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(self._tokenizer.decode([token], skip_special_tokens=False))[:MAX_PIECE] for token in ids]


class Numbers:
    """Token numbers, where there is no tokenizer: a copied run may have no weights."""

    def text(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(token) for token in ids]


def decoder_of(base_model: Path) -> Decoder:
    """The tokenizer of a run's base model, or numbers for as long as it is not there."""
    try:
        return _read(base_model / "tokenizer.json")
    except ModelError:
        return Numbers()


@functools.lru_cache(maxsize=2)
def _read(path: Path) -> TokenizerFile:
    """Read once: a large vocabulary takes long, and a page that shows evidence asks again every few seconds."""
    return TokenizerFile(path)
