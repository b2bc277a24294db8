"""Programs that would rather do anything than solve their task: each is contained, earns 0 and harms nobody."""

import os
import resource
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import TaskError
from shoal.tasks.isolation import sandbox
from shoal.tasks.isolation.sandbox import Bounds, find_bubblewrap, run_program
from shoal.tasks.isolation.seccomp import MACHINES, seccomp_filter
from shoal.tasks.rewards.code import Called, Spoken, Test, judge_program

BOUNDS = Bounds(seconds=0.5, memory=256 << 20, output=1 << 16)
# For programs that end by themselves, on a machine that is busy with others.
PATIENT = replace(BOUNDS, seconds=10.0)
SECRET = "the-answer-nobody-may-read-61803398"
TESTS: dict[str, Test] = {
    "printed": Spoken("21\n", SECRET),
    "returned": Called("solve", ((21,), (22,)), (SECRET, SECRET + "!")),
}
HONEST = f"""
def solve(n):
    return "{SECRET}" + "!" * (n - 21)
if __name__ == "__main__":
    import sys
    line = sys.stdin.readline()
    if line:
        print(solve(int(line)))
"""

ATTACKS = {
    "fork bomb": "import os\nwhile True: os.fork()",
    "fork bomb that hides its errors": """
import os
while True:
    try: os.fork()
    except OSError: pass
""",
    "process by spawn": "import subprocess\nwhile True: subprocess.Popen(['/python/bin/python', '-V'])",
    "thread bomb": """
import threading, time
while True:
    try: threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    except RuntimeError: pass
""",
    "memory bomb": "x = []\nwhile True: x.append(bytearray(1 << 24))",
    "memory bomb that hides its errors": """
x = []
while True:
    try: x.append(bytearray(1 << 20))
    except MemoryError: pass
""",
    "memory by a shared mapping": "import mmap\nx = [mmap.mmap(-1, 1 << 30) for _ in range(64)]",
    "endless loop": "while True: pass",
    "endless loop in C": "sum(iter(int, 1))",
    "endless multiplication": "9 ** 9 ** 9 ** 9",
    "endless sleep": "import time\ntime.sleep(1e6)",
    "endless recursion": "import sys\nsys.setrecursionlimit(10 ** 9)\nf = lambda: f()\nf()",
    "endless output": "while True: print('x' * 4096)",
    "endless output below Python": """
import os
for fd in range(32):
    try:
        while True: os.write(fd, b'x' * 65536)
    except OSError: pass
""",
    "output closed, work going on": """
import os
os.closerange(0, 32)
while True: pass
""",
    "network": "import socket\ns = socket.create_connection(('127.0.0.1', 22), 1)\nprint(s.recv(99))",
    "network by name": "import urllib.request\nprint(urllib.request.urlopen('http://pypi.org').read())",
    "exit 0 early": "import sys\nsys.exit(0)",
    "exit 0 below Python": "import os\nos._exit(0)",
    "exit 0 on the way out": "import atexit, os\natexit.register(lambda: os._exit(0))",
    "kill the parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "kill everybody": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "kill by number": "import os\nfor pid in range(2, 70000):\n  try: os.kill(pid, 9)\n  except OSError: pass",
    "ignore signals": """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""",
    "stop itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass",
    "import the scorer": "import shoal.tasks.rewards.code\nshoal.tasks.coding.judge_program = lambda *_: 1",
    "import the scorer from the host": """
import sys
sys.path += {paths!r}
import shoal.tasks.rewards.code
shoal.tasks.rewards.code._alike = lambda *_: True
""",
    "patch the tests": """
import builtins, json, sys
class Anything(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = str.__hash__
json.dumps = lambda *_, **__: Anything("x")
builtins.print = lambda *_: sys.stdout.write(Anything("x"))
def solve(n): return Anything("x")
print("x")
""",
    "patch the caller": """
import sys
def solve(n):
    frame = sys._getframe(1)
    frame.f_globals["work"] = {"calls": []}
    frame.f_locals["told"].write("true\\n" * 9)
    return True
""",
    "answers of its own making": """
import os
for fd in range(3, 32):
    try: os.write(fd, b'"x"\\n"x"\\n')
    except OSError: pass
os._exit(0)
""",
    "deep answer": "def solve(n): return None\nimport os\nos.write(3, b'[' * 60000)\nprint('[' * 60000)",
    "a huge number": "def solve(n): return 10 ** 4000\nprint(10 ** 4000)",
    "not a number": "def solve(n): return float('nan')\nprint(float('nan'))",
    "itself as the argument": "import sys\nprint(sys.argv, sys.stdin.read())\ndef solve(n): return [n, sys.argv]",
    "no program": "",
    "no Python": "}{",
    "a zero byte": "print(1)\0",
    "half a surrogate": "print('\ud800')",
}
# What these print or return is looked at as well.
LOOK = """
import os, sys, glob
def read(path):
    try:
        with open(path, 'rb') as file: return file.read(100000).decode(errors='replace')
    except OSError as error: return ''
seen = [str(dict(os.environ)), sys.stdin.read() if not sys.stdin.closed else '', str(sys.argv[:-1])]
for path in {paths!r}: seen.append(read(path))
for pid in range(1, 40000, 1 if os.path.exists('/proc/1') else 40000):
    for name in ('environ', 'cmdline', 'mem', 'maps'): seen.append(read('/proc/%d/%s' % (pid, name)))
for folder, names, files in os.walk('/'):
    seen += [os.path.join(folder, name) for name in names + files]
    names[:] = [name for name in names if name not in ('usr', 'python', 'lib', 'lib64')]
print(chr(10).join(seen)[:30000])
"""


@pytest.fixture(autouse=True, scope="module")
def _bubblewrap() -> None:
    try:
        find_bubblewrap()
    except TaskError as error:
        pytest.skip(str(error))


# Those that only take time do the same to a function.
PAIRS = [
    (name, kind)
    for name, program in ATTACKS.items()
    for kind in TESTS
    if kind == "printed" or not any(word in program for word in ("while True", "** 9", "sleep", "iter(int"))
]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_an_attack_is_contained_in_time_and_earns_nothing(name: str, kind: str) -> None:
    program = ATTACKS[name]
    if "{paths!r}" in program:
        program = program.format(paths=[str(Path(sandbox.__file__).parents[2]), str(Path.cwd()), "/tmp"])
    began = time.monotonic()
    score = judge_program(program, [TESTS[kind]], BOUNDS)
    assert time.monotonic() - began < 30  # many of them would never end
    assert score.reward == 0.0
    assert score.error == ""


@pytest.mark.parametrize("kind", TESTS)
def test_who_solves_the_task_is_paid(kind: str) -> None:
    assert judge_program(HONEST, [TESTS[kind]], PATIENT).reward == 1.0


def test_nothing_of_the_host_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_SECRET", SECRET)
    canary = tmp_path / "expected.json"
    canary.write_text(SECRET)
    paths = [str(canary), "/etc/passwd", "/etc/shadow", "/etc/hostname", str(Path.home() / ".bashrc"), __file__]
    seen = run_program(LOOK.format(paths=paths), b"21\n", PATIENT).output.decode()
    assert "21" in seen
    for word in (SECRET, "root:", str(tmp_path), "SHOAL", str(Path.home()), os.uname().nodename):
        assert word not in seen, word


def test_nothing_can_be_written(tmp_path: Path) -> None:
    program = f"""
import os
for folder in ({str(tmp_path)!r}, '/', '/tmp', '/dev', '/dev/shm', '/usr/lib', '/python/lib', '.'):
    try:
        with open(os.path.join(folder, 'written'), 'w') as file: file.write('x')
        print('wrote', folder)
    except OSError: pass
    for change in (os.mkdir, os.unlink, os.rmdir):
        try:
            change(os.path.join(folder, 'lib'))
            print('changed', folder)
        except OSError: pass
print('done')
"""
    assert run_program(program, b"", PATIENT).output == b"done\n"
    assert list(tmp_path.iterdir()) == []
    assert not Path("/tmp/written").exists()


def test_a_server_of_ours_hears_nothing() -> None:
    import socket

    heard: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)

        def listen() -> None:
            with suppress(TimeoutError):
                heard.append(server.accept())

        thread = threading.Thread(target=listen)
        thread.start()
        port = server.getsockname()[1]
        program = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1).send(b'x')"
        outcome = run_program(program, b"", PATIENT)
        thread.join()
    assert outcome.end == "failed"
    assert heard == []


@pytest.mark.parametrize(
    "drawn",
    [
        "random.random()",
        "hash('a set of texts is in the order of their hashes')",
        "os.urandom(8)",
        "uuid.uuid4()",
        "secrets.token_hex()",
        "random.SystemRandom().random()",
        "open('/dev/random', 'rb').read(8)",
        "resource.getrlimit(resource.RLIMIT_STACK)",
    ],
)
def test_who_judges_again_draws_the_same(drawn: str) -> None:
    """Otherwise an honest worker is blamed for what chance did."""
    program = f"import os, random, resource, secrets, uuid\nprint({drawn})"
    first, second = (run_program(program, b"", PATIENT) for _ in range(2))
    assert first.end == "ended"
    assert first.output == second.output


def test_how_deep_a_program_may_call_is_not_its_machines_to_say() -> None:
    before = resource.getrlimit(resource.RLIMIT_STACK)
    deep = "import functools, sys\nsys.setrecursionlimit(10**6)\n@functools.cache\ndef f(n): return n and f(n - 1)\n"
    try:
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, before[1]))
        assert run_program(deep + "print(f(20000))", b"", Bounds()).output == b"0\n"
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)


def test_threads_are_bounded_for_all_but_root() -> None:
    program = """
import os, threading, time
threading.stack_size(32768)
try:
    for n in range(5000): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
except RuntimeError: pass
print(n, flush=True)
os._exit(0)
"""
    limit = run_program("import resource\nprint(*resource.getrlimit(resource.RLIMIT_NPROC))", b"", PATIENT).output
    assert all(int(most) <= sandbox.THREADS for most in limit.split())
    if os.getuid() != 0:
        assert int(run_program(program, b"", Bounds(seconds=10.0)).output) < sandbox.THREADS


def test_no_process_of_theirs_is_left() -> None:
    before = _children()
    for name in ("fork bomb that hides its errors", "ignore signals", "thread bomb", "output closed, work going on"):
        run_program(ATTACKS[name], b"", BOUNDS)
    deadline = time.monotonic() + 5
    while _children() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _children() - before == set()


def _children() -> set[str]:
    """Processes that descend from this one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[stat.parent.name] = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
    found: set[str] = set()
    fresh = {str(os.getpid())}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh}
        found |= fresh
    return found


def test_where_there_is_no_sandbox_no_program_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path))
    find_bubblewrap.cache_clear()
    try:
        with pytest.raises(TaskError, match=r"bubblewrap is not installed.*apt-get install bubblewrap"):
            judge_program("print(1)", [TESTS["printed"]], BOUNDS)
        false = tmp_path / "bwrap"
        false.symlink_to("/bin/false")
        with pytest.raises(TaskError, match="cannot make a sandbox here"):
            judge_program("print(1)", [TESTS["printed"]], BOUNDS)
    finally:
        find_bubblewrap.cache_clear()


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_allows_no_call_that_reaches_out(machine: str) -> None:
    """By the numbers of asm/unistd.h: socket, connect, ptrace, mount, unshare, bpf, memfd_create, io_uring, fork."""
    reaching = {
        "x86_64": {41, 42, 57, 58, 101, 165, 272, 308, 319, 321, 425, 435, 29, 323},
        "aarch64": {198, 203, 117, 40, 97, 268, 279, 280, 425, 435, 194, 282},
    }[machine]
    allowed = MACHINES[machine].calls
    assert reaching & {*allowed, MACHINES[machine].clone, MACHINES[machine].prlimit} == set()
    assert len(seccomp_filter(machine)) == 8 * (18 + len(allowed))


def test_a_machine_without_a_filter_runs_nothing() -> None:
    with pytest.raises(TaskError, match="no filter of system calls for pdp11"):
        seccomp_filter("pdp11")
