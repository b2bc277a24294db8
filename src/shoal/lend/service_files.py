"""Files that start `shoal lend` with the machine: a systemd user unit on Linux, a launchd agent on macOS."""

import plistlib
import shlex
import sys
from pathlib import Path

LABEL = "org.shoal.lend"


def command(name: str) -> list[str]:
    """What the service runs: the Python that runs now, so that it also works from a virtual environment."""
    return [sys.executable, "-P", "-m", "shoal", "lend", "start", "--foreground", "--name", name]


def systemd_unit(name: str, stop_s: int = 30) -> str:
    """A user unit. The supervisor hands leases back when it is stopped, and is started again when it was killed."""
    quoted = " ".join(_unit_quoted(part) for part in command(name))
    return f"""[Unit]
Description=Lends this machine to a Shoal run ({name})
Documentation=https://pypi.org/project/shoal-rl/
After=network-online.target
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
Type=exec
ExecStart={quoted}
Restart=on-failure
RestartSec=10
KillMode=mixed
TimeoutStopSec={stop_s}
Nice=10
NoNewPrivileges=true

[Install]
WantedBy=default.target
"""


def _unit_quoted(part: str) -> str:
    """A word of an ExecStart line: % and $ mean something to systemd."""
    return '"' + part.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'


def launchd_plist(name: str, log: Path) -> bytes:
    """An agent that starts when its user logs in, and again when it was killed."""
    return plistlib.dumps(
        {
            "Label": f"{LABEL}.{name}",
            "ProgramArguments": command(name),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ProcessType": "Background",
            "Nice": 10,
            "StandardOutPath": str(log),
            "StandardErrorPath": str(log),
        }
    )


def service_file(name: str, platform: str, home: Path, log: Path) -> tuple[Path, bytes, list[str]]:
    """Where the file goes, what is in it, and the commands that make use of it."""
    if platform == "darwin":
        path = home / "Library" / "LaunchAgents" / f"{LABEL}.{name}.plist"
        return path, launchd_plist(name, log), [f"launchctl bootstrap gui/$(id -u) {shlex.quote(str(path))}"]
    unit = f"shoal-lend-{name}.service"
    path = home / ".config" / "systemd" / "user" / unit
    return (
        path,
        systemd_unit(name).encode(),
        [
            f"systemctl --user enable --now {unit}",
            "loginctl enable-linger   # also while you are not logged in",
        ],
    )
