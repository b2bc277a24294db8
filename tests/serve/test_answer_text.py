"""Text while tokens come: the same as decoded at once, whole characters only, and nothing of a stop string."""

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from shoal.serve.answer_text import AnswerText
from tests.support.architectures import byte_tokenizer

TOKENIZER = byte_tokenizer()
TEXTS = st.text(st.sampled_from("ab€𝄞é\n "), max_size=120)


def decode(tokens: Sequence[int]) -> str:
    return str(TOKENIZER.decode(list(tokens), skip_special_tokens=True))


def shown(tokens: Sequence[int], stops: Sequence[str] = ()) -> list[str]:
    text = AnswerText(decode, stops)
    return [*(text.add(token) for token in tokens), text.end()]


@given(TEXTS)
@example("𝄞" * 80)
def test_the_pieces_of_an_answer_are_its_text_in_whole_characters(text: str) -> None:
    pieces = shown(TOKENIZER.encode(text))
    assert "".join(pieces) == text
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


@given(TEXTS, st.lists(st.text(st.sampled_from("ab€"), min_size=1, max_size=4), min_size=1, max_size=3))
def test_nothing_of_a_stop_string_is_shown_and_all_before_it_is(text: str, stops: list[str]) -> None:
    pieces = shown(TOKENIZER.encode(text), stops)
    found = [place for stop in stops if (place := text.find(stop)) >= 0]
    said = "".join(pieces)
    # Several stop strings may end at the same character: the one that is noticed first decides.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not found:
        assert said == text
    else:
        assert said in {text[:place] for place in found}
        assert len(said) < min(ends)


def test_bytes_that_are_not_text_neither_stop_the_flow_nor_slow_it_down() -> None:
    calls = 0

    def counted(tokens: Sequence[int]) -> str:
        nonlocal calls
        calls += len(tokens)
        return decode(tokens)

    text = AnswerText(counted)
    broken = TOKENIZER.encode("€")[:1]
    pieces = [text.add(token) for token in broken * 2000]
    assert len("".join(pieces) + text.end()) >= 1900
    assert calls < 2000 * 200
