"""Servers beside the coordinator present what it presents, and make no key where it has none."""

import ssl
from pathlib import Path

import pytest
from rich.console import Console

from shoal.coordinator.http.run_certificate import run_context
from shoal.crypto.keys import Key
from shoal.crypto.tls import make_certificate
from shoal.errors import ConfigError
from shoal.page.serve import serve_page
from shoal.roles.model_server import ListenOptions, ServeOptions, serve_run
from shoal.rundir import RunDir, is_own, role_key, write_run_file
from tests.support.coordinator_in_process import make_config

REFUSED = r"^{} --public: .* does not hold its coordinator's key, which signs its certificate; serve on loopback"


def run_at(path: Path, **swarm: object) -> RunDir:
    """A run that speaks https, in a directory without keys: a copy."""
    run = RunDir(path, make_config(swarm={"host": "0.0.0.0", "tls": "on", **swarm}))
    (path / "metrics").mkdir(parents=True)
    write_run_file(path, run.config, 0.0)
    return run


def test_a_copied_run_is_not_served_to_others_in_the_coordinators_name_and_stays_a_copy(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run")
    with pytest.raises(ConfigError, match=REFUSED.format("page")):
        serve_page(run.path, "127.0.0.1", 0, Console(quiet=True), public=True)
    listen = ListenOptions(port=0, public=True, api_key="secret")
    with pytest.raises(ConfigError, match=REFUSED.format("serve")):
        serve_run(run, ServeOptions(), listen, Console(quiet=True))
    assert not is_own(run.path)
    assert not (run.path / "keys").exists()


def test_a_certificate_of_an_authority_needs_no_key_and_makes_none(tmp_path: Path) -> None:
    pem = tmp_path / "tls.pem"
    pem.write_bytes(make_certificate(Key.create()))
    run = run_at(tmp_path / "run", tls_cert=str(pem), tls_key=str(pem))
    assert isinstance(run_context(run, "page"), ssl.SSLContext)
    assert not (run.path / "keys").exists()


def test_the_run_at_home_is_vouched_for_by_its_coordinator_and_plain_http_by_nobody(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run")
    role_key(run.path, "coordinator")
    assert isinstance(run_context(run, "page"), ssl.SSLContext)
    assert run_context(run_at(tmp_path / "plain", tls="off"), "page") is None
