"""The distribution tree: walks from a server to those that fetch from it, and shows how much of each version they have.

What a node says of itself is its claim: it is shown, and the URL it gives is asked for its own tree, nothing more.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.tree import Tree

from shoal.errors import ShardcastError
from shoal.shardcast.fetch.http import Connection, Pace
from shoal.shardcast.format.records import MIB

MAX_NODES = 500
MAX_DEPTH = 8
RECENT_S = 600.0

Short = Annotated[str, Field(max_length=200)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class Held(BaseModel):
    model_config = ConfigDict(frozen=True)
    bytes: Count
    whole: bool


class Seen(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: Short
    url: Short
    seen: float
    sent: dict[Short, Count]


class Node(BaseModel):
    """What `/tree.json` says."""

    model_config = ConfigDict(frozen=True)
    name: Short
    packages: dict[Short, Held]
    children: list[Seen]


def ask(url: str) -> Node:
    connection = Connection(url)
    try:
        answer = connection.get("tree.json", pace=Pace(5.0))
        if answer.status != 200:
            raise ShardcastError(f"{url}: answered {answer.status}; is it a shoal origin or relay?")
        return Node.model_validate_json(answer.read(4 * MIB))
    except ValidationError as error:
        raise ShardcastError(f"{url}: its tree cannot be read ({error.error_count()} errors)") from None
    finally:
        connection.close()


def walk(url: str, ask: Callable[[str], Node] = ask) -> Tree:
    """The tree below a node, ready to print. A node that does not answer is shown as such."""
    seen = {url}
    node = ask(url)
    tree = Tree(_label(node.name, url, node))
    todo = [(tree, node, 0)]
    while todo:
        branch, node, depth = todo.pop(0)
        for child in sorted(node.children, key=lambda child: (not child.url, child.name)):
            if time.time() - child.seen > RECENT_S or len(seen) > MAX_NODES:
                continue
            key = child.url or f"{child.name} {len(seen)}"
            if key in seen:
                continue
            seen.add(key)
            below: Node | None = None
            if child.url and depth < MAX_DEPTH:
                with suppress(ShardcastError):
                    below = ask(child.url)
            label = f"[b]{_plain(child.name or 'unnamed')}[/b]  {_plain(child.url)}"
            if below is not None:
                label = _label(below.name, child.url, below)
            else:
                label += "  " + ", ".join(f"{_version(p)} {_size(n)}" for p, n in list(child.sent.items())[-3:])
            new = branch.add(label)
            if below is not None:
                todo.append((new, below, depth + 1))
    return tree


def _label(name: str, url: str, node: Node) -> str:
    newest = sorted(node.packages.items())[-3:]
    held = ", ".join(f"{_version(p)} {_size(h.bytes)}{'' if h.whole else ' so far'}" for p, h in newest)
    return f"[b]{_plain(name)}[/b]  {_plain(url)}  {held}"


def _version(package: str) -> str:
    number, _, rest = package.partition("-")
    kind = rest.split("-")[0]
    return _plain(
        f"v{int(number)}{'Δ' if kind == 'delta' else ''}" if number.isdigit() and number.isascii() else package
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _plain(text: str) -> str:
    """What came from outside, without anything that a terminal or rich would act on."""
    return "".join(sign for sign in text if sign.isprintable()).replace("[", "(").replace("]", ")")
