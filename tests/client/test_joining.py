"""Anyone joins with one command: a second machine, which has nothing but the wheel and a URL."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.run_processes import CONFIG
from tests.support.wheel import borrowing, build_wheel


def own_network() -> list[str]:
    for prefix in (["unshare", "-n"], ["unshare", "-rn"]):
        try:
            if subprocess.run([*prefix, "unshare", "-n", "true"], capture_output=True, timeout=10).returncode == 0:
                return prefix
        except FileNotFoundError:
            break
    pytest.skip("this machine does not allow network namespaces")


@pytest.mark.timeout(400)
def test_a_machine_that_knows_a_join_line_has_a_file_accepted_over_tls(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    prefix = own_network()
    client = borrowing(tmp_path / "client", build_wheel(tmp_path / "wheel"))
    command = [*prefix, sys.executable, "-m", "tests.client.two_machines", str(config), str(tmp_path), str(client)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=360)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["accepted"] >= 1, f"{found['run']}\n{found['worker']}"
    assert found["worker"].count("joined run small") == 1
    assert "Traceback" not in found["worker"]
    assert found["key_mode"] == "0o600"
    assert found["url"].startswith("https://")
    assert "stopped by SIGTERM; the same command continues from the last step" in found["run"]
    assert found["known"] == found["url"].replace("#", " ") + "\n"
