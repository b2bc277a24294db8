"""Help panel "Weights": publish, relay and fetch versions of weights, inside a run or without one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.app import app, console
from shoal.cli.options import Home, Join, JoinFlags, ListenFlags, NodeKey, refuse_flags, takes_options
from shoal.errors import ConfigError
from shoal.extras import require

if TYPE_CHECKING:
    from shoal.shardcast.serve.bucket import Bucket

PANEL = "Weights"
Allow = Annotated[
    Path | None,
    typer.Option(help="Outside a run: allow-list, a file with one node address per line; default: serve anyone."),
]
SourceRun = Annotated[
    str | None, typer.Option("--run", help="Name of the run; default: the one in the first signed list of versions.")
]
OriginAddress = Annotated[str, typer.Option("--origin", help="The origin's address, 0x...; only its signature counts.")]


@dataclass(frozen=True)
class OriginFlags:
    """An origin outside a run: what it signs with, and what it keeps."""

    store: Annotated[Path | None, typer.Option(help="Where packages are stored; default: DIR/.store.")] = None
    key: Annotated[
        Path | None, typer.Option(help="The origin's key, created at first use; default: origin.key beside the store.")
    ] = None
    run_name: Annotated[str, typer.Option("--run", help="Name of the run, part of everything signed.")] = "run"
    keep: Annotated[int, typer.Option(min=1, help="Versions to keep.")] = 5
    allow: Allow = None


@app.command(rich_help_panel=PANEL)
@takes_options
def origin(
    context: typer.Context,
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Where versions appear: files or directories named v000012 or 12; or a run's directory."
        ),
    ],
    flags: OriginFlags,
    listen: ListenFlags,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 7100,
) -> None:
    """Sign and serve the versions of weights that appear in a directory.

    Add a version in one move (write it under another name, such as v000012.partial, then rename it): its files are
    linked, not copied, and can be fetched while they are still being published.
    """
    require("relay", "shoal origin")
    from shoal.rundir import RUN_FILE, open_run

    if (directory / RUN_FILE).is_file():
        refuse_flags(
            context,
            f"origin {directory}",
            ("store", "key", "run_name", "keep", "allow"),
            "only an origin of another directory does; a run's origin uses RUN/origin, "
            "RUN/origin.key, name and keep.versions, and its readers do not sign their requests",
        )
        from shoal.roles.origin import start_origin

        start_origin(open_run(directory), port, listen.host, listen.url, listen.tls)
        return
    from shoal.cli.weights_serve import serve_origin

    serve_origin(directory, flags, listen, port, console)


@dataclass(frozen=True)
class RelayFlags:
    """A relay outside a run: whose versions it mirrors, and how it serves them."""

    store: Annotated[Path, typer.Option(help="Outside a run: where packages are stored.")] = Path("relay")
    origin_address: OriginAddress = ""
    run_name: SourceRun = None
    name: Annotated[str, typer.Option(help="Outside a run: this relay's name in the tree.")] = "relay"
    allow: Allow = None
    nginx: Annotated[
        Path | None, typer.Option(help="Outside a run: write an nginx configuration that serves the store.")
    ] = None
    serve: Annotated[bool, typer.Option(help="Outside a run: --no-serve when nginx does the serving.")] = True


@dataclass(frozen=True)
class BucketFlags:
    """A relay that keeps versions in an object store instead of serving them itself."""

    to: Annotated[
        str | None,
        typer.Option(
            metavar="s3://BUCKET/PREFIX",
            help="Keep versions in this object store instead of serving them; --url is where others read it.",
        ),
    ] = None
    to_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Option of the object store, such as endpoint or region; repeatable. Credentials come from the "
            "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY).",
        ),
    ] = None

    def bucket(self) -> "Bucket":
        require("s3", "shoal relay --to")
        from shoal.shardcast.serve.bucket import Bucket

        options = dict(option.partition("=")[::2] for option in self.to_option or [])
        if bad := next((key for key, value in options.items() if not key or not value), None):
            raise ConfigError(f"--to-option {bad}: give it as KEY=VALUE, as in endpoint=https://HOST")
        assert self.to is not None, "only asked for with --to"
        return Bucket(self.to, options)


@app.command(rich_help_panel=PANEL)
@takes_options
def relay(
    context: typer.Context,
    flags: RelayFlags,
    listen: ListenFlags,
    object_store: BucketFlags,
    run_directory: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run's directory: serve as that run's relay.")
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="URL", help="Relay or origin to fetch from; repeatable."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 7200,
    join: Join = None,
    key: NodeKey = None,
    home: Home = None,
) -> None:
    """Fetch versions from relays or the origin, check them, and serve each piece as soon as it has arrived.

    A relay can withhold data but cannot alter it: every reader checks the origin's signature.

    To lend this machine's bandwidth to a run: shoal relay --join URL --host 0.0.0.0 --url https://THIS-MACHINE:7200.
    By way of a bucket: shoal relay --join URL --to s3://BUCKET/PREFIX --url https://BUCKET.HOST/PREFIX.
    """
    require("relay", "shoal relay")
    if object_store.to is not None:
        refuse_flags(
            context,
            "relay --to",
            ("host", "port", "tls", "nginx", "serve", "allow"),
            "only a relay that serves does; readers of --to ask the object store",
        )
    elif object_store.to_option:
        raise ConfigError("relay: --to-option without --to; give --to s3://BUCKET/PREFIX")
    if join is not None or (run_directory is not None and sources):
        refuse_flags(
            context,
            "relay of a run",
            ("store", "origin_address", "run_name", "name", "allow", "nginx", "serve"),
            "only a relay outside a run does (shoal relay --from URL --origin ADDRESS); a run's relay follows the "
            "run's config, and its readers do not sign their requests",
        )
        if listen.host in ("0.0.0.0", "::") and join is not None and listen.url is None:
            raise ConfigError(
                f"relay: --host {listen.host} listens everywhere; give --url with the URL that others reach"
            )
        from shoal.cli.lend import lend
        from shoal.roles.relay import start_relay

        if object_store.to is not None and listen.url is None:
            raise ConfigError(f"relay: --to {object_store.to}: give --url with the URL under which others read it")
        bucket = object_store.bucket() if object_store.to is not None else None
        located, options = lend("relay", run_directory, JoinFlags(join, key, home), console)
        if bucket is not None:
            from shoal.roles.bucket_relay import start_bucket_relay

            start_bucket_relay(located, sources or [], options, bucket, listen.url or "")
            return
        start_relay(located, sources or [], listen.host, port, options, listen.url, listen.tls)
        return
    if not sources or not flags.origin_address:
        raise ConfigError(
            "relay: give --join URL (a run's coordinator), or --from URL (an origin or a relay) and --origin ADDRESS "
            "(which the origin prints)"
        )
    refuse_flags(
        context, "relay --from --origin", ("home",), "only relay --join URL does; here packages are in --store"
    )
    if flags.nginx is not None and flags.allow is not None:
        raise ConfigError("relay: --nginx with --allow: nginx cannot check who signed a request; give only one of them")
    from shoal.cli.weights_serve import fill_bucket, serve_relay

    if object_store.to is not None:
        fill_bucket(sources, flags, object_store.bucket(), key, console)
        return
    serve_relay(sources, flags, listen, port, key, console)


@dataclass(frozen=True)
class FetchFlags:
    """What to fetch, from whom, and how patiently."""

    to: Annotated[Path, typer.Option(help="Where packages are stored; DIR/latest points to the files.")]
    origin_address: OriginAddress
    version: Annotated[int | None, typer.Option(help="Version to fetch; default: the newest.")] = None
    follow: Annotated[bool, typer.Option("--follow", help="Keep fetching each new version.")] = False
    run_name: SourceRun = None
    wait: Annotated[float, typer.Option(help="Give up after this many seconds in which nothing arrives.")] = 60.0
    name: Annotated[str, typer.Option(help="This machine's name in the tree.")] = ""
    key: NodeKey = None
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False


@app.command(rich_help_panel=PANEL)
@takes_options
def fetch(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="URL...", help="Relays or origins, as http://HOST:PORT or https://HOST:PORT#0xADDRESS."),
    ],
    flags: FetchFlags,
) -> None:
    """Fetch weights from several relays at once and print where they are. If it is stopped, run it again to resume."""
    from shoal.cli.weights_fetch import fetch_version

    fetch_version(sources, flags, console)


@app.command(rich_help_panel=PANEL)
def tree(url: Annotated[str, typer.Argument(metavar="URL", help="An origin or a relay.")]) -> None:
    """Show which nodes have how much of which version, from a server downwards."""
    from shoal.cli.weights_fetch import show_tree

    show_tree(url, console)


@app.command(rich_help_panel=PANEL)
def export(
    target: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's directory, or one of its versions: RUN/weights/v000012.")
    ],
    out: Annotated[Path, typer.Option(help="Directory to write; it must not exist.")],
    version: Annotated[int | None, typer.Option(help="Version of the run; default: the newest.")] = None,
    adapter: Annotated[
        bool,
        typer.Option(
            "--adapter/--merged", help="The adapter alone, as PEFT loads it, or a whole model, as transformers does."
        ),
    ] = False,
) -> None:
    """Write a version as a model directory that transformers loads, or as a LoRA adapter that PEFT loads."""
    from shoal.train.export import export_version

    found = export_version(target, out, version, adapter=adapter)
    kind = "adapter" if adapter else "model"
    console.print(f"{kind} of version {found.number} (root {found.root[:12]}): {out}", soft_wrap=True, highlight=False)
