"""Steps of `shoal doctor --report` that need vLLM or Triton, each in its own process as the command runs them."""

from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm has it")

from shoal.config_io import check_config
from shoal.doctor.report.command import chosen, report_config
from shoal.doctor.report.runner import Job, run_steps
from shoal.models.tiny import build_tiny
from shoal.tasks.build import build_source

pytestmark = pytest.mark.xdist_group("doctor")
STEPS = ("noise-kernel", "vllm-v1", "vllm-v2", "vllm-reload", "vllm-speed")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    tree = report_config("tiny", small=True).model_dump(mode="json")
    tree["model"]["tiny"] |= {"hidden": 64, "layers": 2}
    config = check_config(tree, "test")
    model, log = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("log") / "steps.log"
    build_tiny(model, config.model.tiny, build_source(config.tasks), 0, lambda *_: None)
    return Job(config, model, "cpu", log)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_passes_on_a_cpu_with_figures(name: str, job: Job) -> None:
    (ran,) = run_steps(chosen([name]), job)
    assert job.log is not None
    printed = Path(job.log).read_text(errors="replace")[-3000:]
    assert (ran.result.status, ran.result.reason) == ("passed", ""), printed
    assert ran.result.values
    if name == "vllm-v1":
        assert (ran.result.values["enforce_eager"], ran.result.values["cudagraph_mode"]) == (True, "NONE")
        assert ran.result.values["model_runner"] == 1
