"""Where others join a run whose directory is on this machine."""

from pydantic import TypeAdapter, ValidationError

from shoal.errors import ConfigError
from shoal.files import parse_json, read_regular
from shoal.protocol.messages import Url
from shoal.protocol.run_card import url_fault
from shoal.rundir import RunDir
from shoal.text import one_line

PORTS = "ports.json"  # what `shoal run` wrote
_URL: TypeAdapter[str] = TypeAdapter(Url)


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


def url_for_others(run: RunDir, url: str | None) -> str:
    """The URL of a join line: what `--url` says, or the run's own.

    Like that of a directory's entry, it holds nothing that a shell would take for more than a word.
    """
    found = join_url(run) if url is None else url
    if found is None:
        raise ConfigError(f"run {run.path}: has not begun, so its port is not known; start it, or give --url")
    setting = "swarm.public" if url is None else "--url"
    if fault := _fault(found):
        raise ConfigError(
            f"{setting} {one_line(found)!r:.100}: {fault}; give the coordinator's, as in https://HOST:7000"
        )
    return found.rstrip("/")


def _fault(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        return "is not the URL of a coordinator"
    if fault := url_fault(url):
        return fault
    try:
        _URL.validate_python(url)
    except ValidationError:
        return "is longer than 200 characters, or has others than letters, digits and .:[]_/-"
    return ""
