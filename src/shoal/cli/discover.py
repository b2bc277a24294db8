"""Help panel "Join", continued: find a run to join, list one's own, and invite a machine to a closed run."""

import time
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.app import app, console
from shoal.cli.join import PANEL
from shoal.cli.options import Run
from shoal.errors import ConfigError

DAY_S = 86_400
runs = typer.Typer(help="Open runs: list those of a directory, or publish your own.", invoke_without_command=True)
app.add_typer(runs, name="runs", rich_help_panel=PANEL)
Days = Annotated[int, typer.Option(min=1, max=90, help="Days until it expires.")]


@runs.callback()
def list_runs(
    context: typer.Context,
    directory: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A list of runs: a file or an https URL. URL#0xADDRESS pins its publisher."),
    ] = None,
) -> None:
    """List open runs from a signed directory: model, what each needs, nodes, and the line that joins it."""
    if context.invoked_subcommand is not None:
        if directory is not None:
            raise ConfigError(f"runs {context.invoked_subcommand}: does not take --directory; it is for listing")
        return
    if directory is None:
        raise ConfigError("runs: give --directory URL, the address of a list; shoal runs --help has more")
    from shoal.client.run_directory import show_directory

    show_directory(directory, console)


@runs.command("entry")
def runs_entry(
    run: Run,
    to: Annotated[Path, typer.Option("--out", help="File to write.")] = Path("entry.json"),
    url: Annotated[str | None, typer.Option(help="The coordinator's URL for others; default: the run's own.")] = None,
    about: Annotated[str, typer.Option(help="One line about the run.")] = "",
    days: Days = 7,
) -> None:
    """Write an entry about a run, signed with its coordinator's key, to send to the publisher of a list."""
    from shoal.client.run_directory import entry_lines, make_entry, write_entry
    from shoal.rundir import open_run

    signed = make_entry(open_run(run), url, about, days)
    write_entry(signed, to)
    for line in [*entry_lines(signed.entry), "", f"signed by {signed.entry.coordinator}, in {to}"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@runs.command("publish")
def runs_publish(
    target: Annotated[Path, typer.Argument(metavar="LIST", help="The list to make or update, a JSON file.")],
    entries: Annotated[
        list[Path] | None, typer.Argument(metavar="[ENTRY]...", help="Entries to add, made by shoal runs entry.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The publisher's key; default: this machine's.")] = None,
    days: Days = 7,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Remove the runs of this coordinator; repeatable.")
    ] = None,
) -> None:
    """Make or update a signed list of runs: a file that any web server, or none, can host."""
    from shoal.client.identity import default_key
    from shoal.client.run_directory import publish
    from shoal.crypto.keys import Key, checksummed

    own = Key.load_or_create(key or default_key())
    listing = publish(target, entries or [], own, days, remove or [])
    console.print(
        f"{target}: {len(listing.runs)} run(s), published by {checksummed(own.address)}",
        highlight=False,
        soft_wrap=True,
    )


@app.command(rich_help_panel=PANEL)
def invite(
    run: Run,
    days: Annotated[float, typer.Option(min=0.001, max=365, help="Days until it expires.")] = 7.0,
    count: Annotated[int, typer.Option("-n", min=1, max=1000, help="How many invites to make.")] = 1,
    url: Annotated[str | None, typer.Option(help="The coordinator's URL for others; default: the run's own.")] = None,
    revoke: Annotated[
        str | None, typer.Option(metavar="INVITE", help="Revoke this one instead: the token, or its first part.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show which were used or revoked instead.")] = False,
) -> None:
    """Make a signed one-time token that admits one node to a closed run, and print the line to send."""
    from shoal.client.invites import make_invites, print_invites, revoke_invite
    from shoal.rundir import open_run

    opened = open_run(run)
    if revoke is not None:
        console.print(revoke_invite(opened, revoke, url), markup=False, highlight=False, soft_wrap=True)
    elif listed:
        print_invites(opened, url, console)
    else:
        for line in make_invites(opened, url, int(time.time() + days * DAY_S), count):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
