"""Which engine computes the states of files, and that its states take the place of the policy's."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shoal.config import RunConfig
from shoal.devices import Room
from shoal.errors import ConfigError, DeviceError, ModelError
from shoal.generate.vllm.device_room import GIB
from shoal.models.load import Policy
from shoal.protocol.rollout import Rollout
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import is_blame
from shoal.validate import vllm_process, vllm_states
from shoal.validate.numerics.account import BAN_NATS
from shoal.validate.numerics.judge import Weighed
from shoal.validate.recompute import StatesOf, replay
from shoal.validate.vllm_process import ANSWER_S, START_S, VllmProcess
from shoal.validate.vllm_states import MAX_DEATHS, StatesJob, VllmStates, on_device, vllm_for
from tests.support.coordinator_in_process import make_config
from tests.support.model_and_checks import VERSIONS, World, build_world, lease_of

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
HERE = Path(sys.executable)


def config(engine: str, **changes: object) -> RunConfig:
    return make_config(audit={"engine": engine}, **changes)


@pytest.mark.parametrize(
    ("engine", "device", "there", "expected"),
    [
        ("auto", CPU, True, None),
        ("auto", CUDA, True, HERE),
        ("auto", CUDA, False, None),
        ("torch", CUDA, True, None),
        ("vllm", CPU, True, HERE),
        ("vllm", CUDA, True, HERE),
    ],
)
def test_the_engine_follows_from_config_and_device(
    engine: str, device: torch.device, there: bool, expected: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_states, "vllm_python", lambda: HERE if there else None)
    assert vllm_for(config(engine), device) == expected


def test_vllm_that_is_asked_for_and_missing_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_states, "vllm_python", lambda: None)
    with pytest.raises(ConfigError, match=r'audit.engine = "vllm": vLLM cannot be imported .*SHOAL_VLLM_PYTHON'):
        vllm_for(config("vllm"), CPU)


@pytest.mark.parametrize("engine", ["auto", "vllm"])
def test_versions_of_a_run_that_trains_adapters_are_computed_with_torch(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_states, "vllm_python", lambda: HERE)
    assert vllm_for(config(engine, train={"lora": {"rank": 4}}), CUDA) is None


def test_adapters_are_not_given_to_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_states, "is_adapter", lambda _folder: True)
    with VllmStates(HERE, StatesJob(64, 64)) as engine:
        engine.use(0, tmp_path)
        with pytest.raises(DeviceError, match="is an adapter"):
            engine.states([])


# Speaks as `vllm_script` does, and gives states of zeros. Files beside it say what it can do and how it fails; others
# are where it writes down what it started with and what it was told to load.
INTERPRETER = f"""#!{HERE}
import json, os, sys
from pathlib import Path
home = Path(__file__).parent
with (home / "starts").open("a") as file:
    file.write(Path(json.loads(sys.stdin.readline())["model"]).name + "\\n")
if (home / "removes").exists():
    Path((home / "removes").read_text()).rmdir()
if (home / "broken").exists():
    print("no memory is left", file=sys.stderr)
    sys.exit(3)
print(json.dumps({{"vllm": "0", "reloads": (home / "reloads").exists()}}), flush=True)
for line in sys.stdin:
    if (home / "mortal").exists():
        left = int((home / "mortal").read_text()) - 1
        (home / "mortal").write_text(str(left)) if left else (home / "mortal").unlink()
        os._exit(9)
    asked = json.loads(line)
    if "load" in asked:
        with (home / "loads").open("a") as file:
            file.write(Path(asked["load"]).name + "\\n")
        said = "it differs" if (home / "stale").exists() else ""
        print(json.dumps({{"said": said}}), flush=True)
        continue
    shapes = [[len(s) - begin, 2] for s, begin in zip(asked["sequences"], asked["begins"])]
    sys.stdout.write(json.dumps({{"states": shapes}}) + "\\n")
    sys.stdout.flush()
    sys.stdout.buffer.write(b"".join(bytes(4 * rows * width) for rows, width in shapes))
    sys.stdout.buffer.flush()
"""


class Home:
    """The directory of such an interpreter, with the versions that it is given."""

    def __init__(self, path: Path) -> None:
        self.path, self.program = path, path / "python"
        self.program.write_text(INTERPRETER)
        self.program.chmod(0o700)

    def version(self, number: int) -> tuple[int, Path]:
        (folder := self.path / f"v{number}").mkdir(exist_ok=True)
        return number, folder

    def is_(self, what: str, text: str = "") -> None:
        (self.path / what).write_text(text)

    def noted(self, what: str) -> list[str]:
        return file.read_text().split() if (file := self.path / what).exists() else []


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


JOB = StatesJob(64, 64)


def test_a_process_that_dies_costs_one_try_and_the_next_file_gets_another(home: Home, honest: Submission) -> None:
    home.is_("mortal", "1")
    with VllmStates(home.program, JOB) as engine:
        engine.use(*home.version(0))
        with pytest.raises(ModelError, match="vLLM"):
            engine.states(honest.rollouts)
        found = engine.states(honest.rollouts)
    assert found is not None
    assert [len(states_TD) for states_TD in found] == [len(rollout.completion) for rollout in honest.rollouts]


def test_vllm_that_is_asked_for_and_does_not_start_ends_the_validator_with_why(home: Home, honest: Submission) -> None:
    """A ModelError would be about the file, which would be tried again and again and end void."""
    home.is_("broken")
    with VllmStates(home.program, JOB) as engine:
        engine.use(*home.version(0))
        with pytest.raises(
            DeviceError, match=r'audit.engine = "vllm": .*no memory is left.*set audit.engine = "torch"'
        ):
            engine.states(honest.rollouts)


def test_vllm_that_keeps_dying_is_given_up_by_who_asked_for_it(home: Home, honest: Submission) -> None:
    home.is_("mortal", str(MAX_DEATHS))
    with VllmStates(home.program, JOB) as engine:
        engine.use(*home.version(0))
        for _ in range(MAX_DEATHS - 1):
            with pytest.raises(ModelError):
                engine.states(honest.rollouts)
        with pytest.raises(DeviceError, match=f"died {MAX_DEATHS} times in a row"):
            engine.states(honest.rollouts)


def test_under_auto_torch_takes_the_place_of_vllm_that_does_not_start_and_says_so_once(
    home: Home, world: World, honest: Submission
) -> None:
    notes: list[str] = []
    home.is_("broken")
    checks = replace(world.checks)
    with VllmStates(home.program, JOB, notes.append) as engine:
        engine.use(*home.version(0))
        checks.compute_states(engine.states)
        assert list(checks.costly([honest, honest])) == [None, None]
        engine.use(*home.version(1))
        assert engine.states(honest.rollouts) is None
    (note,) = notes
    assert "computed with torch from now on" in note
    assert "no memory is left" in note
    assert home.noted("starts") == ["v0"], "it is started no second time"


def test_under_auto_a_death_is_not_the_files_concern_and_three_in_a_row_end_it(home: Home, honest: Submission) -> None:
    notes: list[str] = []
    home.is_("mortal", "1")
    with VllmStates(home.program, JOB, notes.append) as engine:
        engine.use(*home.version(0))
        assert engine.states(honest.rollouts) is None
        assert engine.states(honest.rollouts) is not None
        home.is_("mortal", str(MAX_DEATHS))
        assert [engine.states(honest.rollouts) for _ in range(MAX_DEATHS)] == [None] * MAX_DEATHS
        assert len(notes) == 1
        assert engine.states(honest.rollouts) is None
    assert home.noted("starts") == ["v0"] * (1 + MAX_DEATHS)


@pytest.mark.parametrize("dies", [False, True])
def test_a_version_whose_files_are_gone_is_not_held_against_vllm(home: Home, honest: Submission, dies: bool) -> None:
    """A store removes what nobody holds; under auto torch computes with it, which has its weights."""
    home.is_("reloads")
    notes: list[str] = []
    with VllmStates(home.program, JOB, notes.append) as engine:
        number, folder = home.version(1)
        engine.use(number, folder)
        assert engine.states(honest.rollouts) is not None
        if dies:
            home.is_("mortal", "1")
            assert engine.states(honest.rollouts) is None
        else:
            number, folder = home.version(2)
            engine.use(number, folder)
        folder.rmdir()
        assert [engine.states(honest.rollouts) for _ in range(MAX_DEATHS + 1)] == [None] * (MAX_DEATHS + 1)
        engine.use(*home.version(3))
        assert engine.states(honest.rollouts) is not None
    assert notes == []
    assert home.noted("starts") == (["v1", "v3"] if dies else ["v1"]), "no start and no process is lost to it"


def test_a_version_whose_files_are_gone_does_not_end_a_validator_that_asks_for_vllm(
    home: Home, honest: Submission
) -> None:
    """What went while vLLM was starting looks like a start that failed."""
    number, folder = home.version(1)
    home.is_("broken")
    home.is_("removes", str(folder))
    with VllmStates(home.program, JOB) as engine:
        engine.use(number, folder)
        for _ in range(2):
            with pytest.raises(ModelError, match="was removed before vLLM had read it"):
                engine.states(honest.rollouts)
        (home.path / "broken").unlink()
        (home.path / "removes").unlink()
        engine.use(*home.version(2))
        assert engine.states(honest.rollouts) is not None
    assert home.noted("starts") == ["v1", "v2"]


def test_other_versions_are_loaded_into_the_process_that_runs(home: Home, honest: Submission) -> None:
    home.is_("reloads")
    with VllmStates(home.program, JOB) as engine:
        for number in (1, 1, 2, 1):
            engine.use(*home.version(number))
            assert engine.states(honest.rollouts) is not None
    assert home.noted("starts") == ["v1"]
    assert home.noted("loads") == ["v2", "v1"]


def test_a_version_that_is_not_as_its_files_say_after_a_reload_gets_a_process_of_its_own(
    home: Home, honest: Submission
) -> None:
    home.is_("reloads")
    home.is_("stale")
    with VllmStates(home.program, JOB) as engine:
        for number in (1, 2):
            engine.use(*home.version(number))
            assert engine.states(honest.rollouts) is not None
    assert home.noted("starts") == ["v1", "v2"]


def test_without_reloads_earlier_versions_are_torchs_and_cost_no_start(home: Home, honest: Submission) -> None:
    """A file whose answers change versions names two, and the next file again."""
    with VllmStates(home.program, JOB) as engine:
        computed = []
        for number in (1, 2, 1, 2, 1, 2):
            engine.use(*home.version(number))
            computed.append(engine.states(honest.rollouts) is not None)
    assert computed == [True, True, False, True, False, True]
    assert home.noted("starts") == ["v1", "v2"]


def test_a_large_version_has_time_to_be_read(home: Home, honest: Submission, monkeypatch: pytest.MonkeyPatch) -> None:
    """65 GB from a disk of 200 MB/s take more than five minutes."""
    home.is_("reloads")
    given, ask = list[float](), vllm_process.VllmProcess.ask

    def noted(self: VllmProcess, request: dict[str, object], seconds: float = ANSWER_S) -> object:
        given.append(seconds)
        return ask(self, request, seconds)

    monkeypatch.setattr(vllm_process.VllmProcess, "ask", noted)
    with VllmStates(home.program, JOB) as engine:
        for number in (1, 2):
            _, folder = home.version(number)
            with (folder / "model.safetensors").open("wb") as file:
                file.truncate(65 * 10**9)
            engine.use(number, folder)
            engine.states(honest.rollouts)
    assert given == [START_S + 3250, ANSWER_S, ANSWER_S + 3250, ANSWER_S]


def test_a_version_that_no_states_are_asked_of_is_not_loaded(home: Home, honest: Submission) -> None:
    """The policy confirms findings by itself, and goes through a file's versions for that."""
    home.is_("reloads")
    with VllmStates(home.program, JOB) as engine:
        engine.use(*home.version(1))
        engine.states(honest.rollouts)
        engine.use(*home.version(2))
        engine.use(*home.version(1))
        engine.states(honest.rollouts)
    assert home.noted("starts") == ["v1"]
    assert home.noted("loads") == []


def test_vllm_is_told_to_take_what_states_need_beside_the_judges_own_policy(tiny_dir: Path) -> None:
    """Without that it would want 92 % of the device, which the judge's policy makes impossible."""
    total = 24 * GIB
    args = on_device(Room(total, 10 * GIB), tiny_dir, JOB)
    assert 0 < args["gpu_memory_utilization"] * total < 2 * GIB
    assert args["kv_cache_memory_bytes"] > 0
    with pytest.raises(ModelError, match=r"vLLM needs .* on a device, and has .* are free"):
        on_device(Room(total, 1 * GIB), tiny_dir, JOB)


def test_what_the_device_allows_is_what_vllm_is_started_with(
    home: Home, honest: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_states, "least_room", lambda _count: Room(24 * GIB, 1 * GIB))
    notes: list[str] = []
    with VllmStates(home.program, replace(JOB, cuda=True), notes.append) as engine:
        engine.use(*home.version(0))
        assert engine.states(honest.rollouts) is None
    assert len(notes) == 1
    assert home.noted("starts") == []


def test_given_states_take_the_place_of_the_policys(world: World, honest: Submission) -> None:
    """Whatever order samples are packed in, each gets its own."""
    policy = world.checks.policy
    asked: list[int] = []

    def states(samples: Sequence[Rollout]) -> list[torch.Tensor]:
        asked.append(len(samples))
        return [own.states_TD for own in replay(policy, samples, None, 1.0, 10**6)]

    keys = [(7, number) for number in range(len(honest.rollouts))]
    plain = replay(policy, honest.rollouts, keys, 1.0, 64)
    given = replay(policy, honest.rollouts, keys, 1.0, 64, states=states)
    assert sum(asked) == len(honest.rollouts)
    for one, other in zip(plain, given, strict=True):
        torch.testing.assert_close(one.states_TD, other.states_TD, atol=1e-4, rtol=1e-4)
        assert abs(one.logprobs_T - other.logprobs_T).max() < 1e-4
        assert one.shortfalls_T is not None
        assert other.shortfalls_T is not None
        assert abs(one.shortfalls_T - other.shortfalls_T).max() < 1e-4


def wrong_states(policy: Policy) -> StatesOf:
    """An engine that computes something else."""
    return lambda samples: [-own.states_TD for own in replay(policy, samples, None, 1.0, 10**6)]


def test_nobody_is_blamed_for_what_another_engine_computed_wrong(world: World, honest: Submission) -> None:
    """Of several files, each is decided by the policy, and a file that is wrong stays so."""
    lease = lease_of(world, submission=3)
    cheat = world.maker("edited_tokens").make(lease, VERSIONS[1])
    checks = replace(world.checks)
    checks.compute_states(wrong_states(checks.policy))
    before, blamed, after = checks.costly([honest, cheat, honest])
    assert (before, after) == (None, None)
    assert is_blame(blamed)
    assert checks.states is not None, "the next file is computed by the engine again"


def test_what_another_engine_alone_finds_is_no_evidence() -> None:
    rounded = build_world("short", "bfloat16")
    lease = lease_of(rounded, submission=3)
    made, cheat = (rounded.maker(attack).make(lease, VERSIONS[1]) for attack in (None, "random_proof"))
    checks = rounded.checks
    checks.compute_states(wrong_states(checks.policy))
    assert checks.weigh(made).total < 0
    assert checks.weigh(cheat).total > BAN_NATS
    assert checks.numbers is not None
    assert checks.numbers.states is checks.states is not None


def test_evidence_that_two_computations_agree_on_is_the_smaller_of_both() -> None:
    one, other = Weighed({"gaps": 3.0, "chunks": -1.0}, 64), Weighed({"gaps": 2.0, "chunks": 5.0}, 64)
    assert one.at_most(other) == Weighed({"gaps": 2.0, "chunks": -1.0}, 64)
