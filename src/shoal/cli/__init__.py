"""The command line, one module per help panel. `shoal --help` imports nothing heavy: each command imports its body."""

# isort: off
from shoal.cli import (
    run,
    join,
    lending,
    discover,
    doctor,
    look,
    talk,
    tasks,
    weights,
    ledger,
    study,
    fbam,
)  # each registers its commands: the order of the panels

# isort: on
from shoal.cli.app import app, main

__all__ = [
    "app",
    "discover",
    "doctor",
    "fbam",
    "join",
    "ledger",
    "lending",
    "look",
    "main",
    "run",
    "study",
    "talk",
    "tasks",
    "weights",
]
