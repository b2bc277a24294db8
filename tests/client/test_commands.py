"""`shoal identity`, `shoal coordinator`, `shoal why` and `shoal status` as people use them."""

import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.coordinator.coordinator import Coordinator
from shoal.crypto.keys import Key, checksummed, short
from shoal.protocol.verdict import Finding, Verdict
from shoal.rundir import key_path
from tests.support.command import shoal
from tests.support.coordinator_in_process import World, key_of


def test_a_key_is_made_once_in_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    first, second = shoal(tmp_path, "identity", "show"), shoal(tmp_path, "identity", "show")
    path = tmp_path / "shoal" / "node.key"
    address = checksummed(Key.load(path).address)
    assert path.stat().st_mode & 0o777 == 0o600
    assert (first.stdout.splitlines()[-1], second.stdout) == (address, f"{address}\n")


def test_a_key_goes_from_one_machine_to_another(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    shown = shoal(here, "identity", "show").stdout.splitlines()[-1]
    printed = shoal(here, "identity", "export")
    assert shoal(there, "identity", "import", said=printed.stdout).stdout.strip() == shown
    backup = tmp_path / "backup"
    assert "anyone who has that file can act as you" in shoal(here, "identity", "export", "--to", str(backup)).stdout
    assert backup.stat().st_mode & 0o777 == 0o600
    twice = shoal(here, "identity", "export", "--to", str(backup))
    assert twice.returncode == 3
    assert "the file exists" in twice.stderr
    again = shoal(there, "identity", "import", str(backup))
    assert "is already this machine's key" in again.stdout
    other = shoal(tmp_path / "third", "identity", "show").stdout.splitlines()[-1]
    refused = shoal(tmp_path / "third", "identity", "import", str(backup))
    assert refused.returncode == 3
    assert f"holds {other}; give --replace" in refused.stderr
    replaced = shoal(tmp_path / "third", "identity", "import", str(backup), "--replace")
    assert replaced.stdout.splitlines()[-1] == shown
    assert len(list((tmp_path / "third" / "shoal").glob("node.key.*"))) == 1


@pytest.mark.parametrize(("text", "reason"), [("hello", "not 64 hexadecimal digits"), ("0x12", "a key of 1 bytes")])
def test_what_is_no_key_is_not_taken(tmp_path: Path, text: str, reason: str) -> None:
    result = shoal(tmp_path, "identity", "import", said=text)
    assert result.returncode == 3
    assert reason in result.stderr
    assert not (tmp_path / "shoal").exists()


def test_the_swarm_imports_no_torch() -> None:
    code = "import shoal.coordinator.command, shoal.client.rollout_store, sys; print(*sys.modules)"
    found = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    assert found & {"torch", "transformers", "reasoning_gym"} == set()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "run.toml"
    file.write_text('name = "a"\nsteps = 3\n[[tasks]]\nsource = "reasoning-gym/spell_backward"\n')
    return file


@pytest.mark.parametrize(("tls", "scheme"), [("auto", "http"), ("on", "https")])
def test_a_coordinator_prints_the_line_that_others_join_with(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch, tls: str, scheme: str
) -> None:
    def serve(
        _coordinator: Coordinator, listener: socket.socket, started: Callable[[], None], context: object, _page: object
    ) -> None:
        assert (context is not None) == (scheme == "https")
        started()
        listener.close()

    monkeypatch.setattr("shoal.coordinator.command.serve", serve)
    run = tmp_path / "runs" / "a"  # of which nothing is there yet
    public = ["--set", "swarm.public=run.example.org", "--set", f"swarm.tls={tls}"]
    result = shoal(tmp_path, "coordinator", str(config), "--out", str(run), *public)
    assert result.returncode == 0
    address = Key.load(key_path(run, "coordinator")).address
    assert re.search(rf"shoal worker --join {scheme}://run\.example\.org:\d+#{address}$", result.stdout, re.MULTILINE)


def test_a_port_that_is_taken_is_named(tmp_path: Path, config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = shoal(
            tmp_path, "coordinator", str(config), "--out", str(tmp_path / "run"), "--set", f"swarm.port={port}"
        )
    assert result.returncode == 3
    assert f"127.0.0.1:{port}: cannot listen" in result.stderr
    assert "change swarm.host or swarm.port" in result.stderr


@pytest.mark.parametrize("option", ["--allow", "--nginx", "--origin"])
def test_an_option_that_the_relay_of_a_run_does_not_heed_is_refused(tmp_path: Path, option: str) -> None:
    result = shoal(tmp_path, "relay", "--join", "http://127.0.0.1:1", option, str(tmp_path / "file"))
    assert result.returncode == 3
    assert f"relay of a run does not take {option}: only a relay outside a run does" in result.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--to", "s3://bucket"], "give --url with the URL under which others read it"),
        (["--to", "s3://bucket", "--host", "0.0.0.0"], "relay --to does not take --host"),
        (["--to", "s3://bucket", "--url", "http://x", "--to-option", "region"], "--to-option region: give it as KEY="),
        (["--to", "ftp://bucket", "--url", "http://x"], "--to ftp://bucket: "),
        (["--to-option", "region=x"], "--to-option without --to"),
    ],
)
def test_a_relay_to_an_object_store_says_what_is_wrong_with_its_options(
    tmp_path: Path, options: list[str], reason: str
) -> None:
    result = shoal(tmp_path, "relay", "--join", "http://127.0.0.1:1", *options)
    assert result.returncode == 3
    assert reason in result.stderr


def test_a_prepared_run_has_its_own_config(tmp_path: Path) -> None:
    result = shoal(tmp_path, "coordinator", str(tmp_path), "--set", "steps=3")
    assert result.returncode == 3
    assert "--set and --out go with a config file" in result.stderr


def test_a_contributor_can_ask_why(small_world: World, tmp_path: Path) -> None:
    small_world.announce()
    small_world.hand_in("a", small_world.take("a"))
    before = shoal(tmp_path, "why", "0/0", "--join", small_world.url)
    assert "no verdict yet: waiting for a validator" in before.stdout
    (upload,) = small_world.validator.waiting(0, 0)
    finding = Finding("rewards", "rewards are what the scorer gives", 1.0, 0.0, 3)
    sha256 = small_world.validator.read(upload)[1]
    small_world.validator.judge(upload, Verdict(False, sha256, True, finding, "evidence/step-000000-0000.json"))
    told = shoal(tmp_path, "why", "0/0", "--join", small_world.url).stdout
    for line in (
        "rejected by 0x",
        "check: rewards in sample 3",
        "claimed: 1.0",
        "found: 0.0",
        "evidence/step-000000-0000",
    ):
        assert line in told
    for name, reason in (("7/7", "no file was submitted under that number"), ("x", "must read STEP/NUMBER")):
        assert reason in shoal(tmp_path, "why", name, "--join", small_world.url).stderr


def test_status_shows_the_nodes_of_a_run(small_world: World, tmp_path: Path) -> None:
    small_world.announce()
    small_world.take("a")
    told = shoal(tmp_path, "status", "--join", small_world.url).stdout
    assert "run test: version 0 of 20; files: 0 accepted" in told
    assert "step 0 needs 4 groups: 0 arrived, 0 of them with signal, 2 out on leases" in told
    assert short(checksummed(key_of("a").address)) in told
    narrow = shoal(tmp_path, "status", "--join", small_world.url, columns=60).stdout
    assert "abandoned" in narrow
    assert "healthy" in narrow
    neither = shoal(tmp_path, "status")
    assert neither.returncode == 3
    assert "give a run directory, or --join URL" in neither.stderr
