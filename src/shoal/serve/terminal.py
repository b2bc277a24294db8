"""`shoal chat`: a conversation with a run's versions in a terminal, readable without colours and through a pipe.

An answer is drawn by a model that strangers helped to train: what could steer a terminal is never printed.
"""

import queue
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TextIO

from shoal.errors import ConfigError
from shoal.generate.decoding import Decoding
from shoal.generate.engine import Request
from shoal.openai_api.errors import ApiError
from shoal.serve.assembly import Assembly
from shoal.serve.desk import Began, Desk, News, Ticket
from shoal.serve.prompts import Prompts
from shoal.serve.versions import Versions

HELP = """/version      which version answers, and which there are
/version N    answer with version N; /version newest follows the run
/reset        forget the conversation
/help         this list
/quit         end; so does Ctrl-D. Ctrl-C stops an answer"""


def printable(text: str) -> str:
    """The text with control characters made visible: none of them reaches the terminal but line breaks and tabs."""
    return "".join(char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in text)


@dataclass(slots=True)
class Chat:
    """The conversation so far, and how it is answered."""

    desk: Desk
    versions: Versions
    prompts: Prompts
    out: TextIO
    decoding: Decoding
    max_tokens: int | None = None
    system: str = ""
    seed: int | None = None
    number: int | None = None
    """The version that answers; None for the newest."""
    turns: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.system and not self.prompts.has_template:
            raise ConfigError("chat --system: this model has no chat template, so it knows no system message")
        self._reset()

    def run(self, read: Callable[[], str]) -> None:
        """Reads lines until they end; `read` raises EOFError then."""
        self._say(f"{self.versions.name}: /help lists commands")
        if not self.prompts.has_template:
            self._say("this model has no chat template: each question stands alone, as in its training")
        while True:
            try:
                line = read().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                self._say("")
                return
            if line == "/quit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._ask(line)

    def _command(self, line: str) -> None:
        match line.split():
            case ["/help"]:
                self._say(HELP)
            case ["/reset"]:
                self._reset()
                self._say("the conversation is forgotten")
            case ["/version"]:
                self._say_versions()
            case ["/version", "newest"]:
                self.number = self.versions.pinned
                self._say_versions()
            case ["/version", number]:
                self._choose(number)
            case [name, *_]:
                self._say(f"{printable(name)}: not a command; /help lists them")

    def _choose(self, number: str) -> None:
        try:
            self.number = self.versions.parse(f"{self.versions.name}@{number}")
        except ApiError as error:
            self._say(printable(error.message))
            return
        self._say_versions()

    def _say_versions(self) -> None:
        try:
            now = self.versions.find(self.number).number
        except ApiError as error:
            self._say(printable(error.message))
            return
        which = "the newest" if self.number is None else "chosen"
        numbers = [self.versions.pinned] if self.versions.pinned is not None else self.versions.channel.numbers()
        self._say(f"version {now} ({which}); there are {', '.join(map(str, numbers))}")

    def _reset(self) -> None:
        self.turns = [{"role": "system", "content": self.system}] if self.system else []

    def _ask(self, line: str) -> None:
        asked = {"role": "user", "content": line}
        turns = [*self.turns, asked] if self.prompts.has_template else [asked]
        try:
            prompt = self.prompts.chat(turns)
            room = self.prompts.room(prompt, None, "messages")
        except ApiError as error:
            self._say(f"{printable(error.message)}; /reset begins again")
            return
        answer = ""
        try:
            for text in self._answer(prompt, min(room, self.max_tokens or room)):
                answer += text
                self.out.write(printable(text))
                self.out.flush()
        except KeyboardInterrupt:
            self.out.write(" [stopped]")
        except ApiError as error:
            self.out.write(f" [{printable(error.message)}]")
        self._say("")
        if self.prompts.has_template:
            self.turns += [asked, {"role": "assistant", "content": answer}]

    def _answer(self, prompt: tuple[int, ...], room: int) -> Iterator[str]:
        heard: queue.SimpleQueue[News] = queue.SimpleQueue()
        seed = secrets.randbits(63) if self.seed is None else self.seed
        request = Request(prompt, seed, 0, room, decoding=self.decoding, streamed=True)
        ticket = Ticket(self.number, [request], heard.put)
        assembly = Assembly(self.prompts.decode, [prompt])
        self.desk.take(ticket)
        try:
            while not assembly.is_over:
                news = heard.get()
                if isinstance(news, ApiError):
                    raise news
                if isinstance(news, Began):
                    self.out.write(f"v{news.version.number}> ")
                elif (piece := assembly.hear(news)) is not None:
                    yield piece.text
                    if piece.finish == "length":
                        self.out.write(" [cut off at the length limit]")
        finally:
            if not assembly.is_over:
                self.desk.drop(ticket)

    def _say(self, text: str) -> None:
        self.out.write(f"{text}\n")
        self.out.flush()
