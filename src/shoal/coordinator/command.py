"""`shoal coordinator`: opens the database, the uploads and the ledger, and serves the API."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from shoal.config import RunConfig
from shoal.coordinator.archive import HOME, STATE, UPLOADS
from shoal.coordinator.coordinator import Coordinator
from shoal.coordinator.db.database import Database
from shoal.coordinator.honeypots import Plants
from shoal.coordinator.http.server import bind, serve, url_of
from shoal.coordinator.latencies import Latencies
from shoal.coordinator.ledger_writer import LedgerWriter
from shoal.coordinator.outbox import closed_at
from shoal.coordinator.policy import Terms
from shoal.coordinator.uploads import Objects
from shoal.crypto.keys import Key, checked_address, checksummed
from shoal.crypto.tls import server_context
from shoal.errors import ConfigError, StorageError
from shoal.files import free_bytes, locked, make_directory
from shoal.ledger.store import LEDGER_FILE
from shoal.rundir import RUN_FILE, TAKEOVER_S, RunDir, role_key, validator_names

MIN_FREE = 64 << 20


def open_coordinator(
    config: RunConfig, run: Path, report: Callable[[Latencies], None] = lambda _latencies: None
) -> tuple[Coordinator, Database]:
    """The coordinator of a run, with its state in the run's directory unless the config says where.

    Trainer, validator and origin are those whose keys are in the directory, unless the config names addresses.
    `report` hears how long each version's rollouts and verdicts took.
    """
    swarm = config.swarm
    home = run / HOME
    make_directory(home)
    trainer = checked_address(swarm.trainer) if swarm.trainer else role_key(run, "trainer").address
    named = frozenset(checked_address(address) for address in swarm.validators)
    validators = named or frozenset(role_key(run, name).address for name in validator_names(config))
    origin = checked_address(swarm.origin) if swarm.origin else Key.load_or_create(run / "origin.key").address
    for address in swarm.allow:
        checked_address(address)
    plants = Plants(role_key(run, "planter"), config.name) if config.ledger.plants else None
    key, terms = role_key(run, "coordinator"), Terms.of(config, trainer, validators)
    if terms.closed:
        own = (role_key(run, name).address for name in own_nodes(config))
        terms = replace(terms, allow=frozenset((*(terms.allow or ()), *own, *(plants.addresses if plants else ()))))
    database = Database(swarm.database or f"sqlite:///{home / STATE}")
    try:
        closed = database.ask(closed_at)
        if closed is not None and closed < config.steps:
            raise ConfigError(
                f"run {run}: steps = {config.steps}, but it was over after {closed} and its ledger is closed, so "
                "nobody would be paid for more; begin another run, with its model as model.source"
            )
        objects = Objects(swarm.store or home / UPLOADS, swarm.store_options)
        ledger_writer = LedgerWriter.open(run / LEDGER_FILE, key, config, terms)
        model = RunDir(run, config).architecture()
        coordinator = Coordinator(
            config,
            terms,
            key,
            origin,
            database,
            objects,
            ledger_writer,
            plants=plants,
            architecture=model,
            report=report,
        )
    except BaseException:
        database.close()
        raise
    return coordinator, database


def serve_coordinator(
    config: RunConfig, run: Path, host: str | None, port: int | None, console: Console, page: str | None = None
) -> None:
    """Serves a run until stopped; `page` is where its web pages are, if they are served."""
    if free_bytes(run) < MIN_FREE:
        raise ConfigError(f"run {run}: less than {MIN_FREE >> 20} MiB are free there; free some or give another --out")
    taken = f"coordinator: another one is at work in {run}; a run has one coordinator"
    with locked(run / "locks" / "coordinator", taken, TAKEOVER_S), _told(config, run) as (tell, report):
        _serve(config, run, host, port, tell, report, console, page)


def _serve(
    config: RunConfig,
    run: Path,
    host: str | None,
    port: int | None,
    tell: Callable[[str], None],
    report: Callable[[Latencies], None],
    console: Console,
    page: str | None,
) -> None:
    swarm = config.swarm.model_copy(update={"host": host} if host else {})
    key, tls = role_key(run, "coordinator"), swarm.scheme == "https"
    context = server_context(key, swarm.tls_cert, swarm.tls_key) if tls else None
    listener = bind(swarm.host, swarm.port if port is None else port)
    coordinator, database = open_coordinator(config, run, report)

    def started() -> None:
        url, address = url_of(listener, tls=tls), key.address
        join = f"{swarm.scheme}://{swarm.public_host}:{listener.getsockname()[1]}"
        console.print(f"coordinator of run {config.name} at {url}, address {checksummed(address)}", highlight=False)
        console.print(f"join with: shoal worker --join {join}#{address}", highlight=False, soft_wrap=True)
        tell(f"serving at {url}")

    try:
        serve(coordinator, listener, started, context, page)
    finally:
        coordinator.ledger_writer.close()
        database.close()


def own_nodes(config: RunConfig) -> list[str]:
    """Names of the nodes that `shoal run` starts itself: a closed run admits them without an invite."""
    workers = [f"worker-{number}" for number in range(config.workers.count)]
    return ["relay", *workers, *(f"cheater-{number}" for number in range(len(config.cheaters)))]


@contextmanager
def _told(config: RunConfig, run: Path) -> Iterator[tuple[Callable[[str], None], Callable[[Latencies], None]]]:
    """Where the coordinator reports what it is doing and how long work takes, if the run's directory is here."""
    if not (run / RUN_FILE).exists():
        yield lambda _text: None, lambda _latencies: None
        return
    with RunDir(run, config).role("coordinator") as (status, metrics):

        def report(took: Latencies) -> None:
            with suppress(StorageError):  # the version is announced all the same
                metrics.write("latency", **asdict(took))

        yield status.working, report
        status.done("stopped")
