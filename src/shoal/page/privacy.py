"""Text that anybody may read: no network addresses, no URLs, no directories of this machine."""

import re

from shoal.text import one_line

MAX_TEXT = 1000
_IPV4 = r"\d{1,3}(?:\.\d{1,3}){3}"
_IS_IPV6 = r"(?=[0-9a-fA-F:]*(?:::|(?::[0-9a-fA-F]{1,4}){4}))"
# At the beginning of a word, or after one and a colon, as in peer:ADDRESS.
_BEGINS = r"(?<![\w:])|(?<=\w:)"
_MASKED = (
    (re.compile(r"[\w+.-]{1,30}://[^\s,;)]+"), "[address]"),
    (re.compile(r"\[[0-9a-fA-F:.%]{2,}\](?::\d+)?"), "[address]"),
    # IPv6 with an IPv4 address at its end comes before both of its parts.
    (
        re.compile(rf"(?:{_BEGINS}|(?<=\w)(?=::)){_IS_IPV6}[0-9a-fA-F:]*:{_IPV4}(?:%\w+)?(?::\d+)?(?!\w|\.\d)"),
        "[address]",
    ),
    (re.compile(rf"(?<!\w)(?<!\d\.){_IPV4}(?::\d+)?(?!\w|\.\d)"), "[address]"),
    (re.compile(rf"(?:{_BEGINS}){_IS_IPV6}[0-9a-fA-F:]{{3,}}(?:%\w+)?(?![\w:])"), "[address]"),
    (re.compile(r"(?<![\w.~])~?/(?:[^\s/,;:()'\"]+/)+"), ""),
)


def public_text(text: object) -> str:
    """One line of a role's or a stranger's text, with addresses masked and paths cut to their last part."""
    line = one_line(str(text))[:MAX_TEXT]
    for pattern, instead in _MASKED:
        line = pattern.sub(instead, line)
    return line
