"""A role's place in a run: joining, heartbeats, announced versions, and what survives when one side is gone."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from shoal.cli import app
from shoal.cli.lend import as_own_machine, judging, lend, machine, on_device
from shoal.cli.options import ConfigFlags, JoinFlags
from shoal.client.announce import AnnouncedChannel
from shoal.client.client import CoordinatorClient
from shoal.errors import ConfigError, SwarmError
from shoal.protocol.verdict import Finding, Verdict
from shoal.protocol.version_directory import DirectoryChannel
from shoal.roles.session import Heartbeat, join_run
from shoal.roles.supervisor import ports_of
from shoal.rundir import RunDir
from shoal.telemetry.status import StatusFile
from tests.support.coordinator_in_process import TRAINER, World, key_of, make_config, world_at
from tests.support.until import until


@pytest.fixture
def small_world(tmp_path: Path) -> Iterator[World]:
    """Whose nodes say something ten times a second."""
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", swarm={"heartbeat_s": 0.1}) as world:
        yield world


@pytest.fixture
def run(small_world: World, tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run", small_world.config)


@pytest.fixture
def link(small_world: World) -> CoordinatorClient:
    link = small_world.link(TRAINER)
    link.join("trainer")
    return link


@pytest.fixture
def status(tmp_path: Path) -> StatusFile:
    return StatusFile(tmp_path / "status" / "role.json", "role")


def announced(world: World) -> dict[int, str]:
    query = "SELECT number, root FROM versions"
    return dict(world.database.ask(lambda db: db.exec_driver_sql(query).all()))


def publish(channel: DirectoryChannel | AnnouncedChannel, number: int, content: str = "x") -> None:
    with channel.publish(number) as staging:
        (staging / "model.safetensors").write_text(f"{number} {content}")


def roots(channel: DirectoryChannel) -> dict[int, str]:
    return {number: version.root for number in channel.numbers() if (version := channel.version(number))}


def test_a_version_is_announced_once_it_is_there(small_world: World, link: CoordinatorClient, tmp_path: Path) -> None:
    channel = DirectoryChannel(tmp_path / "weights", keep=5)
    both = AnnouncedChannel(channel, link)
    with both.publish(0) as staging:
        (staging / "model.safetensors").write_text("0")
        assert announced(small_world) == {}
    assert announced(small_world) == roots(channel)
    with pytest.raises(ZeroDivisionError), both.publish(1):
        _ = 1 / 0
    assert list(announced(small_world)) == [0]


def test_what_a_killed_trainer_did_not_say_is_said_on_resume(
    small_world: World, link: CoordinatorClient, tmp_path: Path
) -> None:
    channel = DirectoryChannel(tmp_path / "weights", keep=5)
    both = AnnouncedChannel(channel, link)
    for number in range(3):
        publish(channel, number)  # killed before the announcement
    assert both.retract(1) == [2]
    assert announced(small_world) == roots(channel)
    assert list(announced(small_world)) == [0, 1]


def test_versions_that_only_the_coordinator_knows_are_taken_back(
    small_world: World, link: CoordinatorClient, tmp_path: Path
) -> None:
    channel = DirectoryChannel(tmp_path / "weights", keep=5)
    both = AnnouncedChannel(channel, link)
    publish(both, 0)
    publish(both, 1)
    channel.retract(0)  # killed before the coordinator was told
    assert both.retract(0) == [1]
    publish(both, 1, "another")
    assert announced(small_world) == roots(channel)


def test_a_heart_says_what_its_role_does_and_hears_what_became_of_its_files(
    small_world: World, status: StatusFile
) -> None:
    small_world.announce()
    lease = small_world.take("a")
    small_world.hand_in("a", lease)
    (upload,) = small_world.validator.waiting(0, 3)
    _, sha256 = small_world.validator.read(upload)
    finding = Finding("rewards", "scores are right", 1, 0, 3)
    small_world.validator.judge(upload, Verdict(False, sha256, True, finding))
    status.waiting("policy version 1", "trainer", 60)
    said: list[str] = []
    heart = Heartbeat(small_world.link(key_of("a")), status, said.append)
    heart.version = lambda: 7
    with heart:
        until(lambda: len(said) >= 3)
    assert said == [
        "0 files accepted, 1 rejected; now: policy version 1",
        f"the last one that was rejected: {lease.step}/{lease.submission}: {finding}",
        "this node owes 1 draw that it let go or had rejected: counts as a newcomer until 62 more files are accepted, "
        "or what was let go is done",
    ]
    (node,) = [node for node in small_world.link(key_of("a")).get("/v1/status")["nodes"] if node["role"] == "worker"]
    assert (node["doing"], node["waits_on"], node["version"]) == ("policy version 1", "trainer", 7)


def test_a_heart_goes_on_when_the_coordinator_comes_back(small_world: World, status: StatusFile) -> None:
    link = small_world.link(key_of("a"))
    link.join("worker")
    said: list[str] = []
    with Heartbeat(link, status, said.append):
        until(lambda: bool(said))
        small_world.stop()
        time.sleep(0.3)
        small_world.start()
        status.working("something new")

        def heard() -> bool:
            nodes = small_world.link(key_of("b")).get("/v1/status")["nodes"]
            return any(node["doing"] == "something new" for node in nodes)

        until(heard)


def test_a_relay_that_joins_later_is_told_to_nodes(small_world: World, status: StatusFile) -> None:
    link = small_world.link(key_of("a"))
    link.join("worker")
    told: list[list[str]] = []
    heart = Heartbeat(link, status, lambda _: None)
    heart.on_relays = lambda relays: told.append(list(relays))
    with heart:
        small_world.link(key_of("r")).join("relay", url="http://127.0.0.1:7777")

        until(lambda: bool(told) and "http://127.0.0.1:7777" in told[-1])


def test_a_node_of_somebody_elses_run_has_its_config_from_the_card(small_world: World, tmp_path: Path) -> None:
    said: list[str] = []
    key = tmp_path / "node.key"
    joined = join_run(small_world.url, key, tmp_path / "home", 10, said.append, code=False)
    assert joined.config.steps == small_world.config.steps
    assert joined.config.swarm.relays == []  # what is nobody's business is not in the card
    assert json.loads((joined.path / "run.json").read_text())["config"]["name"] == "test"
    assert key.stat().st_mode & 0o777 == 0o600
    assert f"files are kept in {joined.path}" in said[-1]


def test_a_coordinator_that_is_another_than_the_one_named_is_not_joined(small_world: World, tmp_path: Path) -> None:
    with pytest.raises(SwarmError, match="do not join it"):
        join_run(
            f"{small_world.url}#{key_of('x').address}",
            tmp_path / "k",
            tmp_path / "home",
            10,
            lambda _: None,
            code=False,
        )
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("target", "flags", "settings", "reason"),
    [
        (None, JoinFlags(), [], "worker: needs the run's coordinator; give --join URL, which shoal run and shoal"),
        (Path(), JoinFlags(), [], "worker: needs the run's coordinator; give --join URL"),
        (None, JoinFlags(join="http://127.0.0.1:1"), ["steps=2"], "a run that is joined has its own config"),
        (Path(), JoinFlags(join="http://127.0.0.1:1", home=Path("x")), [], "--home goes only with --join"),
        (None, JoinFlags(join="ftp://x"), [], "must be the URL of a coordinator"),
    ],
)
def test_a_command_that_cannot_be_meant_is_refused(
    tmp_path: Path,
    target: Path | None,
    flags: JoinFlags,
    settings: list[str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises((ConfigError, SwarmError), match=reason):
        lend("worker", target, flags, Console(quiet=True), ConfigFlags(settings=settings))


def test_a_machine_that_is_not_like_the_others_says_so(run: RunDir) -> None:
    own = machine(run, 3, 2, "float32")
    assert (own.config.workers.max_batch, own.config.workers.threads, own.config.workers.dtype) == (3, 2, "float32")
    assert machine(run, None, None, None).config == run.config
    with pytest.raises(ConfigError, match="--dtype int8"):
        machine(run, None, None, "int8")
    with pytest.raises(ConfigError, match=r"--dtype bfloat16: honest workers would be rejected.*leave it out"):
        machine(run, None, None, "bfloat16")


def test_a_machine_that_joins_takes_no_engine_from_the_run_card(tmp_path: Path) -> None:
    """The owner's machines have vLLM on two devices; this one may have neither."""
    workers = {"engine": "vllm", "engines": ["vllm", "torch"], "tensor_parallel": 2, "kv_cache_gb": 40.0}
    card = make_config(workers=workers, audit={"engine": "vllm"})
    own = as_own_machine(RunDir(tmp_path, card)).config
    assert (own.workers.engine, own.workers.engine_of(0)) == ("auto", "auto")
    assert (own.workers.tensor_parallel, own.workers.kv_cache_gb, own.audit.engine) == (1, None, "auto")
    assert own.workers.groups_per_submission == card.workers.groups_per_submission, "what is the run's stays"
    asked = machine(RunDir(tmp_path, own), None, None, None, "vllm", 4, kv_cache_gb=8.0).config.workers
    assert (asked.engine, asked.tensor_parallel, asked.kv_cache_gb) == ("vllm", 4, 8.0)
    assert judging(RunDir(tmp_path, own), "torch").config.audit.engine == "torch"
    assert judging(RunDir(tmp_path, own), None).config == own


def test_engines_that_are_unknown_or_contradict_each_other_are_refused_by_name(tmp_path: Path) -> None:
    run = RunDir(tmp_path, make_config())
    with pytest.raises(ConfigError, match="--engine sglang: unknown; give one of auto, torch, vllm"):
        machine(run, None, None, None, "sglang")
    with pytest.raises(ConfigError, match="--engine vllm-server: unknown; give one of auto, torch, vllm"):
        judging(run, "vllm-server")
    with pytest.raises(ConfigError, match="--engine vllm-server: this machine's server is not known; give --server"):
        machine(run, None, None, None, "vllm-server")
    with pytest.raises(ConfigError, match=r"--engine torch: --server http://127.0.0.1:8000 is an engine of its own"):
        machine(run, None, None, None, "torch", server="http://127.0.0.1:8000")


def test_help_says_whose_machine_an_engine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for command in ("worker", "validator"):
        text = " ".join(CliRunner().invoke(app, [command, "--help"]).output.split())
        assert "auto on a machine that joins" in text


def test_ports_are_those_of_the_last_time_if_they_are_free(run: RunDir) -> None:
    run.path.mkdir()
    first = ports_of(run)
    assert len(set(first.values())) == 3
    assert ports_of(run) == first
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first["relay"]))
        taken.listen()
        second = ports_of(run)
    assert second["coordinator"] == first["coordinator"]
    assert second["relay"] != first["relay"]
    for rubbish in ("", "[]", '{"relay": "x"}', '{"relay": 99999999}'):
        (run.path / "ports.json").write_text(rubbish)
        assert len(set(ports_of(run).values())) == 3


@pytest.mark.parametrize(
    ("swarm", "host"),
    [
        ({}, "127.0.0.1"),
        ({"host": "0.0.0.0"}, "127.0.0.1"),
        ({"host": "::"}, "[::1]"),
        ({"host": "10.0.0.5"}, "10.0.0.5"),
        ({"host": "0.0.0.0", "public": "run.example.org"}, "run.example.org"),
    ],
)
def test_others_are_told_a_host_that_they_can_reach(run: RunDir, swarm: dict[str, str], host: str) -> None:
    assert run.config.swarm.model_copy(update=swarm).public_host == host


def test_a_device_given_here_wins_over_the_runs(run: RunDir) -> None:
    assert on_device(run, "workers", "mps").config.device_of("workers") == "mps"
    assert on_device(run, "workers", "mps").config.device_of("audit") == run.config.device
    assert on_device(run, "audit", None) == run
    with pytest.raises(ConfigError, match="--device tpu: give auto, cpu, cuda, mps"):
        on_device(run, "workers", "tpu")
