"""The 25 instructions of IFEval (arXiv:2311.07911) as rules: each says of a text whether it follows the instruction.

The rules are those of the checkers in lm-eval's task `ifeval`. Where those draw a number or letter at random because
the data gives none that they take, ours has no verdict, or takes what the data gives (`docs/evals.md`).
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import TaskError
from shoal.tasks.sources.exams.words import language_of, sentences_in, words_in

Arguments = Mapping[str, Any]
Rule = Callable[[str, Arguments], bool]

OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
ENDS_A_WORD = frozenset(".,?!'\"")
POSTSCRIPTS = {"P.P.S": r"\s*p\.\s?p\.\s?s.*$", "P.S.": r"\s*p\.\s?s\..*$"}
FENCES = ("```json", "```Json", "```JSON", "```")


def _compared(count: int, relation: Any, threshold: Any) -> bool:
    match relation:
        case "less than":
            return bool(count < threshold)
        case "at least":
            return bool(count >= threshold)
    raise TaskError(f"IFEval: relation {relation!r} is neither 'less than' nor 'at least'")


def _found(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text, flags=re.IGNORECASE))


def _keywords(text: str, said: Arguments) -> bool:
    """A keyword is a pattern, and may stand inside a word."""
    return all(_found(keyword, text) for keyword in said["keywords"])


def _keyword_frequency(text: str, said: Arguments) -> bool:
    return _compared(_found(said["keyword"].strip(), text), said["relation"], said["frequency"])


def _forbidden_words(text: str, said: Arguments) -> bool:
    return not any(_found(rf"\b{word}\b", text) for word in said["forbidden_words"])


def _letter_frequency(text: str, said: Arguments) -> bool:
    count = text.lower().count(said["letter"].strip().lower())
    return _compared(count, said["let_relation"], said["let_frequency"])


def _language(text: str, said: Arguments) -> bool:
    """A text without a language, such as one of digits, is in every language."""
    return language_of(text) in (said["language"], None)


def _sentences(text: str, said: Arguments) -> bool:
    return _compared(sentences_in(text), said["relation"], said["num_sentences"])


def _paragraphs(text: str, said: Arguments) -> bool:
    """Parted by three asterisks. An empty one counts at neither end, and is wrong in between."""
    parts = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    return bool(all(parts[1:-1]) and sum(map(bool, parts)) == said["num_paragraphs"])


def _number_words(text: str, said: Arguments) -> bool:
    return _compared(len(re.findall(r"\w+", text)), said["relation"], said["num_words"])


def _first_word(text: str, said: Arguments) -> bool:
    """Paragraphs are parted by empty lines; a paragraph of space is not counted, but has its place."""
    paragraphs = text.split("\n\n")
    count = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    place = said["nth_paragraph"]
    if place > count or not (words := paragraphs[place - 1].split()):
        return False
    word = words[0].lstrip("'").lstrip('"')
    end = next((at for at, letter in enumerate(word) if letter in ENDS_A_WORD), len(word))
    return bool(count == said["num_paragraphs"] and word[:end].lower() == said["first_word"].lower())


def _placeholders(text: str, said: Arguments) -> bool:
    return bool(len(re.findall(r"\[.*?\]", text)) >= said["num_placeholders"])


def _postscript(text: str, said: Arguments) -> bool:
    marker = said["postscript_marker"].strip()
    pattern = POSTSCRIPTS.get(marker, rf"\s*{marker.lower()}.*$")
    return re.search(pattern, text.lower(), flags=re.MULTILINE) is not None


def _bullets(text: str, said: Arguments) -> bool:
    starred = re.findall(r"^\s*\*[^\*].*$", text, flags=re.MULTILINE)
    dashed = re.findall(r"^\s*-.*$", text, flags=re.MULTILINE)
    return bool(len(starred) + len(dashed) == said["num_bullets"])


def _one_of_three(text: str, _: Arguments) -> bool:
    return any(option in text for option in OPTIONS)


def _highlights(text: str, said: Arguments) -> bool:
    """What stands between single asterisks, and what stands between double ones."""
    single = [part.strip("*") for part in re.findall(r"\*[^\n\*]*\*", text)]
    double = [part[2:-2] for part in re.findall(r"\*\*[^\n\*]*\*\*", text)]
    return bool(sum(bool(part.strip()) for part in (*single, *double)) >= said["num_highlights"])


def _sections(text: str, said: Arguments) -> bool:
    marks = re.split(rf"\s?{said['section_spliter'].strip()}\s?\d+\s?", text)
    return bool(len(marks) - 1 >= said["num_sections"])


def _json(text: str, _: Arguments) -> bool:
    text = text.strip()
    for fence in FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str, _: Arguments) -> bool:
    return any(title.lstrip("<").rstrip(">").strip() for title in re.findall(r"<<[^\n]+>>", text))


def _two_responses(text: str, _: Arguments) -> bool:
    parts = [part.strip() for part in text.split("******")]
    given = [part for part in parts if part]
    return all(parts[1:-1]) and len(given) == 2 and given[0] != given[1]


def _repeats_prompt(text: str, said: Arguments) -> bool:
    return text.strip().lower().startswith(said["prompt_to_repeat"].strip().lower())


def _ends_with(text: str, said: Arguments) -> bool:
    return text.strip().strip('"').lower().endswith(said["end_phrase"].strip().lower())


def _capital_words(text: str, said: Arguments) -> bool:
    count = sum(word.isupper() for word in words_in(text))
    return _compared(count, said["capital_relation"], said["capital_frequency"])


def _english_capitals(text: str, _: Arguments) -> bool:
    return text.isupper() and language_of(text) in ("en", None)


def _english_small(text: str, _: Arguments) -> bool:
    return text.islower() and language_of(text) in ("en", None)


def _no_comma(text: str, _: Arguments) -> bool:
    return "," not in text


def _quoted(text: str, _: Arguments) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


# By the names that the data has for them, with the arguments that each needs.
RULES: dict[str, tuple[Rule, tuple[str, ...]]] = {
    "keywords:existence": (_keywords, ("keywords",)),
    "keywords:frequency": (_keyword_frequency, ("keyword", "frequency", "relation")),
    "keywords:forbidden_words": (_forbidden_words, ("forbidden_words",)),
    "keywords:letter_frequency": (_letter_frequency, ("letter", "let_frequency", "let_relation")),
    "language:response_language": (_language, ("language",)),
    "length_constraints:number_sentences": (_sentences, ("num_sentences", "relation")),
    "length_constraints:number_paragraphs": (_paragraphs, ("num_paragraphs",)),
    "length_constraints:number_words": (_number_words, ("num_words", "relation")),
    "length_constraints:nth_paragraph_first_word": (_first_word, ("num_paragraphs", "nth_paragraph", "first_word")),
    "detectable_content:number_placeholders": (_placeholders, ("num_placeholders",)),
    "detectable_content:postscript": (_postscript, ("postscript_marker",)),
    "detectable_format:number_bullet_lists": (_bullets, ("num_bullets",)),
    "detectable_format:constrained_response": (_one_of_three, ()),
    "detectable_format:number_highlighted_sections": (_highlights, ("num_highlights",)),
    "detectable_format:multiple_sections": (_sections, ("section_spliter", "num_sections")),
    "detectable_format:json_format": (_json, ()),
    "detectable_format:title": (_title, ()),
    "combination:two_responses": (_two_responses, ()),
    "combination:repeat_prompt": (_repeats_prompt, ("prompt_to_repeat",)),
    "startend:end_checker": (_ends_with, ("end_phrase",)),
    "startend:quotation": (_quoted, ()),
    "change_case:capital_word_frequency": (_capital_words, ("capital_frequency", "capital_relation")),
    "change_case:english_capital": (_english_capitals, ()),
    "change_case:english_lowercase": (_english_small, ()),
    "punctuation:no_comma": (_no_comma, ()),
}
RELATIONS = ("less than", "at least")
PATTERNS = ("keyword", "keywords", "forbidden_words")
LISTS = ("keywords", "forbidden_words")
TEXTS = (
    *("keyword", "relation", "let_relation", "capital_relation", "letter", "language", "first_word"),
    *("postscript_marker", "section_spliter", "prompt_to_repeat", "end_phrase"),
)


def checked(argument: str, value: Any) -> Any:
    """A rule's argument as the rule takes it; a ValueError says what it must be where no rule could use it."""
    if argument in LISTS or argument in TEXTS:
        parts = value if argument in LISTS else [value]
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise ValueError(f"{argument} {value!r:.40} is not {'a list of texts' if argument in LISTS else 'a text'}")
        if argument.endswith("relation") and value not in RELATIONS:
            raise ValueError(f"{argument} {value!r:.40} is neither {RELATIONS[0]!r} nor {RELATIONS[1]!r}")
        for pattern in parts if argument in PATTERNS else ():
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise ValueError(f"{argument} {pattern!r:.40} is not a pattern ({error})") from None
        return value
    is_whole = value.is_integer() if isinstance(value, float) else isinstance(value, int)
    if isinstance(value, bool) or not is_whole:
        raise ValueError(f"{argument} {value!r:.40} is not a whole number")
    return int(value)


# Those that need a model of English sentences.
NEED_PUNKT = ("length_constraints:number_sentences", "change_case:capital_word_frequency")
