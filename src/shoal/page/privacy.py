"""Text that anybody may read: no network addresses, no URLs, no directories of this machine."""

import re

from shoal.text import one_line

MAX_TEXT = 1000
_MASKED = (
    (re.compile(r"https?://[^\s,;)]+"), "[address]"),
    (re.compile(r"\[[0-9a-fA-F:.%]{2,}\](?::\d+)?"), "[address]"),
    (re.compile(r"(?<![\w.:])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\w.])"), "[address]"),
    (
        re.compile(r"(?<![\w:])(?=[0-9a-fA-F:]*(?:::|(?::[0-9a-fA-F]{1,4}){4}))[0-9a-fA-F:]{3,}(?:%\w+)?(?![\w:])"),
        "[address]",
    ),
    (re.compile(r"(?<![\w.~])~?/(?:[^\s/,;:()'\"]+/)+"), ""),
)


def public_text(text: object) -> str:
    """One line of a role's or a stranger's text, with addresses masked and paths cut to their last part."""
    line = one_line(str(text))[:MAX_TEXT]
    for pattern, instead in _MASKED:
        line = pattern.sub(instead, line)
    return line
