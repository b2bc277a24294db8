"""What the owner of a run can make of a machine that is lent to it: nothing of that machine is read or sent."""

import dataclasses
import json
import math
import subprocess
import sys
import typing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from shoal.cli.app import refuse
from shoal.client.client import CoordinatorClient
from shoal.config import TaskConfig
from shoal.coordinator import coordinator
from shoal.crypto.keys import Key
from shoal.errors import SwarmError, TaskError
from shoal.protocol.messages import UploadOut
from shoal.roles.session import join_run
from shoal.subproc import ChildError
from shoal.tasks.isolation import landlock as confine
from shoal.tasks.package_versions import PYTHON, check_packages, install_line, packages_of, pins_of
from shoal.tasks.rewards.scorer import Scorer, _score
from shoal.tasks.sources.gym import source as gym
from shoal.tasks.sources.gym.safe_answers import TEXT_OPTIONS
from tests.support.coordinator_in_process import world_at

PATHS_AS_OPTIONS = {"data_file"}


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The key of a machine that is lent."""
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "lender" / "node.key"
    Key(bytes([7] * 32)).save(path)  # not by chance: where it is the only word, every text is of one split
    return path


def reads(key: Path) -> dict[str, Any]:
    """A line whose every prompt is the key, if its generator can read it: it is the only word in there."""
    options = {"data_file": str(key), "min_word_len": 3, "max_word_len": 200}
    return {"source": "reasoning-gym/spell_backward", "options": options}


@pytest.mark.parametrize("composite", [False, True])
def test_a_run_card_cannot_make_a_lender_read_its_key(composite: bool, key: Path, tmp_path: Path) -> None:
    line = reads(key)
    if composite:
        member = {"name": "spell_backward", "config": line["options"]}
        line = {"source": "reasoning-gym/composite", "options": {"datasets": [member]}}
    with (
        world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", tasks=[line]) as world,
        pytest.raises(TaskError, match=r"option data_file = '/.*' is refused: .* could name a file; do not join"),
    ):
        join_run(world.url, key, tmp_path / "home", 5.0, lambda _: None, code=False)
    assert not (tmp_path / "home").exists()


UNCHECKED = """
import runpy
from shoal.tasks.sources.gym import source as gym
gym.foreign_option = lambda generator, options: None
runpy.run_module("shoal.tasks.rewards.scorer_child", run_name="__main__")
"""


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at options, in the process that makes tasks either."""
    monkeypatch.setattr(gym, "foreign_option", lambda generator, options: None)
    start = subprocess.Popen

    def start_unchecked(command: list[str], **rest: Any) -> subprocess.Popen[bytes]:
        return start(
            [sys.executable, "-P", "-c", UNCHECKED] if "shoal.tasks.rewards.scorer_child" in command else command,
            **rest,
        )

    monkeypatch.setattr(subprocess, "Popen", start_unchecked)


@pytest.mark.usefixtures("unchecked")
def test_what_makes_tasks_cannot_read_the_key_even_if_nobody_looks_at_options(key: Path, tmp_path: Path) -> None:
    stolen = gym.ReasoningGym("spell_backward", reads(key)["options"]).task("train", 0).prompt
    assert key.read_text().strip() in stolen, "the attack must work where nothing is confined"
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", tasks=[reads(key)]) as world:
        with pytest.raises(TaskError, match="Permission denied"):
            join_run(world.url, key, tmp_path / "home", 5.0, lambda _: None, code=False)
        with (
            Scorer([TaskConfig.model_validate(reads(key))]) as scorer,
            pytest.raises(TaskError, match="Permission denied"),
        ):
            scorer.tasks.task("train", 0)


CONFINED = """
import ctypes, json, os, resource, socket, subprocess, sys
from pathlib import Path
from shoal.tasks.isolation.landlock import confine
key, table = map(Path, sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
confine([table])
resource.getrlimit(resource.RLIMIT_NOFILE)  # its own limits are not secret
print(json.dumps(table.read_text()), flush=True)
tries = {
    "read": lambda: key.read_bytes(),
    "link": lambda: os.link(key, table.parent / "link"),
    "list": lambda: list(key.parent.iterdir()),
    "parent": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "memory": lambda: open(f"/proc/{os.getppid()}/mem", "rb").read(1),
    "itself": lambda: Path("/proc/self/environ").read_bytes(),
    "write": lambda: (table.parent / "written").write_bytes(b""),
    "socket": lambda: socket.socket(),
    "unix": lambda: socket.socket(socket.AF_UNIX),
    "fork": lambda: os.fork(),
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "kill": lambda: os.kill(os.getppid(), 0),
    "thread": lambda: call(234 if os.uname().machine == "x86_64" else 131, os.getppid(), os.getppid(), 0),
    "limits": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE),
    "passwords": lambda: Path("/etc/passwd").read_bytes(),
}
for name, attempt in tries.items():
    try:
        attempt()
    except OSError:
        continue
    print(name, flush=True)
"""


def test_a_confined_process_reads_what_it_was_given_and_reaches_nothing_else(key: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.jsonl"
    table.write_text("{}")
    command = [sys.executable, "-P", "-c", CONFINED, str(key), str(table)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ('"{}"\n', 0), done.stderr


def test_no_stranger_is_joined_where_nothing_can_be_confined(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {"source": "reasoning-gym/spell_backward"}
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", tasks=[line]) as world:
        with monkeypatch.context() as old:
            old.setattr(confine, "landlock_version", lambda: 0)
            with pytest.raises(TaskError, match=r"kernel has no Landlock.*Linux 5\.13.*--allow-code"):
                join_run(world.url, key, tmp_path / "home", 5.0, lambda _: None, code=False)
        monkeypatch.setattr(sys, "path", [*sys.path, str(key.parent)])
        with pytest.raises(TaskError, match=r"Python's own path has .*, which holds .*node\.key"):
            join_run(world.url, key, tmp_path / "home", 5.0, lambda _: None, code=False)


def _holds_text(value: Any) -> bool:
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    return isinstance(value, str) or (isinstance(inner, list | tuple | set) and any(map(_holds_text, inner)))


def test_every_option_that_may_be_text_was_looked_at() -> None:
    """Walks the installed reasoning-gym: a release with another option that takes text fails here."""
    import reasoning_gym

    found = {}
    for generator, (_, config) in reasoning_gym.factory.DATASETS.items():
        types = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            made = field.default_factory
            default = field.default if made is dataclasses.MISSING else made()
            if "str" in str(types[field.name]) or "Path" in str(types[field.name]) or _holds_text(default):
                found[field.name] = generator
    # Its values are members of an enumeration, which text is not.
    assert set(found) - {"transformation"} == set(TEXT_OPTIONS) | PATHS_AS_OPTIONS


WATCHED = """
import json, sys
import reasoning_gym
from shoal.errors import SwarmError, TaskError
from shoal.tasks.sources.gym.safe_answers import TEXT_OPTIONS
from shoal.tasks.sources.gym.source import ReasoningGym
import dataclasses
key = sys.argv[1]
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
secret = open(key).read().strip()
opened.clear()
for generator, (_, config) in reasoning_gym.factory.DATASETS.items():
    for option in [field.name for field in dataclasses.fields(config) if field.name not in ("seed", "size")]:
        for value in (key, [key], {key: key}, key[1:], "../" * 20 + key[1:], "\\\\" + key):
            try:
                source = ReasoningGym(generator, {option: value})
            except TaskError as error:
                assert "is refused" in str(error) or "composite" in str(error), (generator, option, error)
                continue
            print("taken", generator, option, value)
print(json.dumps([name for name in opened if "node.key" in name]))
"""


@pytest.mark.timeout(900)
def test_no_option_of_any_generator_opens_a_file_of_the_lenders(key: Path) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", WATCHED, str(key)], capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_a_node_with_other_versions_is_told_before_it_works(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {"source": "reasoning-gym/spell_backward"}
    card = packages_of([TaskConfig.model_validate(line)])
    monkeypatch.setattr(coordinator, "packages_of", lambda tasks: card | {"reasoning-gym": "0.1.24", PYTHON: "3.9"})
    with (
        world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", tasks=[line]) as world,
        pytest.raises(
            SwarmError, match=r"run's: 0\.1\.24.*use Python 3\.9 and pip install shoal-rl 'reasoning-gym==0\.1\.24'"
        ),
    ):
        join_run(world.url, key, tmp_path / "home", 5.0, lambda _: None, code=False)
    assert not (tmp_path / "home").exists()


def test_a_mended_release_of_what_prompts_pass_through_locks_nobody_out() -> None:
    tasks = [TaskConfig(source="reasoning-gym/spell_backward", reward="math")]
    here = packages_of(tasks)
    assert {"math-verify", "sympy", "reasoning-gym", PYTHON} <= set(here)
    check_packages(here | {"jinja2": "3.1.999"}, tasks, "run card of x")
    assert set(packages_of([TaskConfig(source="file/x.jsonl", reward="exact")])) == {
        "jinja2",
        "tokenizers",
        "transformers",
    }
    for name in here:
        with pytest.raises(SwarmError, match=f"it has {name} "):
            check_packages({other: here[other] for other in here if other != name}, tasks, "run card of x")


@pytest.mark.parametrize("source", ["environment/python", "environment/mine.py", "reasoning-gym/spell_backward"])
def test_where_python_itself_decides_every_node_has_the_runs_python(source: str) -> None:
    """A program that only newer versions accept would be told something else on an older one, and its node blamed."""
    tasks = [TaskConfig(source=source)]
    other = packages_of(tasks) | {PYTHON: "3.99"}
    with pytest.raises(SwarmError, match=r"use Python 3\.99"):
        check_packages(other, tasks, "run card of x")


def test_what_a_joiner_is_told_to_install_is_what_the_run_takes_and_no_more() -> None:
    tasks = [TaskConfig(source="reasoning-gym/spell_backward", reward="math")]
    here = packages_of(tasks)
    minor = ".".join(here["transformers"].split(".")[:2])
    line = install_line(tasks)
    assert line.startswith("pip install shoal-rl '")
    assert f"'transformers=={minor}.*'" in line
    assert f"'sympy=={here['sympy']}'" in line
    assert f"'{PYTHON}==" not in line
    assert len(pins_of(here)) == len(here) - 1


@pytest.mark.parametrize("said", [{"evil": "1.0"}, {"sympy": "1.0 --index-url=http://x"}, {"sympy": "1;rm"}])
def test_a_card_cannot_have_anything_else_installed(said: dict[str, str]) -> None:
    with pytest.raises(SwarmError, match="which decides no tasks; do not join it"):
        check_packages(said, [TaskConfig(source="reasoning-gym/spell_backward")], "run card of x")


BROKERED = """
import os, sys
from shoal.tasks.isolation import broker
from shoal.tasks.isolation import sandbox
from shoal.tasks.isolation.landlock import confine
# The sandbox itself may not be there; who asks for it and who makes it are.
broker.find_bubblewrap = sandbox.find_bubblewrap = lambda: "bwrap"
sandbox._run = lambda path, program, given, bounds, main: sandbox.Outcome(
    "ended", str(os.getpid()).encode() + given + open(sys.argv[1], "rb").read(), 0.5
)
broker.start_brokers()
confine([])
found = sandbox.run_program("print(1)", b" given ", sandbox.Bounds())
maker, _, rest = found.output.partition(b" ")
assert int(maker) != os.getpid() and (found.end, found.seconds) == ("ended", 0.5)
print(rest.decode(), end="")
"""


def test_a_confined_process_has_programs_run_by_one_that_can_make_sandboxes(tmp_path: Path) -> None:
    (tmp_path / "seen").write_text("out there")
    command = [sys.executable, "-P", "-c", BROKERED, str(tmp_path / "seen")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("given out there", 0), done.stderr


def test_a_chains_node_that_a_card_names_is_told_no_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rpc = pytest.importorskip("shoal.ledger.evm.rpc")
    (tmp_path / ".netrc").write_text("default login me password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    heard = []

    class Node(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.headers.get("Authorization"))
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = b'{"jsonrpc": "2.0", "id": 0, "result": "0x7a69"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Node) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert rpc.Chain(f"http://127.0.0.1:{server.server_port}", wait_s=5).id == 31337
        server.shutdown()
    assert heard == [None]


def test_a_file_is_not_sent_nearer_than_the_coordinator_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator on the internet cannot have a lender's own network written to."""
    with CoordinatorClient(f"https://8.8.8.8:7000#{Key.create().address}", Key.create(), wait_s=1) as link:
        for inside in ("http://127.0.0.1:9200/index", "http://192.168.1.1/reboot", "http://[::1]:80/"):
            monkeypatch.setattr(link, "ask", lambda *_, url=inside: UploadOut(url=url, done=False))
            with pytest.raises(SwarmError, match=r"nearer to this machine than the coordinator is; nothing was sent"):
                link.put_direct("/v1/uploads/0/0", b"file", 1)


def test_what_a_child_says_of_a_score_cannot_end_who_asked() -> None:
    wrong: list[dict[str, Any]] = [{"a": "b"}, {"a": None}, {"a": []}, {"a": math.nan}]
    for parts in wrong:
        with pytest.raises(ChildError):
            _score([1.0, "", parts, False, ""])
    assert _score([1.0, "", {"a": 1}, False, ""])[0].parts == {"a": 1.0}


def test_an_error_that_quotes_a_run_card_shows_no_terminal_escapes(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        refuse(SwarmError("run card of x: task source \x1b]52;c;ZXZpbA==\x07 gives no hash\x9b31m"))
    assert not {"\x1b", "\x07", "\x9b"} & set(capfd.readouterr().err)
