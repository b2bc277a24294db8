"""Sanitises text from strangers for display."""


def one_line(text: str) -> str:
    """The text without line breaks and terminal escapes: reasons and file names come from strangers."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
