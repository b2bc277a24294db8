r"""Extraction of the final answer: after the thinking part, in a box, between tags or in a code block.

Only the last one counts, so that nobody earns anything by listing guesses.
"""

import re
from typing import Literal

Place = Literal["whole", "tagged", "boxed"]
THINK, THOUGHT = "<think>", "</think>"
ASK_FOR: dict[Place, str] = {
    "whole": "",
    "tagged": "\nGive the final answer between <answer> and </answer>.",
    "boxed": "\nPut the final answer in \\boxed{}.",
}
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
# A fence is a line of its own. Text after a fence that is never closed is not a block.
BLOCK = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
PYTHON = ("", "python", "py", "python3")


def after_thinking(completion: str, *, required: bool = False) -> str | None:
    """What follows the thinking part; None if that was opened and never closed, or is required and not there."""
    head, closed, rest = completion.rpartition(THOUGHT)
    if THINK in rest or (required and not closed):
        return None
    return rest if closed else head + rest


def final_answer(completion: str, place: Place) -> str | None:
    """The last answer at its place, without the space around it; None if there is none."""
    match place:
        case "whole":
            return completion.strip()
        case "tagged":
            found = TAGGED.findall(completion)
            return found[-1].strip() if found else None
        case "boxed":
            return last_box(completion)


def shown(answer: str, place: Place) -> str:
    """A right answer as a model would have to give it."""
    match place:
        case "whole":
            return answer
        case "tagged":
            return f"<answer>{answer}</answer>"
        case "boxed":
            return f"\\boxed{{{answer}}}"


def last_box(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}` that is closed, braces and all."""
    for box in reversed(list(BOX.finditer(text))):
        depth = 1
        for brace in re.finditer(r"(?<!\\)[{}]", text[box.end() :]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                return text[box.end() : box.end() + brace.start()].strip()
    return None


def last_python(text: str) -> str | None:
    """The last fenced block that is Python, or that says nothing about what it is."""
    blocks = [code for language, code in BLOCK.findall(text) if str(language).lower() in PYTHON]
    return blocks[-1] if blocks else None
