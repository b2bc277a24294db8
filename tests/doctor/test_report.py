"""The report: a step that crashes ends no other, nothing private is in the file, and its rates can be merged."""

import getpass
import json
import math
import os
import socket
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.config import RunConfig
from shoal.config_io import check_config
from shoal.devices import CPU
from shoal.doctor.report import command
from shoal.doctor.report.child import run_step
from shoal.doctor.report.command import chosen, report_config, this_machine
from shoal.doctor.report.plan import STEPS, Step
from shoal.doctor.report.private import COMMON, cleaned, cleaned_tree, names
from shoal.doctor.report.report_file import Report, StepResult
from shoal.doctor.report.runner import Job, run_steps
from shoal.doctor.report.table import table
from shoal.doctor.steps import engine, memory, ranks, rates, reload, sampling, speed, vllm_v1
from shoal.doctor.steps.context import Context, StepFailed, StepSkipped
from shoal.doctor.steps.judged import judge_at_temperatures
from shoal.doctor.steps.vllm_engine import in_format
from shoal.errors import ConfigError
from shoal.generate.engine import Completion
from shoal.generate.sampling import choose
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import load
from shoal.models.tiny import build_tiny
from shoal.models.weights import read_weights
from shoal.protocol.rates.honest_rates import EDGES, Histogram
from shoal.protocol.rates.rates_file import RatesFile
from shoal.protocol.rates.shipped import default_rates
from shoal.tasks.build import build_source
from shoal.validate.calibrate.tally import Tally
from tests.support.command import shoal

BAD_STEPS = """
import os, signal, time
from shoal.doctor.steps.context import StepFailed, StepSkipped

def run(context):
    match context.config.name:
        case "fails": raise StepFailed("3 of 9 tokens differ; expected none")
        case "skips": raise StepSkipped("needs two GPUs")
        case "breaks": raise RuntimeError(f"no kernel image in {os.getcwd()}")
        case "crashes": os.kill(os.getpid(), signal.SIGSEGV)
        case "hangs": time.sleep(600)
    return {"tokens": 5}
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    config = small_config()
    model = tmp_path_factory.mktemp("model")
    build_tiny(model, config.model.tiny, build_source(config.tasks), 0, lambda *_: None)
    return Job(config, model, "cpu")


def small_config() -> RunConfig:
    tree = report_config("tiny", small=True).model_dump(mode="json")
    tree["model"]["tiny"] |= {"hidden": 64, "layers": 2}
    tree["sampling"] |= {"max_new_tokens": 6, "max_prompt_tokens": 8, "group_size": 2}
    tree["workers"]["max_batch"] = 4
    return check_config(tree, "test")


def context(job: Job, scratch: Path) -> Context:
    return Context(job.config, job.model, CPU, scratch)


@pytest.mark.parametrize(
    "step", [sampling, engine, reload, ranks, memory, speed, rates], ids=lambda step: step.__name__
)
def test_each_step_passes_on_a_cpu_with_figures(step: Any, job: Job, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("shoal.doctor.steps.sampling.VOCABULARIES", (267, 5000))
    monkeypatch.setattr("shoal.doctor.steps.speed.ROUNDS", 1)
    monkeypatch.setattr("shoal.doctor.steps.rates.ANSWERS", 4)
    monkeypatch.setattr("shoal.validate.calibrate.rates.vllm_python", lambda: None)  # tests/vllm has it
    values = step.run(context(job, tmp_path))
    assert values
    assert all(isinstance(value, (int, float, str)) for value in values.values())


def test_vllm_is_given_a_version_in_the_format_that_it_computes_in(job: Job, tmp_path: Path) -> None:
    """Its head is float32 and would keep what a version in bfloat16 does not have."""
    folder = in_format(job.model, "bfloat16", tmp_path / "bfloat16")
    stored = read_weights(folder, "float32")
    assert stored.keys() == read_weights(job.model, "float32").keys()
    for name, tensor in read_weights(job.model, "float32").items():
        assert torch.equal(stored[name], tensor.bfloat16().float())
    assert load(folder).vocab == load(job.model).vocab
    assert in_format(job.model, "bfloat16", folder) == folder


def test_a_step_of_a_model_runner_that_vllm_does_not_use_is_skipped(job: Job, tmp_path: Path, monkeypatch: Any) -> None:
    """What was told to use V2 and used V1 would be reported as a pass of V2."""

    class Engine:
        def runner(self) -> int:
            return 1

    monkeypatch.setattr(vllm_v1, "vllm_engine", lambda *_, **__: nullcontext(Engine()))
    monkeypatch.setattr(vllm_v1, "judge_at_temperatures", lambda *_: {"tokens": 5})
    with pytest.raises(StepSkipped, match="was told to use its V2 model runner, and uses V1 here"):
        vllm_v1.run(context(job, tmp_path), runner=2)


def test_a_device_that_chooses_other_tokens_fails_the_step(job: Job, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("shoal.doctor.steps.sampling.VOCABULARIES", (267,))
    right = choose

    def off_by_one(scaled: Any, bits: Any) -> Any:
        tokens, logprobs = right(scaled, bits)
        tokens[0] += 1
        return tokens, logprobs

    monkeypatch.setattr(sampling, "choose", off_by_one)
    with pytest.raises(StepFailed, match="4 of 64 tokens are not those that numpy chooses"):
        sampling.run(context(job, tmp_path))


def test_an_engine_whose_logprobs_are_off_fails_the_step(job: Job, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(TorchEngine, "scaled", lambda self, logits: logits / (self.temperature * 1.05))
    with pytest.raises(StepFailed, match="a float32 judge rejects it"):
        engine.run(context(job, tmp_path))


def test_an_engine_that_is_wrong_below_temperature_1_alone_fails_the_step(job: Job, tmp_path: Path) -> None:
    """At 1 an engine that divides by the temperature twice, or not at all, computes what it should."""
    policy, at_work = load(job.model), context(job, tmp_path)
    requests = at_work.requests(policy, 4)

    def answers_of(divides: Callable[[float], float]) -> Callable[[float], list[Completion]]:
        def at(temperature: float) -> list[Completion]:
            longest = at_work.config.max_len
            engine = TorchEngine(policy, max_batch=4, max_len=longest, temperature=divides(temperature))
            return list(engine.generate(requests))

        return at

    found = judge_at_temperatures(at_work, policy, requests, answers_of(lambda temperature: temperature))
    assert (found["temperatures"], found["proofs_refused"]) == ("1 0.6", 0)
    assert found["tokens"] == sum(len(answer.tokens) for t in (1.0, 0.6) for answer in answers_of(float)(t))
    for wrong in (lambda temperature: temperature**2, lambda _: 1.0):
        with pytest.raises(StepFailed, match=r"rejects it at temperature 0\.6"):
            judge_at_temperatures(at_work, policy, requests, answers_of(wrong))


def test_rates_of_an_engine_that_computes_something_else_fail_and_are_not_written(
    job: Job, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("shoal.doctor.steps.rates.ANSWERS", 8)
    monkeypatch.setattr("shoal.validate.calibrate.rates.vllm_python", lambda: None)
    monkeypatch.setattr(TorchEngine, "scaled", lambda self, logits: logits / (self.temperature * 3))
    with pytest.raises(StepFailed, match=r"log-probs are off by .* times .*; its rates are not to be merged"):
        rates.run(context(job, tmp_path))
    assert not (tmp_path / rates.FILE).exists()


HONEST = Tally(1000, 1500.0, 4, 40.0, *[Histogram(count=32.0, above=(0,) * len(EDGES))] * 3)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"squares": 1.6**2 * 1000, "proofs": 1.3 * 32, "short": 16}, None),  # the worst of honest ways
        ({"tokens": 20, "squares": 20.0, "short": 3}, None),  # by chance
        ({"squares": 25_000.0}, "log-probs are off by 5 times"),
        ({"squares": math.nan}, "log-probs are off by nan times"),
        ({"proofs": 200.0}, "proofs are off by 6.25 times"),
        ({"short": 100}, "10.0% of its tokens are not the best"),
    ],
)
def test_what_is_far_from_every_honest_way_is_not_fit_for_merging(changed: dict[str, Any], said: str | None) -> None:
    tally = replace(HONEST, **changed)
    if said is None:
        rates.check_honest("cpu", tally)
    else:
        with pytest.raises(StepFailed, match=said):
            rates.check_honest("cpu", tally)


@pytest.fixture
def bad_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Step]:
    """Steps that end in every way: the config's name says which."""
    (tmp_path / "bad_steps.py").write_text(BAD_STEPS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(Step, "module", property(lambda self: "bad_steps"))
    return Step


ENDS = {
    "crashes": ("failed", "crashed: killed by SIGSEGV", {}),
    "hangs": ("failed", "took longer than 20 s and was ended", {}),
    "fine": ("passed", "", {"tokens": 5}),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_step_that_crashes_or_hangs_is_a_result_like_any_other(bad_steps: type[Step], job: Job, name: str) -> None:
    config = job.config.model_copy(update={"name": name})
    step = bad_steps(name, 20.0 if name == "hangs" else 240.0, "")
    (ran,) = run_steps([step], Job(config, job.model, "cpu"))
    assert (ran.result.status, ran.result.reason, ran.result.values) == ENDS[name]


@pytest.mark.parametrize(("name", "status"), [("fails", "failed"), ("skips", "skipped"), ("breaks", "failed")])
def test_a_step_says_why_it_did_not_pass(
    name: str, status: str, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad_steps.py").write_text(BAD_STEPS)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = job.config.model_copy(update={"name": name}).model_dump(mode="json")
    task = {"module": "bad_steps", "config": config, "model": "m", "device": "cpu", "scratch": str(tmp_path)}
    told = run_step(task)
    assert told["status"] == status
    assert told["reason"]


PRIVATE = [
    "FileNotFoundError: /home/jane/models/x.safetensors is missing",
    "cannot bind 192.168.17.4:8000",
    "peer fe80::1ff:fe23:4567:890a is gone",
    r"OSError: C:\Users\jane\models",
    "see ~/secret/file",
    "'/tmp/a b/c'",
    "host gpu-box-7 of jane",
]


@pytest.mark.parametrize("text", PRIVATE)
def test_nothing_private_is_left_in_a_text(text: str) -> None:
    said = cleaned(text, {"gpu-box-7", "jane"})
    for private in ("jane", "192.168", "fe80", "secret", "/tmp", "gpu-box-7", "models"):
        assert private not in said


def test_figures_and_names_of_hardware_stay_as_they_are() -> None:
    tree = {"profile": "nvidia-h100-80gb-hbm3/vllm-0.32/flash-attn-3/bfloat16/tp8", "n": 5, "a": [0.5, "cu12.8"]}
    assert cleaned_tree(tree, {"jane"}) == tree


def made_report(*, rates: bool) -> Report:
    steps = [
        StepResult(name="sampling", status="passed", seconds=1.0, values={"tokens": 5}),
        StepResult(
            name="ranks",
            status="failed",
            seconds=2.0,
            reason=f"no such file {Path.home()}/x on gpu-box-7 by jane at 10.1.2.3",
        ),
    ]
    shipped = default_rates()
    names = list(shipped.gaps)
    architecture = {"kind": "llama", "hidden": 8, "layers": 2, "heads": 2, "kv_heads": 2, "feed_forward": 8, "vocab": 9}
    found = RatesFile.model_validate(
        {
            "model": "m",
            "architecture": architecture,
            "tokens": dict.fromkeys(names, 7),
            "rates": shipped.model_dump(),
        }
    )
    return Report(shoal="0.1.0", model="m", machine=this_machine("cpu"), steps=steps, rates=found if rates else None)


def test_the_names_that_are_private_here_are_those_of_host_and_user() -> None:
    assert {socket.gethostname(), getpass.getuser()} - names() <= COMMON


def test_a_written_report_names_neither_host_nor_user_nor_path_nor_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.doctor.report.private.names", lambda: {"gpu-box-7", "jane"})
    path = tmp_path / "report.json"
    made_report(rates=True).write(path)
    text = path.read_text()
    for private in ("gpu-box-7", "jane", str(Path.home()) + "/", "10.1.2.3", str(tmp_path)):
        assert private not in text
    assert Report.read(path).steps[1].reason == "no such file PATH on NAME by NAME at ADDRESS"
    assert Report.read(path).machine.torch


def test_reports_are_merged_as_rates_files_are(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json", "none.json")]
    made_report(rates=True).write(paths[0])
    made_report(rates=True).write(paths[1])
    made_report(rates=False).write(paths[2])
    one, two = (RatesFile.read(path) for path in paths[:2])
    total = one.merged(two, "a", "b")
    assert all(total.tokens[name] == 14 for name in one.tokens)
    with pytest.raises(ConfigError, match="a report without rates"):
        RatesFile.read(paths[2])


def test_what_is_not_a_report_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"kind": "other"}))
    with pytest.raises(ConfigError, match=r"other\.json: not a report of this release"):
        Report.read(path)


def test_the_table_has_a_row_per_report_and_a_column_per_step() -> None:
    head, _, row = table([made_report(rates=False)]).splitlines()
    assert head.count("|") == row.count("|")
    assert "| yes |" in row
    assert "| **no** |" in row
    again = made_report(rates=False)
    fixed = again.model_copy(update={"steps": [again.steps[1].model_copy(update={"status": "passed"})]})
    *_, both = table([again, fixed]).splitlines()
    assert "| **no** |" in both, "a failure is never hidden by another report of the same hardware"


def test_steps_are_chosen_by_name() -> None:
    assert [step.name for step in chosen(["rates", "engine"])] == ["engine", "rates"]
    assert chosen([]) == list(STEPS)
    with pytest.raises(ConfigError, match="--only nonsense: unknown step; give some of sampling"):
        chosen(["nonsense"])


def test_the_command_runs_a_step_on_this_machine_and_writes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.command import shoal

    monkeypatch.setattr(command, "report_config", lambda model, small: small_config())
    out = tmp_path / "report.json"
    ran = shoal(tmp_path, "doctor", "--report", str(out), "--only", "reload", "--device", "cpu")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "[1/1] reload" in ran.stdout
    report = Report.read(out)
    assert [(step.name, step.status) for step in report.steps] == [("reload", "passed")]


@pytest.mark.parametrize("flag", ["--report", "--log"])
@pytest.mark.parametrize(("below", "reason"), [("", "it is a directory"), ("file/report.json", "is not a directory")])
def test_a_file_that_cannot_be_written_is_said_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, below: str, reason: str
) -> None:
    def measured(*_: object) -> None:
        raise AssertionError("a step was run, or a model was made")

    monkeypatch.setattr(command, "ensure_base_model", measured)
    monkeypatch.setattr(command, "run_steps", measured)
    (tmp_path / "file").touch()
    files = {"--report": str(tmp_path / "ok.json"), "--log": str(tmp_path / "ok.log"), flag: str(tmp_path / below)}
    ran = shoal(tmp_path, "doctor", *[word for pair in files.items() for word in pair])
    assert ran.returncode == 3
    assert reason in ran.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
