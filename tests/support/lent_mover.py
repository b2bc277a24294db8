"""`shoal worker` as a supervisor starts it, from its flags to its session, with a mover of bytes in the place of the
engine: it fetches versions one after the other, uploads a file as large as the run takes, and notes how long that took.

It is started as `python lent_mover.py PYTHON -m shoal worker --join URL --key FILE ...`.
"""

import json
import sys
import time
from types import ModuleType

from shoal import cli
from shoal.bandwidth import RECEIVED, SENT
from shoal.files import write_whole
from shoal.process import die_with_parent
from shoal.roles.session import JoinOptions, ignore_refused
from shoal.rundir import RunDir

VERSIONS = 3
OTHER_BYTES = 3_000_000  # on the worker's disk besides versions
FETCHED, MOVED = "fetched.json", "moved.json"


def start_worker(run: RunDir, name: str, options: JoinOptions, _attack: str | None = None) -> None:
    (run.path / "other.bin").write_bytes(bytes(OTHER_BYTES))
    began, received = time.monotonic(), RECEIVED.total
    with run.role(name) as (status, metrics), options.session(run, "worker", name, status, metrics) as session:
        moved: list[tuple[int, float]] = []
        for number in range(VERSIONS):
            while (version := session.weights.version(number)) is None:
                time.sleep(0.05)
            session.weights.fetch(version)
            moved = moved or [(RECEIVED.total - received, time.monotonic() - began)]
            write_whole(run.path / FETCHED, json.dumps(number).encode())
        lease = session.open_store(None, ignore_refused).lease(session.node, 0)
        assert lease is not None
        began, sent = time.monotonic(), SENT.total
        file = bytes(session.link.card.max_upload)
        session.link.put_file(f"/v1/files/{lease.step}/{lease.submission}?signal=0", file)
        moved.append((SENT.total - sent, time.monotonic() - began))
        write_whole(run.path / MOVED, json.dumps(moved).encode())
        time.sleep(600.0)


if __name__ == "__main__":
    die_with_parent()
    # So that the command starts this and not an engine, which alone takes seconds to import.
    instead = ModuleType("shoal.roles.worker")
    instead.__dict__["start_worker"] = start_worker
    sys.modules[instead.__name__] = instead
    sys.argv = ["shoal", *sys.argv[sys.argv.index("worker") :]]
    cli.main()
