"""TLS of servers that answer others beside the coordinator (pages, the model server): what it presents, they present.

No key is ever made here. A run's directory counts as the coordinator's own as soon as a key of that name is in it, and
a copy of a run must not become one because it is looked at.
"""

import ssl

from shoal.crypto.keys import Key
from shoal.crypto.tls import server_context
from shoal.errors import ConfigError
from shoal.rundir import RunDir, is_own, key_path


def run_context(run: RunDir, command: str) -> ssl.SSLContext | None:
    """What the run's coordinator presents to other machines; None where the run speaks plain http."""
    swarm = run.config.swarm
    if swarm.scheme != "https":
        return None
    if swarm.tls_cert:
        return server_context(Key.create(), swarm.tls_cert, swarm.tls_key)  # which vouches for nothing then
    if not is_own(run.path):
        raise ConfigError(
            f"{command} --public: {run.path} does not hold its coordinator's key, which signs its certificate; serve "
            "on loopback behind a proxy that speaks https"
        )
    return server_context(Key.load(key_path(run.path, "coordinator")))
