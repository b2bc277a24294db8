"""Stands in for `shoal worker` where the supervisor is tested and not the engine: a real process with a real lease.

It is started as `python lent_worker.py PYTHON -m shoal worker --join URL --key FILE ...`, joins the coordinator, takes
a lease and holds it. What `LENT_WORKER` says, it does then: nothing, eat memory, talk, crash, find a limit too
small, or load for ever.
"""

import itertools
import os
import sys
import threading
import time
from pathlib import Path

from shoal.client.client import CoordinatorClient
from shoal.client.rollout_store import SwarmStore
from shoal.crypto.keys import Key
from shoal.process import EXIT_LIMIT, die_with_parent, say_last_words
from shoal.roles.finish_signal import told_to_finish
from shoal.rundir import RUN_FILE

STEP = 1 << 20


def main(arguments: list[str]) -> int:
    die_with_parent()
    flags = dict(itertools.pairwise(arguments))
    with told_to_finish() as finish:
        return work(flags, finish)


def work(flags: dict[str, str], finish: threading.Event) -> int:
    mode = os.environ.get("LENT_WORKER", "hold")
    if mode == "crash":
        return 1
    if mode == "limit":
        say_last_words("--memory 600 MB: this run needs 2 GB here; raise it")
        return EXIT_LIMIT
    if mode == "load":  # as a worker that has not come to join yet
        finish.wait(600.0)
        return 0
    home = Path(flags["--home"])
    home.mkdir(parents=True, exist_ok=True)
    (home / RUN_FILE).touch()
    key = Key.load_or_create(Path(flags["--key"]))
    with CoordinatorClient(flags["--join"], key, wait_s=20.0) as link:
        link.join("worker")
        lease = SwarmStore(link, home / "cache").lease(key.address, 0)
        (home / "holds").write_text(f"{lease.step}/{lease.submission}" if lease else "nothing")
        eaten = [b"x" * int(0.8 * int(flags["--memory"]))] if mode == "eat" else []
        while not finish.wait(0.01):
            if mode == "talk":
                sys.stdout.write("x" * 999 + "\n")
                sys.stdout.flush()
            if mode == "eat":
                eaten.append(b"x" * STEP)
                time.sleep(0.25)  # less than 1 % of the limit per second: a busy supervisor may look late
        if lease is not None:
            link.put_file(f"/v1/files/{lease.step}/{lease.submission}?signal=0", b"answers")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
