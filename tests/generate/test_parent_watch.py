"""Processes of vLLM end with the worker that started them, and with nobody else."""

import subprocess
import sys

import pytest

# The reaper adopts orphans, as the session manager of a desktop does. `middle` says whether an engine core is between
# the front and the watching process, as with tensor parallelism. It prints what is left when the front was killed.
FAMILY = """
import ctypes, os, signal, sys, time
from shoal.generate.vllm.parent_watch import CHECK_S, end_with, is_there

def child(body):
    pid = os.fork()
    if pid == 0:
        body()
        time.sleep(60)
        os._exit(0)
    return pid

def watching():
    end_with(front)
    os.write(ready, f"{os.getppid()} {os.getpid()}\\n".encode())

assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
middle = sys.argv[1] == "middle"
read, ready = os.pipe()

def lead():
    global front
    front = os.getpid()
    child((lambda: child(watching)) if middle else watching)

front = child(lead)
parent, watcher = map(int, os.fdopen(read).readline().split())
os.kill(front, signal.SIGKILL)
os.waitpid(front, 0)
until = time.monotonic() + 20 * CHECK_S
gone = {watcher, parent} - {front}
while gone and time.monotonic() < until:
    pid, _ = os.waitpid(-1, os.WNOHANG)
    gone.discard(pid)
    time.sleep(0.02)
print("gone" if not gone else "left", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted by a chosen process on Linux alone")
@pytest.mark.parametrize("family", ["child", "middle"])
def test_what_a_killed_worker_leaves_ends_and_the_process_that_adopts_it_does_not(family: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAMILY, family], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "gone\n"), done.stderr
