"""A run's origin listens where its owner says, with TLS where others can reach it."""

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.rundir import RunDir, write_run_file
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.format.store import Store
from tests.support.origin_and_relays import contents, write_version
from tests.support.roles_in_process import make_config
from tests.support.servers.running import free_port


@pytest.mark.parametrize(("options", "scheme"), [([], "http"), (["--tls"], "https")])
def test_the_origin_of_a_run_serves_at_the_address_that_it_is_given(
    tmp_path: Path, options: list[str], scheme: str
) -> None:
    run = RunDir(tmp_path / "run", make_config("tiny"))
    write_run_file(run.path, run.config, 0.0)
    with run.channel().publish(0) as staging:
        made = write_version(staging / "model", mib=0.1)
        wanted = contents(made)
    port, address = free_port(), run.origin_key.address
    command = [sys.executable, "-m", "shoal", "origin", str(run.path), "--host", "127.0.0.2", "--port", str(port)]
    url = f"{scheme}://127.0.0.2:{port}" + (f"#{address}" if scheme == "https" else "")
    with subprocess.Popen([*command, *options]) as origin:
        try:
            with Puller(Store(tmp_path / "client"), [url], address, run.config.name) as puller:
                assert contents(puller.fetch(0) / "model") == wanted
        finally:
            origin.terminate()
    assert origin.returncode == 0
