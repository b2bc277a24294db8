"""The origin: signs and publishes the trainer's versions.

The trainer writes versions into its directory and goes on; the origin, another process, notices, signs and serves them.
"""

from shoal.client.weight_source import noting
from shoal.crypto.tls import server_context, speaks_tls
from shoal.files import locked
from shoal.roles.serving import offer, serve_until_stopped
from shoal.rundir import TAKEOVER_S, RunDir
from shoal.shardcast.format.store import Store
from shoal.shardcast.origin.directory_follower import Follower, follow
from shoal.shardcast.origin.publish import Publisher
from shoal.shardcast.origin.versions import Versions
from shoal.shardcast.serve.server import Server


def start_origin(
    run: RunDir, port: int, host: str = "127.0.0.1", url: str | None = None, tls: bool | None = None
) -> None:
    """Signs and serves the versions of a run, until stopped.

    Whether it speaks TLS follows from host and URL unless `tls` says so.
    """
    taken = f"origin: another one is at work in {run.path}; a run has one origin"
    with locked(run.path / "locks" / "origin", taken, wait_s=TAKEOVER_S), run.role("origin") as (status, metrics):
        store = Store(run.path / "origin")
        with Publisher(store, run.origin_key, run.config.name, run.config.keep.versions) as publisher:
            key, context = run.origin_key, None
            if speaks_tls(host, url, tls):
                context = server_context(key, run.config.swarm.tls_cert, run.config.swarm.tls_key)
            name = f"origin of {run.config.name}"
            server = Server(store, name=name, host=host, port=port, public=url, context=context, address=key.address)
            follower = Follower(run.path / "weights", Versions(publisher), noting(metrics, "published"))
            serve_until_stopped(
                server, status, lambda: offer(publisher.entries), lambda: follow(follower), metrics=metrics
            )
