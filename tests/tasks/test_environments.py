"""Environments: what is built in can be solved, a file of a few lines is one, and one that fails costs its episode."""

import io
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from shoal.config import TaskConfig, TurnsConfig
from shoal.config_io import check_config, load_config
from shoal.errors import ConfigError, TaskError
from shoal.rundir import prepare_run
from shoal.tasks.build import build_source, pinned
from shoal.tasks.environments.environment import demonstration
from shoal.tasks.environments.host import EnvironmentHost
from shoal.tasks.environments.resets import check_resets
from shoal.tasks.environments.source import BUILT_IN, EnvironmentSource, LocalHost, worked_turns
from shoal.tasks.files import check_foreign
from shoal.tasks.isolation.landlock import landlock_version
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import Score, Task, score_of
from tests.support.until import until

CONFIGS = Path(__file__).parents[2] / "configs"
# Of an honest episode: a request has `turns.seconds` for each of its actions, so it is in time on a loaded machine too.
HONEST = ["0"] * 40
OWN = """
import os, random, re, threading, time

meeting = threading.Barrier(20)
left_behind = set()

def note_begun():
    open(__file__ + ".begun", "a").close()  # empty: this process may write no file

def reset(seed):
    return {"prompt": f"guess {seed}", "number": random.Random(seed).randint(1, 9), "won": False}

def step(state, action):
    if action == "hang":
        note_begun()
        while True: pass
    if action == "hold":
        note_begun()
        re.match("(a+)+b", "a" * 64)
    if action == "die":
        os._exit(3)
    if action == "poison":
        left_behind.add("poison")
        return str(os.getpid())
    if action == "touch":
        return os._exit(3) if left_behind else "touched"
    if action == "flood":
        return "x" * 10_000_000
    if action == "raise":
        raise RuntimeError("broken")
    if action == "hoard":
        state["hoard"] = []
        while True: state["hoard"].append(bytes(1 << 28))  # hoards
    if action == "take":
        return str(len(bytes(700 << 20)))
    if action == "wait":
        time.sleep(0.3)
        return "waited"
    if action == "meet":
        meeting.wait(50)
        return "met"
    state["won"] = action == str(state["number"])
    return None if state["won"] else "no"

def score(state):
    return float(state["won"])

def solve(state):
    return str(state["number"])
"""


def environment(name: str) -> EnvironmentSource:
    found = build_source([TaskConfig(source=f"environment/{name}")])
    assert isinstance(found, EnvironmentSource)
    return found


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "python"])
def test_a_built_in_environment_is_solved_by_who_knows_how_and_the_same_each_time(name: str) -> None:
    source, host = environment(name), LocalHost(environment(name))
    for index in range(20):
        task = source.task("train", index)
        turns = demonstration(source.environment, task.entry["seed"])
        assert turns is not None
        actions = [action for action, _ in turns]
        played = [host.play("train", task, actions, score=True).result() for _ in range(2)]
        assert played[0] == played[1]
        assert played[0].observations == tuple(seen for _, seen in turns)
        assert played[0].score == Score(1.0)
        none = host.play("train", task, ["nonsense"], score=True).result()
        assert none.score == Score(0.0)


def test_tasks_of_train_and_held_out_never_meet() -> None:
    source = environment("maze")
    train = {source.task("train", index).prompt for index in range(60)}
    assert not train & {source.task("heldout", index).prompt for index in range(60)}


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("maze", {"size": 1}, r"options\.size = 1; must be 2 to 100"),
        ("game", {"doors": 0}, r"options\.doors = 0; must be at least 1"),
        ("calculator", {"low": 9, "high": 3}, r"options\.low = 9, options\.high = 3; must be 0 <= low <= high"),
        ("calculator", {"lo": 3}, r"options \{'lo': 3\} do not fit reset\(seed: int, low: int = 10"),
        ("verifiers/mine.py", {}, "write environment/harness/FILE.py, environment/verifiers/NAME"),
    ],
)
def test_options_that_make_no_environment_are_refused_by_name(name: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(TaskError, match=match):
        build_source([TaskConfig(source=f"environment/{name}", options=options)]).task("train", 0)


def corpus(tmp_path: Path, *lines: object) -> EnvironmentSource:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
    found = build_source([TaskConfig(source="environment/search", options={"corpus": str(path)})])
    assert isinstance(found, EnvironmentSource)
    return found


def test_a_corpus_of_ones_own_is_searched_and_its_numbers_are_answers_too(tmp_path: Path) -> None:
    rows = [{"question": f"year {n}?", "answer": 1800 + n, "text": f"year {n} is {1800 + n}"} for n in range(40)]
    source = corpus(tmp_path, {"question": "\u2028?", "answer": "a", "text": "\u2028"}, *rows)
    task = source.task("train", 0)
    number = int(task.prompt.split()[1].rstrip("?"))
    played = LocalHost(source).play("train", task, [f"year {number} is", f"={1800 + number}"]).result()
    assert played.observations[0].text == f"year {number} is {1800 + number}"
    assert played.score == Score(1.0)


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (({"question": "a?", "answer": "b", "text": "c"}, {"question": "a?", "text": "c"}), "jsonl line 2: .*question"),
        ((), "has no lines"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_refused_by_its_line(tmp_path: Path, lines: Any, match: str) -> None:
    with pytest.raises(TaskError, match=match):
        corpus(tmp_path, *lines).task("train", 0)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> TaskConfig:
    path = tmp_path_factory.mktemp("own") / "guess.py"
    path.write_text(OWN)
    return TaskConfig(source=f"environment/{path}")


@pytest.fixture(scope="module")
def scorer(own: TaskConfig) -> Iterator[Scorer]:
    with Scorer([own], turns=TurnsConfig(seconds=1.0, observation=50)) as scorer:
        yield scorer


@pytest.mark.parametrize("deed", ["hang", "die", "raise", "hoard"])
def test_an_environment_that_hangs_dies_or_takes_all_memory_costs_its_own_episode_only(
    scorer: Scorer, deed: str
) -> None:
    task, turns = scorer.tasks.task("train", 0), len(HONEST)
    others = [scorer.play("train", task, HONEST, episode=100 + n) for n in range(4)]
    bad = scorer.play("train", task, [deed], episode=99)
    more = [scorer.play("train", task, [*HONEST, "wait"], known=turns, episode=100 + n) for n in range(4)]
    assert [seen.text for one in others for seen in one.result(120).observations] == ["no"] * 4 * turns
    assert [one.result(120).observations[0].text for one in more] == ["waited"] * 4
    assert bad.result(120).error
    assert bad.result().score is None


def test_a_run_may_give_its_environments_less_memory(own: TaskConfig, scorer: Scorer) -> None:
    task = scorer.tasks.task("train", 0)
    taken_of_more = scorer.play("train", task, [*HONEST, "take"], known=len(HONEST))
    assert taken_of_more.result(120).observations[0].text == str(700 << 20)
    with Scorer([own], turns=TurnsConfig(seconds=60.0, memory_mb=1024)) as small:
        taken, other = (small.play("train", task, [action]) for action in ("take", "0"))
        assert "MemoryError" in taken.result(60).error
        assert other.result(60).observations[0].text == "no"


def test_memory_that_one_episode_takes_is_missed_by_no_other(tmp_path: Path) -> None:
    """Another episode of the process may be the one that asks for more when there is none left."""
    path = tmp_path / "hoarding.py"
    hoards = "if len(state['hoard']) == 4: note_begun(), time.sleep(60)"
    path.write_text(
        OWN.replace("# hoards", f"\n            {hoards}").replace("True: state", "True:\n            state")
    )
    with Scorer([TaskConfig(source=f"environment/{path}")], turns=TurnsConfig(seconds=2.0)) as scorer:
        task = scorer.tasks.task("train", 0)
        scorer.play("train", task, HONEST).result(120)
        hoarding = scorer.play("train", task, ["hoard"])
        until_begun(path)
        taking = scorer.play("train", task, [*HONEST, "take"], known=len(HONEST))
        assert taking.result(120).observations[0].text == str(700 << 20)
        assert hoarding.result(120).error


def until_begun(path: Path) -> None:
    """Waits until an episode of the environment in this file is at work on its bad deed."""
    until(path.with_name(f"{path.name}.begun").exists)


def test_what_an_episode_leaves_behind_in_its_process_costs_no_other(scorer: Scorer) -> None:
    """Neither one that it takes the process from while that is at work, nor one that finds it ended."""
    task = scorer.tasks.task("train", 0)
    touch = [*HONEST, "touch"]
    assert scorer.play("train", task, [*HONEST, "poison"]).result(120).observations
    touched = scorer.play("train", task, touch, known=len(HONEST)).result(120)
    assert (touched.error, [seen.text for seen in touched.observations]) == ("", ["touched"])
    poisoned = scorer.play("train", task, [*HONEST, "poison"], known=len(HONEST)).result(120)
    pid = int(poisoned.observations[0].text)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    touched = scorer.play("train", task, touch, known=len(HONEST)).result(120)
    assert (touched.error, [seen.text for seen in touched.observations]) == ("", ["touched"])


def test_a_step_that_lets_its_process_read_nothing_is_ended_by_its_own_deadline(tmp_path: Path) -> None:
    """It holds the interpreter, so the requests behind it fill the pipe: who sends them must not wait for room."""
    path = tmp_path / "holding.py"
    path.write_text(OWN)
    with Scorer([TaskConfig(source=f"environment/{path}")], turns=TurnsConfig(seconds=1.0)) as scorer:
        task = scorer.tasks.task("train", 0)
        scorer.play("train", task, HONEST).result(120)
        holding = scorer.play("train", task, ["hold"])
        until_begun(path)
        others = [scorer.play("train", task, [*HONEST, "x" * 4096], known=len(HONEST)) for _ in range(60)]
        assert [one.result(100).observations[0].text for one in others] == ["no"] * 60
        assert "took longer than turns.seconds" in holding.result(100).error


LEAVING = """
import socket, sys
from pathlib import Path
from shoal.tasks.environments import calculator, host_child

def step(state, action, own_step=calculator.step):
    if action.startswith("read "):
        return Path(action[5:]).read_text()
    if action.startswith("connect "):
        socket.create_connection(("127.0.0.1", int(action[8:])), 5)
        return "connected"
    return own_step(state, action)

calculator.step = step
host_child.main()
"""


@pytest.fixture
def leaving() -> Iterator[EnvironmentHost]:
    """The process of a built-in environment, one that would leave it."""
    if not landlock_version():
        pytest.skip("this kernel has no Landlock")
    line = TaskConfig(source="environment/calculator").model_dump(mode="json")
    spec = {"tasks": [line], "readable": [], "threads": 1, "memory": None, "observation": 50}
    host = EnvironmentHost([sys.executable, "-P", "-c", LEAVING], dict(os.environ), spec, TurnsConfig(seconds=60.0))
    yield host
    host.close()


def test_an_environment_that_tries_to_leave_its_sandbox_costs_its_own_episode_only(
    leaving: EnvironmentHost, tmp_path: Path
) -> None:
    secret, task = tmp_path / "secret", Task("calculator", 0, "", None, {})
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        deeds = [f"read {secret}", f"connect {server.getsockname()[1]}"]
        asked = [leaving.play("train", task, [action]) for action in ("2*3", deeds[0], "3*4", deeds[1], "4*5")]
        played = [one.result(60) for one in asked]
    assert [one.observations[0].text for one in played[::2]] == ["6", "12", "20"]
    assert "PermissionError" in played[1].error
    assert "OSError" in played[3].error
    assert not any(one.observations for one in played[1::2])


def test_what_floods_is_cut_at_the_runs_limit(scorer: Scorer) -> None:
    played = scorer.play("train", scorer.tasks.task("train", 0), ["flood"]).result(60)
    assert played.observations[0].text == "x" * 50


ELSEWHERE = """
import locale, os, sys, time

def reset(seed):
    return {"prompt": f"{seed}: {place()}"}

def step(state, action):
    return place()

def score(state):
    return 0.0

def place():
    return f"{locale.setlocale(locale.LC_ALL, '')} {os.environ.get('TZ')} {time.localtime(0)[3]} {sys.flags.utf8_mode}"
"""


def test_what_an_environment_says_depends_on_no_machines_language_or_time_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LC_ALL": "POSIX", "LANG": "de_DE", "TZ": "Asia/Tokyo"}.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "elsewhere.py"
    path.write_text(ELSEWHERE)
    with Scorer([TaskConfig(source=f"environment/{path}")], turns=TurnsConfig(seconds=60.0)) as scorer:
        task = scorer.tasks.task("train", 0)
        said = scorer.play("train", task, ["where?"]).result(120).observations[0].text
    assert said == "C.UTF-8 UTC 0 1"
    assert task.prompt.endswith(said)


def test_environments_that_wait_do_so_side_by_side(own: TaskConfig) -> None:
    """Each waits until all are there."""
    with Scorer([own], turns=TurnsConfig(seconds=60.0)) as scorer:
        task = scorer.tasks.task("train", 0)
        waiting = [scorer.play("train", task, ["meet"]) for _ in range(20)]
        assert [one.result(120).observations[0].text for one in waiting] == ["met"] * 20


@pytest.mark.parametrize("threads", [1, 4])
def test_a_request_that_waits_for_others_is_not_late(
    own: TaskConfig, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """More episodes than are played at once: the last ones of a batch wait for longer than one may take.

    By a clock of the host's that goes on by a second with every reply.
    """
    lose, take, lost, replies = EnvironmentHost._lose, EnvironmentHost._take, list[str](), list[Any]()

    def note(host: EnvironmentHost, how: str) -> None:
        lost.append(how)
        lose(host, how)

    def count(host: EnvironmentHost, reply: Any) -> None:
        replies.append(reply)
        take(host, reply)
        host._check_deadlines()

    monkeypatch.setattr(EnvironmentHost, "_lose", note)
    monkeypatch.setattr(EnvironmentHost, "_take", count)
    monkeypatch.setattr("shoal.tasks.environments.host.time", SimpleNamespace(monotonic=lambda: float(len(replies))))
    monkeypatch.setattr("shoal.tasks.rewards.scorer.CODE_THREADS", threads)
    turns = TurnsConfig(seconds=10.0)
    with Scorer([own], turns=turns) as scorer:
        task = scorer.tasks.task("train", 0)
        waiting = [scorer.play("train", task, ["0"]) for _ in range(64)]
        assert all(one.result(120).observations[0].text == "no" for one in waiting)
    assert len(replies) > 2 * turns.seconds, "none waited for long"
    assert lost == [], "some were played alone"


def test_episodes_that_were_given_up_hold_nobody_up(tmp_path: Path) -> None:
    """None of them is late before the test gives up."""
    path = tmp_path / "hanging.py"
    path.write_text(OWN)
    with Scorer([TaskConfig(source=f"environment/{path}")], turns=TurnsConfig(seconds=600.0)) as scorer:
        task = scorer.tasks.task("train", 0)
        scorer.play("train", task, ["0"]).result(120)
        given_up = [scorer.play("train", task, ["hang"]) for _ in range(200)]
        until_begun(path)
        assert all(one.cancel() for one in given_up)
        assert scorer.play("train", task, ["0"]).result(120).observations[0].text == "no"


def test_text_that_takes_most_bytes_is_told_in_one_reply(tmp_path: Path) -> None:
    path = tmp_path / "emoji.py"
    path.write_text(OWN.replace('return "waited"', 'return "\\U0001f41f" * 1000').replace("time.sleep(0.3)", "pass"))
    with Scorer([TaskConfig(source=f"environment/{path}")], turns=TurnsConfig(max=32)) as scorer:
        played = scorer.play("train", scorer.tasks.task("train", 0), ["wait"] * 31, score=True).result(60)
        assert not played.error
        assert [len(seen.text) for seen in played.observations] == [1000] * 31


@pytest.mark.parametrize(
    ("said", "reward", "error"),
    [
        ("Score(None)", None, "scorer gave no reward"),
        ("Score(None, 'x' * 1500)", None, "x" * 500),
        ("Score(1.0, 'a note')", 1.0, ""),
        ("Score(None, chr(0xd800))", None, "?"),
        ("Score(Fraction(1, 2))", 0.5, ""),
        ("Score(1.0, parts={'a': None})", None, "'NoneType'"),
        ("Score('much')", None, "'much'"),
        ("exit(3)", None, "raised SystemExit: 3"),
        ("float(input() or 1)", None, "raised EOFError: EOF when reading a line"),
    ],
)
def test_a_score_of_an_environment_is_one_that_a_file_may_hold(
    tmp_path: Path, said: str, reward: float | None, error: str
) -> None:
    """An honest worker would be blamed for the form of its file."""
    path = tmp_path / "scoring.py"
    path.write_text(
        OWN.replace('return float(state["won"])', f"return {said}")
        + "\nfrom fractions import Fraction\nfrom shoal.tasks.source import Score"
    )
    with Scorer([TaskConfig(source=f"environment/{path}")]) as scorer:
        played = scorer.play("train", scorer.tasks.task("train", 0), ["0"], score=True).result(60)
    found = played.score or Score(None, played.error)
    assert found.reward == reward
    assert found.error.endswith(error)
    assert bool(found.error) == (reward is None)


@pytest.mark.parametrize("deed", ["raise SystemExit", "exit()", "raise GeneratorExit"])
def test_a_step_that_leaves_its_program_ends_its_episode_at_once(tmp_path: Path, deed: str) -> None:
    """Or the thread that plays it would end without a word, and others would be played again with it."""
    path = tmp_path / "leaving.py"
    path.write_text(OWN.replace('raise RuntimeError("broken")', deed))
    source = build_source([TaskConfig(source=f"environment/{path}")])
    played = LocalHost(source).play("train", source.task("train", 0), ["raise"]).result()
    assert "Exit" in played.error


@pytest.mark.parametrize(
    ("state", "match"),
    [('{"prompt": f"{seed}" + chr(0xd800)}', "surrogate"), ('{"prompt": f"{seed}", "system": 3}', "system = 3")],
)
def test_what_no_tokenizer_takes_is_refused_by_name_when_it_is_asked(tmp_path: Path, state: str, match: str) -> None:
    path = tmp_path / "asking.py"
    path.write_text(CHANCE.replace("{asks}", f"return {state}"))
    with pytest.raises(TaskError, match=match):
        build_source([TaskConfig(source=f"environment/{path}")]).task("train", 0)


def test_a_system_turn_of_none_is_none(tmp_path: Path) -> None:
    path = tmp_path / "asking_alone.py"
    path.write_text(CHANCE.replace("{asks}", 'return {"prompt": f"{seed}", "system": None}'))
    assert build_source([TaskConfig(source=f"environment/{path}")]).task("train", 0).system == ""


def test_parts_that_have_a_name_of_our_own_are_renamed() -> None:
    found = score_of(Task("s", 0, "", None, {}), Score(0.5, parts={"task": 0.2, "length": 0.3, "style": 0.1}))
    assert found.parts == {"task_": 0.2, "length_": 0.3, "style": 0.1}


def test_more_requests_than_a_pipe_takes_hold_nobody_up() -> None:
    """The child replies one after the other: who sends all before reading anything waits for it, and it for them."""
    with Scorer([TaskConfig(source="environment/calculator")]) as scorer:
        task = scorer.tasks.task("train", 0)
        asked = [scorer.play("train", task, [f"{n}*1", "?" * 80]) for n in range(2000)]
        long = scorer.play("train", task, ["x" * 200_000])
        texts = [one.result(60).observations[0].text for one in asked]
        assert texts == [str(n) for n in range(2000)]
        assert long.result(60).observations[0].text == "?"


def test_a_process_that_ends_while_it_starts_costs_episodes_and_leaves_nobody_waiting() -> None:
    host = EnvironmentHost([sys.executable, "-c", "raise SystemExit(7)"], {}, {}, TurnsConfig())
    task = Task("calculator", 0, "", None, {})
    try:
        asked = [host.play("train", task, [str(n)]) for n in range(3)]
        assert ["ended with code 7" in one.result(60).error for one in asked] == [True] * 3
    finally:
        host.close()


def test_an_environment_of_others_runs_only_where_code_is_allowed(own: TaskConfig) -> None:
    lines = pinned([own])
    with pytest.raises(TaskError, match="--allow-code"):
        check_foreign(lines, "run", code=False)
    check_foreign(lines, "run", code=True)
    check_foreign([TaskConfig(source="environment/calculator")], "run", code=False)


def test_an_environment_whose_file_changed_is_refused(own: TaskConfig, tmp_path: Path) -> None:
    changed = pinned([own])[0].model_copy(update={"sha256": "0" * 64})
    with pytest.raises(TaskError, match="the run was made with"):
        build_source([changed])


def test_one_that_is_not_deterministic_is_taken_only_on_trust(tmp_path: Path) -> None:
    path = tmp_path / "dice.py"
    path.write_text("deterministic = False\n" + OWN)
    with pytest.raises(TaskError, match='unverified = "accept"'):
        build_source([TaskConfig(source=f"environment/{path}")])
    build_source([TaskConfig(source=f"environment/{path}", unverified="accept")])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"source": "environment/chess"}, "built in are calculator"),
        ({"source": "environment/maze", "reward": "math"}, "scores its episodes itself"),
        ({"source": "environment/maze", "unverified": "accept"}, "it is deterministic, so validators play its"),
        ({"source": "reasoning-gym/spell_backward", "unverified": "accept"}, "only environments have it: "),
    ],
)
def test_a_line_that_cannot_be_an_environment_is_refused_by_name(line: dict[str, str], said: str) -> None:
    with pytest.raises(TaskError, match=said):
        build_source([TaskConfig.model_validate(line)])


def test_a_file_without_step_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "half.py"
    path.write_text("def reset(seed): return {'prompt': 'x'}\n")
    with pytest.raises(TaskError, match="has no function step"):
        build_source([TaskConfig(source=f"environment/{path}")])


@pytest.mark.parametrize("name", ["turns", "turns-smollm2"])
def test_a_shipped_config_is_valid_and_its_tasks_are_solved_within_its_limits(name: str) -> None:
    config = load_config(CONFIGS / f"{name}.toml")
    source = build_source(config.tasks)
    host = LocalHost(source, config.turns.observation)
    for index in range(5):
        task = source.task("train", index)
        turns = worked_turns(source, task)
        assert turns is not None
        assert 1 < len(turns) <= config.turns.max
        played = host.play("train", task, [action for action, _ in turns], score=True).result()
        assert [seen.text for seen in played.observations] == [seen.text for _, seen in turns], "cut off"
        assert played.score == Score(1.0)


@pytest.mark.parametrize("turns", [1, 4])
@pytest.mark.parametrize(
    ("workers", "match"),
    [
        ({"in_flight": True}, "keep the version that they began with"),
        ({"engine": "vllm"}, "generated by our own engine alone"),
    ],
)
def test_what_episodes_cannot_have_is_refused_however_many_turns_they_may_take(
    workers: dict[str, Any], match: str, turns: int
) -> None:
    """An episode of one turn is one all the same: its turn ends at `turns.tokens`, not at a span's end."""
    tree = {
        "name": "x",
        "steps": 1,
        "tasks": [{"source": "environment/maze"}],
        "workers": workers,
        "turns": {"max": turns},
        "sampling": {"max_new_tokens": 64},
    }
    with pytest.raises(ConfigError, match=match):
        check_config(tree, "test")


CHANCE = """
import random, time

def reset(seed):
    {asks}

def step(state, action):
    return None

def score(state):
    return 0.0
"""


@pytest.mark.parametrize(
    "asks",
    [
        'return {"prompt": f"{seed} at {time.monotonic_ns()}"}',
        'return {"prompt": str(seed), "system": str(random.random())}',
    ],
)
def test_an_environment_that_asks_something_else_each_time_is_refused_before_its_run_begins(
    tmp_path: Path, asks: str
) -> None:
    """Also on trust: the policy would play another episode than it was asked, and its prompt would be a lie."""
    path = tmp_path / "chance.py"
    path.write_text("deterministic = False\n" + CHANCE.replace("{asks}", asks))
    tree = {"name": "x", "steps": 1, "tasks": [{"source": f"environment/{path}", "unverified": "accept"}]}
    with pytest.raises(TaskError, match=r"chance\.py: for the same seed its reset asks .* draw from random\.Random"):
        prepare_run(check_config(tree, "test"), tmp_path / "run", Console(file=io.StringIO()))


def test_an_environment_whose_answers_alone_are_left_to_chance_may_be_taken_on_trust(
    own: TaskConfig, tmp_path: Path
) -> None:
    path = tmp_path / "dice.py"
    path.write_text("deterministic = False\n" + OWN.replace('"no"', "str(random.random())"))
    check_resets([own, TaskConfig(source=f"environment/{path}", unverified="accept")])
