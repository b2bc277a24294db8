"""Two machines on one: this process, in a network namespace of its own, and another namespace behind a cable.

Run with `unshare`; prints one JSON object. The run is on this side, and on the other a worker that knows a join line,
whose `shoal` is that of an environment with the wheel: nothing of the checkout is in its reach.
"""

import json
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from pyroute2 import IPRoute, NetNS

from shoal.client.client import CoordinatorClient
from shoal.crypto.keys import Key
from shoal.errors import ShoalError
from tests.support.run_processes import SMALLEST, own_worker_stopped
from tests.support.wheel import bare

HERE, THERE = "10.77.0.1", "10.77.0.2"
WAIT_S = 240.0


def connect(other: int) -> None:
    """A cable between this namespace and that of another process."""
    with IPRoute() as near, NetNS(f"/proc/{other}/ns/net") as far:
        near.link("add", ifname="near", kind="veth", peer={"ifname": "far", "net_ns_pid": other})
        for side, name, address in ((near, "near", HERE), (far, "far", THERE)):
            (index,) = side.link_lookup(ifname=name)
            side.addr("add", index=index, address=address, prefixlen=24)
            side.link("set", index=index, state="up")
        (loopback,) = near.link_lookup(ifname="lo")
        near.link("set", index=loopback, state="up")


def main(config: str, folder: Path, client: str) -> None:
    shoal = [sys.executable, "-m", "shoal"]
    out, home = folder / "run", folder / "home"
    home.mkdir()
    away = folder / "away"  # python -m has the working directory on its path, and the home directory holds the key
    away.mkdir()
    with ExitStack() as stack:

        def start(command: list[str], log: str, **options: object) -> subprocess.Popen[bytes]:
            file = stack.enter_context((folder / log).open("wb"))
            process = subprocess.Popen(command, stdout=file, stderr=file, **options)  # type: ignore[call-overload]
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process  # type: ignore[no-any-return]

        other = start(["unshare", "-n", "sleep", "600"], "other.log")
        while Path(f"/proc/{other.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
            if other.poll() is not None:
                sys.exit((folder / "other.log").read_text())
            time.sleep(0.02)
        connect(other.pid)
        # More steps than it takes until the one that joins has a file accepted.
        run = start([*shoal, "run", config, "--out", str(out), f"--set=swarm.host={HERE}", *SMALLEST], "run.log")
        deadline = time.monotonic() + WAIT_S
        while not (line := re.search(r"shoal worker --join (\S+)", (folder / "run.log").read_text())):
            if time.monotonic() > deadline or run.poll() is not None:
                sys.exit((folder / "run.log").read_text())
            time.sleep(0.2)
        url = line[1]
        stack.enter_context(own_worker_stopped(out, WAIT_S))
        enter = ["nsenter", f"--net=/proc/{other.pid}/ns/net"]
        worker = start([*enter, client, "worker", "--join", url], "worker.log", env=bare(home), cwd=away)
        accepted = 0
        with CoordinatorClient(url, Key.create(), wait_s=WAIT_S) as link:
            while not accepted and time.monotonic() < deadline and run.poll() is None and worker.poll() is None:
                time.sleep(0.5)
                try:
                    nodes = link.get("/v1/status")["nodes"]
                except ShoalError:
                    break
                accepted = sum(node["accepted"] for node in nodes if node["name"] == "worker")
    key = home / ".config" / "shoal" / "node.key"
    found = {
        "accepted": accepted,
        "worker": (folder / "worker.log").read_text(),
        "url": url,
        "known": (home / ".local" / "state" / "shoal" / "known_coordinators").read_text(),
        "run": (folder / "run.log").read_text()[-2000:],
        "key_mode": oct(key.stat().st_mode & 0o777) if key.exists() else "",
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
