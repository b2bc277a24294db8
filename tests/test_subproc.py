"""Claims about a child process over pipes: it is waited for so long and no longer, and its end is told."""

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from shoal.subproc import Child, ChildError

ECHO = """
import json, sys
for line in sys.stdin.buffer:
    asked = json.loads(line)
    sys.stdout.buffer.write(json.dumps({"size": asked}).encode() + b"\\n" + b"x" * asked)
    sys.stdout.buffer.flush()
"""


@contextmanager
def running(program: str) -> Iterator[Child]:
    with closing(Child([sys.executable, "-c", program], show_stderr=False)) as child:
        yield child


def test_messages_and_the_bytes_after_them_come_as_they_were_sent() -> None:
    with running(ECHO) as child:
        child.send([3, 0, 200_000])
        for size in (3, 0, 200_000):
            assert child.receive(20.0) == {"size": size}
            assert child.read(size, 20.0) == b"x" * size


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("import sys; sys.exit(3)", "ended with code 3"),
        ("import os, time; os.close(1); time.sleep(60)", "closed its pipe"),
        ("import time; time.sleep(60)", "took longer than 1.5 s"),
        ("print('x' * 10**6, end='')", "said more than 100 bytes"),
        ("print('neither this nor that')", "said what is not JSON"),
    ],
)
def test_a_child_that_fails_is_told_of_and_waited_for_no_longer(program: str, said: str) -> None:
    with running(program) as child, pytest.raises(ChildError, match=said):
        child.receive(1.5 if "sleep(60)" in program and "close" not in program else 20.0, 100)


def test_a_child_that_reads_nothing_is_not_waited_for() -> None:
    with (
        running("import time; time.sleep(60)") as child,
        pytest.raises(ChildError, match=r"took no messages for 0.3 s"),
    ):
        child.send(["x" * (1 << 20)], 0.3)


def test_what_is_offered_to_a_child_that_reads_nothing_is_taken_as_far_as_there_is_room() -> None:
    with running("import time; time.sleep(60)") as child:
        assert 0 < child.offer(b"x" * (1 << 20)) < 1 << 20
        assert child.offer(b"x") == 0


def test_what_a_child_printed_is_in_the_error_and_never_holds_it_up() -> None:
    with running(
        "import sys; sys.stderr.write('noise ' * 10**5 + '\\nno such table\\n'); print(1); sys.exit(2)"
    ) as child:
        assert child.receive(20.0) == 1
        with pytest.raises(ChildError, match="ended with code 2"):
            child.receive(20.0)
        assert child.last_words() == ": no such table"


def test_a_closed_child_is_gone() -> None:
    with running("import time; time.sleep(60)") as child:
        began = time.monotonic()
    assert child.code(0.0) == -9
    assert time.monotonic() - began < 5
