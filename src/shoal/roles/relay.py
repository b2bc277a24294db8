"""A relay: passes a run's versions on from other relays. It can withhold data but cannot alter it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shoal.client.weight_source import noting
from shoal.crypto.tls import server_context, speaks_tls
from shoal.files import locked
from shoal.process import free_ports
from shoal.roles.serving import offer, serve_until_stopped
from shoal.roles.session import JoinOptions, others
from shoal.rundir import TAKEOVER_S, RunDir
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.format.store import Store
from shoal.shardcast.serve.server import Server
from shoal.telemetry.metrics import MetricsWriter
from shoal.telemetry.status import StatusFile


def start_relay(
    run: RunDir,
    sources: Sequence[str],
    host: str,
    port: int,
    options: JoinOptions,
    url: str | None = None,
    tls: bool | None = None,
) -> None:
    """Passes a run's versions on, until stopped; sources are the other relays of the run if none is given.

    A relay that has joined is named in the run card, with the URL under which others reach it and the address that
    vouches for its certificate. Whether it speaks TLS follows from host and URL unless `tls` says so.
    """
    with at_work(run) as (status, metrics):
        store = Store(run.path / "relay")
        context, key = None, options.own_key(run, "relay")
        if speaks_tls(host, url, tls):
            context = server_context(key, run.config.swarm.tls_cert, run.config.swarm.tls_key)
        own = port or free_ports([0])[0]
        server = Server(store, name="relay", host=host, port=own, public=url, context=context, address=key.address)
        own_url = url or server.url
        with fetching(run, store, options, sources, own_url, server.known_as, status, metrics) as puller:
            server.facts = puller.facts
            serve_until_stopped(
                server, status, lambda: offer(puller.head.packages if puller.head else ()), metrics=metrics
            )


@contextmanager
def at_work(run: RunDir) -> Iterator[tuple[StatusFile, MetricsWriter]]:
    """The one relay in the run's directory."""
    taken = f"relay: another one is at work in {run.path}; start it elsewhere with shoal relay --from URL"
    with locked(run.path / "locks" / "relay", taken, wait_s=TAKEOVER_S), run.role("relay") as (status, metrics):
        yield status, metrics


@contextmanager
def fetching(
    run: RunDir,
    store: Store,
    options: JoinOptions,
    sources: Sequence[str],
    own_url: str,
    known_as: str,
    status: StatusFile,
    metrics: MetricsWriter,
) -> Iterator[Puller]:
    """Joins as the relay at `own_url`, and fills the store with all that the run offers."""
    with options.relay(run, status, sources, own_url) as (origin, urls, heart):
        puller = Puller(
            store,
            urls,
            origin,
            run.config.name,
            mirror=True,
            name="relay",
            own_url=known_as,
            on_note=noting(metrics),
            nearest=0 if sources else options.nearest(),
        )
        with puller:
            if not sources:
                heart.on_relays = lambda relays: puller.also_from(others(relays, own_url))
            yield puller
