"""Words, sentences and languages as the reference scorer of IFEval counts them: by nltk (Punkt) and langdetect.

All of it is loaded at once (`load`), before the process that scores gives up the right to read files.
"""

from functools import cache
from pathlib import Path
from typing import Any

from shoal.errors import TaskError
from shoal.extras import require
from shoal.files import cache_dir


def nltk_data() -> Path:
    """Where `shoal suites --fetch ifeval` puts the model of English sentences."""
    return cache_dir() / "evals" / "nltk_data"


def load(punkt: bool) -> None:
    """Loads what the rules need; TaskError with the fix where a package, or with `punkt` its model, is missing."""
    require("ifeval", "IFEval", TaskError)
    language_of("This is a sentence.")
    if punkt:
        _tokenizer()


@cache
def _tokenizer() -> Any:
    import nltk

    if str(nltk_data()) not in nltk.data.path:
        nltk.data.path.insert(0, str(nltk_data()))
    try:
        return nltk.tokenize.PunktTokenizer("english")
    except LookupError:
        raise TaskError(
            f"IFEval: nltk's model of English sentences (punkt_tab) is neither in {nltk_data()} nor where nltk looks; "
            "run: shoal suites --fetch ifeval"
        ) from None


def sentences_in(text: str) -> int:
    return len(_tokenizer().tokenize(text))


def words_in(text: str) -> list[str]:
    """Words and marks of each sentence."""
    import nltk

    words = nltk.tokenize.NLTKWordTokenizer()
    return [str(word) for sentence in _tokenizer().tokenize(text) for word in words.tokenize(sentence)]


def language_of(text: str) -> str | None:
    """ISO 639-1 code of a text's language, the same each time; None for a text that has none, such as digits."""
    import langdetect

    langdetect.DetectorFactory.seed = 0
    try:
        return str(langdetect.detect(text))
    except langdetect.LangDetectException:
        return None
