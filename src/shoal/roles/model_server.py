"""The model server: answers requests with a run's versions, in a process that no role waits for.

It reads the run's files and writes none, so it serves a run that goes on, has ended or was copied here, and its end
changes nothing for training.
"""

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TypedDict, Unpack

from rich.console import Console

from shoal.config import EngineName, RunConfig
from shoal.coordinator.http.loopback import is_loopback_name
from shoal.devices import is_cuda, set_up
from shoal.errors import ConfigError, WeightsError
from shoal.extras import is_installed, require
from shoal.generate.decoding import Decoding
from shoal.generate.engine import Engine
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy, load_as, outline
from shoal.models.version_reader import VersionReader
from shoal.priority import give_way
from shoal.roles.worker_engine import chosen_engine
from shoal.rundir import RunDir
from shoal.serve.desk import Desk
from shoal.serve.prompts import Prompts
from shoal.serve.terminal import Chat
from shoal.serve.versions import Versions
from shoal.text import one_line

# Tokens of prompt and answer by default, where the model takes so many.
USUAL_CONTEXT = 2048
MAX_CONNECTIONS = 512


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What is served and with what. None: what the run or the model says."""

    version: int | None = None
    engine: EngineName = "auto"
    context: int | None = None
    batch: int = 16
    queue: int = 256


class ChatSettings(TypedDict, total=False):
    """What `shoal chat` may say about its answers."""

    max_tokens: int | None
    system: str
    seed: int | None


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Where it listens, and for whom."""

    host: str = "127.0.0.1"
    port: int = 8000
    public: bool = False
    api_key: str | None = None

    def check(self) -> None:
        """Refuses to answer other machines unless that is said, and then without a key."""
        name = f"{self.host}:{self.port}" if ":" not in self.host else f"[{self.host}]"
        if not self.public and not is_loopback_name(name):
            raise ConfigError(f"serve {name}: is not loopback; --public serves other machines, with a key")
        if self.public and not self.api_key:
            raise ConfigError("serve --public: set SHOAL_API_KEY to the key that clients must send")


def build_engine(run: RunDir, versions: Versions, options: ServeOptions) -> tuple[Policy, Engine, int]:
    """The policy, an engine that can load each of the run's versions, and the longest sequence it takes."""
    config = run.config
    device = set_up(config.device_of("workers"), config.workers.threads)
    if options.engine == "vllm-server":
        raise ConfigError('serve --engine vllm-server: that server has this endpoint itself; give "torch" or "vllm"')
    engine = chosen_engine(options.engine, device, is_installed("vllm"))
    held, computed = config.model.dtype, config.workers.dtype or config.model.dtype
    reader = VersionReader(versions.channel, held).read
    if engine == "vllm":
        return _vllm(run, versions, options, is_cuda(device))
    policy = load_as(run.base_model, held, computed, device)
    longest = _context(config, policy, options.context)
    made = TorchEngine(policy, max_batch=options.batch, max_len=longest, temperature=1.0, proofs=False, reader=reader)
    return policy, made, longest


def _vllm(run: RunDir, versions: Versions, options: ServeOptions, cuda: bool) -> tuple[Policy, Engine, int]:
    require("vllm", "serve --engine vllm")
    from shoal.generate.vllm.engine import VllmEngine
    from shoal.generate.vllm.start import VllmSettings

    config, policy = run.config, outline(run.base_model)
    longest = _context(config, policy, options.context)
    settings = VllmSettings(
        max_batch=options.batch,
        max_len=longest,
        temperature=1.0,
        held=config.model.dtype,
        dtype=config.workers.dtype or config.model.dtype,
        cuda=cuda,
        threads=config.workers.threads,
        tensor_parallel=config.workers.tensor_parallel,
        kv_cache_gb=config.workers.kv_cache_gb,
        proofs=False,
    )
    reader = VersionReader(versions.channel, config.model.dtype).read
    made = VllmEngine(run.base_model, policy, settings, origin="version 0", reader=reader, say=lambda _: None)
    return policy, made, longest


def _context(config: RunConfig, policy: Policy, wanted: int | None) -> int:
    if wanted is not None and wanted > policy.max_positions:
        raise ConfigError(f"--context {wanted}: the model handles {policy.max_positions} tokens; give at most that")
    return wanted or min(policy.max_positions, max(config.max_len, USUAL_CONTEXT))


@contextmanager
def desk_of(run: RunDir, options: ServeOptions, console: Console) -> Iterator[tuple[Desk, Versions, Prompts]]:
    """A desk at work on a run's versions, the first of which is loaded ahead."""
    versions = Versions(run.config.name, run.path / "weights", options.version)
    if versions.newest() is None:
        there = ", ".join(map(str, versions.channel.numbers())) or "none"
        raise WeightsError(f"run {run.path}: version {options.version} is not there; there are: {there}")
    give_way()
    policy, engine, longest = build_engine(run, versions, options)

    def say(text: str) -> None:
        console.print(one_line(text), markup=False, highlight=False)

    desk = Desk(engine, versions, options.queue, say)
    desk.start()
    try:
        yield desk, versions, Prompts(policy, longest)
    finally:
        desk.close()
        engine.close()


def serve_run(run: RunDir, options: ServeOptions, listen: ListenOptions, console: Console) -> None:
    """Serves until SIGINT or SIGTERM."""
    from shoal.coordinator.http.run_certificate import run_context
    from shoal.coordinator.http.server import bind, url_of, uvicorn_server
    from shoal.serve.app import Serving, make_app

    listen.check()
    context = run_context(run, "serve") if listen.public else None
    listener = bind(listen.host, listen.port, "serve", "give another --host or --port")
    with desk_of(run, options, console) as (desk, versions, prompts), ThreadPoolExecutor(1) as tokenizing:
        serving = Serving(desk, versions, prompts, tokenizing)
        app = make_app(serving, public=listen.public, api_key=listen.api_key)
        server = uvicorn_server(app, MAX_CONNECTIONS, context=context)

        def stop(_number: int, _frame: FrameType | None) -> None:
            server.should_exit = True

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        newest, url = versions.find(None), url_of(listener, tls=context is not None)
        console.print(
            f"{versions.label(newest)} at {url}/v1, up to {prompts.max_len} tokens"
            f"{'' if versions.pinned is not None else '; follows new versions'}",
            highlight=False,
            soft_wrap=True,
        )
        server.run(sockets=[listener])


def chat_with(
    run: RunDir, options: ServeOptions, decoding: Decoding, console: Console, **settings: Unpack[ChatSettings]
) -> None:
    """A conversation at this terminal, or of the lines of a pipe."""
    with suppress(ImportError):
        import readline  # noqa: F401  history and editing of lines

    prompt = "you> " if sys.stdin.isatty() else ""
    with desk_of(run, options, console) as (desk, versions, prompts):
        chat = Chat(desk, versions, prompts, sys.stdout, decoding, number=options.version, **settings)
        chat.run(lambda: input(prompt))
