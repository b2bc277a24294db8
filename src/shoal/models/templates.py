"""Chat templates that say the same at any time: a prompt must be the same for a worker and for a validator days later.

Some templates, as those of Llama 3.2 and SmolLM3, write the date into the system turn by `strftime_now`, in local time.
They get a clock that stands still.
"""

from transformers import PreTrainedTokenizerBase

CLOCK = "strftime_now"
# 1 January 2026, a Thursday.
STOPPED = {
    "%Y": "2026",
    "%y": "26",
    "%m": "01",
    "%-m": "1",
    "%d": "01",
    "%-d": "1",
    "%e": " 1",
    "%B": "January",
    "%b": "Jan",
    "%A": "Thursday",
    "%a": "Thu",
    "%j": "001",
    "%H": "00",
    "%I": "12",
    "%M": "00",
    "%S": "00",
    "%p": "AM",
    "%F": "2026-01-01",
    "%x": "01/01/26",
    "%X": "00:00:00",
    "%c": "Thu Jan  1 00:00:00 2026",
    "%Z": "UTC",
    "%z": "+0000",
    "%s": "1767225600",
}


def template_of(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The chat template of a tokenizer, with a clock that stands still where it reads one; None if it has none."""
    if not tokenizer.chat_template:
        return None
    template = str(tokenizer.get_chat_template())
    if CLOCK not in template:
        return template
    replaced = "".join(f"|replace({code!r}, {value!r})" for code, value in STOPPED.items())
    # `+%}`: a line end that the template begins with is its own.
    return f"{{% macro {CLOCK}(format) %}}{{{{ format{replaced} }}}}{{% endmacro +%}}{template}"
