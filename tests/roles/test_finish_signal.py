"""A worker hears that it is to finish whenever it is told: before it listens, while it works, and when it ends."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from shoal.roles.finish_signal import FINISH, came_early, held_back, told_to_finish

WORKER = """
import sys, time
from shoal.roles.finish_signal import came_early, told_to_finish
print("starts", flush=True)
sys.stdin.readline()  # as if it imported an engine
early = came_early()
with told_to_finish() as finish:
    heard = finish.wait(10)
    print("listens", early, heard, flush=True)
sys.stdin.readline()  # as if it let go of the engine
print("ends", flush=True)
"""


@pytest.mark.parametrize("told", ["while it starts", "while it listens"])
def test_a_worker_hears_it_whenever_it_is_told_and_is_never_killed_by_it(told: str) -> None:
    with held_back():
        process = subprocess.Popen([sys.executable, "-c", WORKER], stdin=-1, stdout=-1, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "starts\n"
    early = told == "while it starts"
    if early:
        process.send_signal(FINISH)
    process.stdin.write("\n")
    process.stdin.flush()
    if not early:
        process.send_signal(FINISH)
    words = process.stdout.readline().split()
    assert words[0] == "listens"
    assert words[2] == "True", "it heard"
    assert not early or words[1] == "True", "and could have known before it listened"
    process.send_signal(FINISH)  # once more, too late
    assert process.communicate("\n", timeout=60)[0] == "ends\n"
    assert process.returncode == 0


def test_who_starts_a_worker_hears_the_signal_as_before() -> None:
    heard = threading.Event()
    before = signal.signal(FINISH, lambda _number, _frame: heard.set())
    try:
        with held_back():
            signal.pthread_kill(threading.get_ident(), FINISH)  # sent to the process, other threads hear it
            assert came_early()
            assert not heard.is_set()
        assert heard.wait(5.0)
        with told_to_finish() as finish:
            os.kill(os.getpid(), FINISH)
            assert finish.wait(5.0)
        assert signal.getsignal(FINISH) not in (signal.SIG_DFL, None)
    finally:
        signal.signal(FINISH, before)
