"""The `shoal` command itself: where commands register, and how errors reach a person (one line, no traceback)."""

import errno
import os
import sys
from typing import NoReturn

import typer
from rich.console import Console

from shoal.errors import BannedError, LimitError, ShoalError, StorageError
from shoal.process import EXIT_BANNED, EXIT_LIMIT, EXIT_REFUSED, die_with_parent, say_last_words, set_defaults

app = typer.Typer(
    help="Asynchronous reinforcement learning of language models over machines that nobody has to trust.\n\n"
    "Start with: shoal run configs/laptop.toml",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
errors = Console(stderr=True)


def main() -> None:
    """Entry point: an error meant for people is printed without a traceback, and the exit code says its kind."""
    set_defaults()
    die_with_parent()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except BannedError as error:
        refuse(error, EXIT_BANNED)
    except LimitError as error:
        refuse(error, EXIT_LIMIT)
    except ShoalError as error:
        refuse(error)
    except OSError as error:
        cause = error.__context__  # the reason for the end must not be lost because nothing more can be written
        error = cause if isinstance(cause, OSError) else error
        if error.errno == errno.ENAMETOOLONG:
            refuse(StorageError(f"{str(error.filename)[:80]}...: {error.strerror}; give a shorter one"))
        if error.filename is not None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise  # it is about a file, and a defect of ours
        _mute(1)
        why = f"standard output: cannot be written ({error.strerror}); send it elsewhere"
        if error.filename is not None:
            why = f"{error.filename}: the disk is full; free some space"
        refuse(cause if isinstance(cause, ShoalError) else StorageError(why))


def _mute(descriptor: int) -> None:
    """Discards what is still buffered: failing again on the way out would change the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def refuse(error: ShoalError, code: int = EXIT_REFUSED) -> NoReturn:
    """Prints an error and exits."""
    # A stranger's run card may be quoted: no terminal escapes.
    text = "".join(char if char.isprintable() or char == "\n" else " " for char in str(error))
    say_last_words(text)
    try:
        errors.print(f"error: {text}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        sys.stderr.flush()
    except OSError:
        _mute(2)
    sys.exit(code)
