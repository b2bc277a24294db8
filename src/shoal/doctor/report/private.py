"""Keeps a report free of what is nobody's business: host and user names, paths, and addresses.

A report is sent to strangers. Its own figures hold none of these; messages of libraries may, so every text is cleaned.
"""

import getpass
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_PATH = re.compile(r"(?<![\w.*-])(?:~|[A-Za-z]:)?[\\/](?:[^\s\\/'\"`,;:()<>\[\]]+[\\/]?)+")
_IPV4 = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")
_IPV6 = re.compile(r"(?<![\w:])(?=[0-9a-fA-F:]*::|(?:[0-9a-fA-F]{1,4}:){4})[0-9a-fA-F:]{3,}(?![\w:])")
# A single letter is part of ordinary texts.
MIN_NAME = 2
COMMON = {"root", "user", "localhost", "admin", "ubuntu"}


def names() -> set[str]:
    """What this machine and its user are called."""
    found = {socket.gethostname(), socket.gethostname().partition(".")[0], Path.home().name}
    with suppress(KeyError, OSError):  # a user without a name
        found.add(getpass.getuser())
    return {name for name in found if len(name) >= MIN_NAME and name.lower() not in COMMON}


def cleaned(text: str, private: set[str] | None = None) -> str:
    """The text without paths, addresses and names of this machine."""
    text = _PATH.sub("PATH", text)
    text = _IPV6.sub("ADDRESS", _IPV4.sub("ADDRESS", text))
    for name in sorted(names() if private is None else private, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "NAME", text, flags=re.IGNORECASE)
    return text


def cleaned_tree(tree: Any, private: set[str] | None = None) -> Any:
    """The same for every text of a JSON tree, its keys included."""
    known = names() if private is None else private
    match tree:
        case str():
            return cleaned(tree, known)
        case Mapping():
            return {cleaned(str(key), known): cleaned_tree(value, known) for key, value in tree.items()}
        case Sequence():
            return [cleaned_tree(value, known) for value in tree]
    return tree
