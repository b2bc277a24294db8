"""Run as a program: kills a process that enters into a ledger, again and again, and says what was found afterwards."""

import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

from shoal.crypto.keys import Key
from shoal.ledger.acts import NO_HASH, Fund, Terms
from shoal.ledger.entry import Statement
from shoal.ledger.export import verify_file
from shoal.ledger.store import SqliteLedger

KEY = Key(b"\1" * 32)
TERMS = Terms(arbiter=KEY.address, validators=(KEY.address,), beacon=NO_HASH)
# A new file now and then: what is there is verified at every start.
PER_FILE = 5


def write_on(path: Path, first: int, out: int) -> None:
    """Enters one after the other and, at times, several at once; each number goes out when it is acknowledged."""
    ledger = SqliteLedger.open(path, KEY, "crash", TERMS)
    os.write(out, b"open\n")
    number = first
    while True:
        together = range(number, number + 1 + number % 4)
        acts = [Fund(id=str(n), amount=1) for n in together]
        ledger.take_all([Statement.sign(KEY, "crash", ledger.name, act) for act in acts])
        os.write(out, "".join(f"{n}\n" for n in together).encode())
        number = together[-1] + 1


def kill_once(path: Path, first: int, wait_s: float) -> list[int]:
    """What a writer that was killed had acknowledged."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_on(path, first, write)
        finally:
            os._exit(1)
    os.close(write)
    if select.select([read], [], [], 30.0)[0]:
        time.sleep(wait_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the writer ended by itself"
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    return [int(line) for line in said.splitlines()[1:]]


def main() -> None:
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    rng, acknowledged, entered = random.Random(5), set[str](), set[str]()
    kept, first = 0, 0
    for kill in range(kills):
        if kill % PER_FILE == 0:
            acknowledged, first = set(), 0
        path = folder / f"{kill // PER_FILE}.db"
        acknowledged |= {str(n) for n in kill_once(path, first, rng.uniform(0, 0.05))}
        history = verify_file(path)
        entered = {name.removeprefix("fund ") for _, name in history.state.entered}
        assert acknowledged <= entered, f"lost after kill {kill}: {sorted(acknowledged - entered)}"
        assert history.state.treasury == len(entered)
        first = 1 + max((int(name) for name in entered), default=-1)
        kept += len(acknowledged) if (kill + 1) % PER_FILE == 0 else 0
    sys.stdout.write(json.dumps({"kills": kills, "acknowledged": kept}))


if __name__ == "__main__":
    main()
