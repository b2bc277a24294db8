"""Where others join a run whose directory is on this machine."""

from shoal.files import parse_json, read_regular
from shoal.rundir import RunDir

PORTS = "ports.json"  # what `shoal run` wrote


def coordinator_port(run: RunDir) -> int | None:
    """The port of the config, or the one that was picked when the run began; None before it has begun."""
    if run.config.swarm.port:
        return run.config.swarm.port
    try:
        return int(parse_json(read_regular(run.path / PORTS))["coordinator"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def join_url(run: RunDir) -> str | None:
    """The coordinator's URL as other machines are told it."""
    port, swarm = coordinator_port(run), run.config.swarm
    return None if port is None else f"{swarm.scheme}://{swarm.public_host}:{port}"
