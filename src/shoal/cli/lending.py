"""Panel "Join", `shoal lend`: lend this machine in the background, with pauses, conditions and limits."""

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.app import app, console
from shoal.cli.join import AllowCode
from shoal.cli.options import Device, LimitFlags, NodeKey, takes_options
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.lend.state_files import LendFolder, LendStatus, Settings, Want

START_S = 20.0
HELP = """Lend this machine in the background, on your conditions.

\b
shoal lend start URL --when idle --when plugged --memory 8G
shoal lend pause      # at once: the worker is ended, memory and GPU are free
shoal lend resume
shoal lend finish     # hand in what is under way, then end
shoal lend status
shoal lend limits --upload 4Mbit

Leases that cannot be finished are handed back to the run. All state is in files: a supervisor that was killed goes on
where it was when it is started again."""
lend = typer.Typer(help=HELP, no_args_is_help=True)
app.add_typer(lend, name="lend", rich_help_panel="Join")
Name = Annotated[str, typer.Option(help="Which lent worker, on a machine with several devices.")]
WHEN = (
    "Work only when idle, plugged, or within hours such as 22:00-07:00; repeatable: all must hold, or one of the hours."
)


@lend.command("start")
@takes_options
def start(
    limiting: LimitFlags,
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="The run's coordinator; default: that of the last start.")
    ] = None,
    when: Annotated[list[str] | None, typer.Option("--when", metavar="WHEN", help=WHEN)] = None,
    name: Name = "worker",
    key: NodeKey = None,
    device: Device = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences generated at once; default: the run's.")] = None,
    allow_code: AllowCode = False,
    paused: Annotated[bool, typer.Option("--paused", help="Begin with a pause.")] = False,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay in this terminal, or in a service.")] = False,
) -> None:
    """Lend this machine to a run, in the background, until you end it or the run is complete.

    Without URL it goes on as agreed at the last start. `idle` is: nobody typed for five minutes, and other programs use
    less than a quarter of the CPUs.
    """
    from shoal.client.known_coordinators import trusted
    from shoal.lend.state_files import LendFolder, Settings
    from shoal.lend.when import parse_when

    folder = LendFolder(name)
    if url is not None:
        trusted(url)  # what every worker would refuse is refused now
        worker = ["--device", device] * (device is not None) + ["--batch", str(batch)] * (batch is not None)
        settings = Settings(
            join=url,
            when=tuple(parse_when(when or []).words()),
            limits=limiting.limits(),
            worker=(*[part for part in worker if part is not None], *["--allow-code"] * allow_code),
            key=None if key is None else str(key.absolute()),
        )
    else:
        given = [limiting != LimitFlags(), bool(when), key, device, batch, allow_code]
        if any(given):
            raise ConfigError(
                "lend start: conditions and limits go with a URL; to change them later: shoal lend limits"
            )
        settings = folder.settings()
    with folder.held():
        folder.write_settings(settings)
        if paused or not (foreground and url is None and _is_paused(folder)):
            folder.write_control("pause" if paused else "work")
    if foreground:
        from shoal.lend.supervisor import supervise

        console.print(f"ended: {supervise(folder)}", markup=False, highlight=False)
        return
    _start_in_background(folder)


def _is_paused(folder: "LendFolder") -> bool:
    """Whether a service that is started again finds a pause, which outlives a reboot; a `finish` does not."""
    try:
        return folder.control().want == "pause"
    except ConfigError:
        return True


def _start_in_background(folder: "LendFolder") -> None:
    """Starts the supervisor, and waits until it says something or has failed."""
    from shoal.lend.service_files import command
    from shoal.lend.state_files import LendStatus

    began = time.time()
    with folder.own_log.open("ab") as log:
        process = subprocess.Popen(
            command(folder.name), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    while process.poll() is None and time.time() - began < START_S:
        found = folder.status()
        if found is not None and found.pid == process.pid and found.state != "starting":
            break
        time.sleep(0.1)
    if process.poll() not in (None, 0):
        said = folder.own_log.read_text(errors="replace").strip().splitlines()
        raise ConfigError(f"lend {folder.name}: did not start ({said[-1] if said else 'it said nothing'})")
    found = folder.status()
    if process.poll() is None and (found is None or found.pid != process.pid):
        reason = f"process {process.pid} has said nothing for {START_S:.0f} s; ask again with shoal lend status"
        found = LendStatus(state="starting", reason=reason, since=began, pid=process.pid)
        _print(_lines(folder.settings(), found))
        return
    _show(folder)


def _told(name: str, want: "Want", done: tuple[str, ...], wait_s: float) -> None:
    """Tells the supervisor what is wanted, and waits until it is so."""
    from shoal.lend.state_files import LendFolder

    folder = LendFolder(name)
    if not folder.is_running():
        raise ConfigError(f"lend {name}: this machine is not lent now; begin with shoal lend start")
    folder.write_control(want)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline and folder.is_running():
        found = folder.status()
        if found is not None and found.state in done:
            break
        time.sleep(0.05)
    _show(folder)


@lend.command("pause")
def pause(name: Name = "worker") -> None:
    """Stop at once: the worker is ended, memory, GPU and line are free, and its leases are handed back."""
    _told(name, "pause", ("paused",), 5.0)


@lend.command("resume")
def resume(name: Name = "worker") -> None:
    """Go on after a pause, a `finish` that has not ended yet, or a limit that was too small."""
    _told(name, "work", ("working", "waiting", "retrying"), 5.0)


@lend.command("finish")
def finish(
    name: Name = "worker",
    now: Annotated[bool, typer.Option("--now", help="End at once, and hand back what is under way.")] = False,
) -> None:
    """Ask for no more work, hand in what is under way, then end. That takes as long as the leases do."""
    _told(name, "stop" if now else "finish", ("ended",) if now else ("finishing", "ended"), 15.0 if now else 5.0)


@lend.command("status")
def status(
    name: Name = "worker", as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False
) -> None:
    """Say what is lent, on which conditions, and what it does now."""
    from shoal.lend.state_files import LendFolder

    folder = LendFolder(name)
    if not as_json:
        _show(folder)
        return
    found, running = folder.status(), folder.is_running()
    tree = {"running": running, "settings": _tree(folder.settings()), "status": found and found.model_dump()}
    print(json.dumps(tree, indent=1))  # noqa: T201


@lend.command("limits")
@takes_options
def limits(
    limiting: LimitFlags,
    when: Annotated[list[str] | None, typer.Option("--when", metavar="WHEN", help=f"{WHEN} `any` lifts them.")] = None,
    lift: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Lift a limit, such as memory; repeatable.")
    ] = None,
    name: Name = "worker",
) -> None:
    """Show the limits, or change those that are given. A worker that is at work first hands in what is under way."""
    from shoal.lend.state_files import LendFolder
    from shoal.lend.when import parse_when

    folder = LendFolder(name)
    settings = folder.settings()
    known = [field.name for field in dataclasses.fields(settings.limits)]
    lifted = {text.replace("-", "_"): None for text in lift or []}
    if unknown := set(lifted) - set(known):
        raise ConfigError(f"--lift {unknown.pop()}: is unknown; give one of {', '.join(known)}")
    given = limiting.limits()
    changed = {field: value for field in known if (value := getattr(given, field)) is not None}
    if when:
        words = () if when == ["any"] else tuple(parse_when(when).words())
        settings = settings.model_copy(update={"when": words})
    bounds = dataclasses.replace(settings.limits, **changed, **lifted)
    folder.write_settings(settings.model_copy(update={"limits": bounds}))
    _show(folder)


@lend.command("install")
def install(
    name: Name = "worker",
    only_print: Annotated[bool, typer.Option("--print", help="Print the file, and write nothing.")] = False,
) -> None:
    """Write a systemd user unit (launchd agent on macOS) that lends this machine from its start on, as agreed."""
    from shoal.files import write_whole
    from shoal.lend.service_files import service_file
    from shoal.lend.state_files import LendFolder

    folder = LendFolder(name)
    if not only_print:
        folder.settings()  # there is something to go on with
    path, content, commands = service_file(name, sys.platform, Path.home(), folder.own_log)
    console.print(f"# {path}\n{content.decode()}", markup=False, highlight=False, soft_wrap=True)
    if only_print:
        return
    write_whole(path, content)
    console.print("written. To start it now and with the machine:", highlight=False)
    for line in commands:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _tree(settings: "Settings") -> object:
    return json.loads(settings.model_dump_json())


def _show(folder: "LendFolder") -> None:
    from shoal.lend.state_files import LendStatus

    settings, found, running = folder.settings(), folder.status(), folder.is_running()
    if found is not None and not running and found.state != "ended":
        found = LendStatus(
            state="ended", reason="the supervisor was killed; shoal lend start", since=found.since, pid=0
        )
    if found is None and running:
        found = LendStatus(state="starting", since=time.time(), pid=0)
    _print(_lines(settings, found))


def _print(lines: list[tuple[str, str]]) -> None:
    for label, text in lines:
        console.print(f"{label:<9} {text}", markup=False, highlight=False, soft_wrap=True)


def _lines(settings: "Settings", found: "LendStatus | None") -> list[tuple[str, str]]:
    """What a person wants to know, a line each."""
    from shoal.limits import show_size
    from shoal.text import one_line

    lines = [("lent to", settings.join), ("when", ", ".join(settings.when) or "always")]
    shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.limits.shown().items())
    lines.append(("limits", shown or "none"))
    if found is None:
        return [*lines, ("state", "not started; shoal lend start")]
    since = time.strftime("%H:%M:%S", time.localtime(found.since))
    lines.append(("state", f"{found.state} since {since}" + (f": {one_line(found.reason)}" if found.reason else "")))
    if found.worker is not None:
        doing = f", {one_line(found.doing)}" if found.doing else ""
        lines.append(("worker", f"process {found.worker}, {show_size(found.memory)} of memory{doing}"))
    lines.append(("disk", show_size(found.disk)))
    if found.handed_back:
        lines.append(("leases", f"{found.handed_back} handed back"))
    if found.note:
        lines.append(("note", one_line(found.note)))
    return lines
