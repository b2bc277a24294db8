"""A conversation at the terminal: streamed, readable without colours, and safe for the terminal itself."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from shoal.errors import ConfigError
from shoal.generate.decoding import Decoding
from shoal.roles.model_server import ServeOptions, desk_of
from shoal.rundir import RunDir
from shoal.serve.terminal import Chat, printable
from tests.support.model_in_process import chat_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return chat_run(tmp_path_factory.mktemp("chat"))


def talk(run: RunDir, *lines: str, system: str = "") -> tuple[str, Chat]:
    out, said = io.StringIO(), iter(lines)

    def read() -> str:
        if (line := next(said, None)) is None:
            raise EOFError
        return line

    options = ServeOptions(None, "torch", None, 1, 1)
    with desk_of(run, options, Console(file=io.StringIO())) as (desk, versions, prompts):
        chat = Chat(desk, versions, prompts, out, Decoding(1.0), max_tokens=8, system=system, seed=1)
        chat.run(read)
    return out.getvalue(), chat


def test_answers_name_their_version_and_the_conversation_is_remembered_until_it_is_reset(run: RunDir) -> None:
    said, chat = talk(run, "hello", "/version 0", "and you?", "/version 7", "/nonsense", "/help", system="be brief")
    assert "v1> " in said
    assert "v0> " in said
    assert "version 0 (chosen); there are 0, 1" in said
    assert "does not exist" in said
    assert "/nonsense: not a command" in said
    assert "\x1b" not in said
    assert [turn["role"] for turn in chat.turns] == ["system", "user", "assistant", "user", "assistant"]
    assert "v1>" not in chat.turns[2]["content"]
    _, again = talk(run, "hello", "/reset", system="be brief")
    assert [turn["role"] for turn in again.turns] == ["system"]


def test_a_model_without_a_chat_template_is_asked_one_question_at_a_time(tmp_path: Path) -> None:
    run = chat_run(tmp_path, template=False)
    said, chat = talk(run, "2+2=", "3+3=")
    assert "each question stands alone" in said
    assert said.count("v1> ") == 2
    assert chat.turns == []
    with pytest.raises(ConfigError, match="no chat template"):
        talk(run, system="be brief")


def test_what_steers_a_terminal_is_shown_and_not_obeyed() -> None:
    hostile = "a\x1b[2Jb\x9b31m\r\b\x07\u202ec\u2028d"
    shown = printable(hostile)
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    assert "\\x1b[2J" in shown
    assert printable("tab\tand\nline é€") == "tab\tand\nline é€"
