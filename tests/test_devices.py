"""Claims about devices: which one a process gets, what is said where there is none, and what each computes with."""

import mmap
import os
import subprocess
import sys

import pytest
import torch

from shoal import devices
from shoal.config import DeviceName, RunConfig
from shoal.devices import Machine, resolve
from shoal.errors import DeviceError

LAPTOP, MAC, NODE = Machine(), Machine(mps=True), Machine(cuda=8)


@pytest.mark.parametrize(
    ("wanted", "machine", "expected"),
    [
        ("auto", LAPTOP, "cpu"),
        ("auto", MAC, "mps"),
        ("auto", NODE, "cuda:0"),
        ("cpu", NODE, "cpu"),
        ("mps", MAC, "mps"),
        ("cuda", Machine(cuda=8, rank=5, ranks=8), "cuda:5"),
        ("auto", Machine(cuda=8, rank=7, ranks=8), "cuda:7"),
        ("cpu", Machine(cuda=1, rank=3, ranks=4), "cpu"),
        ("auto", Machine(mps=True, rank=1, ranks=2), "cpu"),  # MPS has no collectives
    ],
)
def test_each_process_gets_the_best_device_of_its_machine_or_the_one_it_asked_for(
    wanted: DeviceName, machine: Machine, expected: str
) -> None:
    assert str(resolve(wanted, machine)) == expected


@pytest.mark.parametrize(
    ("wanted", "machine", "said"),
    [
        ("cuda", LAPTOP, r"train\.device = 'cuda': this machine has no such device .*; it has cpu; use one of these"),
        ("cuda", MAC, r"train\.device = 'cuda': this machine has no such device .*; it has mps, cpu"),
        ("mps", NODE, r"train\.device = 'mps': this machine has no such device .*; it has 8 x cuda, cpu"),
        ("mps", Machine(mps=True, ranks=2), r"2 processes, and PyTorch has no collectives for MPS; start one process"),
        ("cuda", Machine(cuda=2, rank=3, ranks=4), r"4 processes .* has 2 CUDA devices; .*--nproc-per-node 2"),
        ("auto", Machine(cuda=1, rank=1, ranks=2), r"'auto': torchrun started 2 .* 1 CUDA device; .*or set train"),
    ],
)
def test_a_device_that_is_not_there_is_named_with_what_there_is_and_what_to_do(
    wanted: DeviceName, machine: Machine, said: str
) -> None:
    with pytest.raises(DeviceError, match=said):
        resolve(wanted, machine, "train.device")


def test_no_device_is_taken_for_another_by_any_rank() -> None:
    ranks = [resolve("auto", Machine(cuda=4, rank=rank, ranks=4)) for rank in range(4)]
    assert len(set(ranks)) == 4


def test_a_process_of_torchrun_knows_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (devices.this_machine().rank, devices.this_machine().ranks) == (2, 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_the_reason_is_what_pytorch_was_built_for() -> None:
    why = "was built without CUDA" if torch.version.cuda is None else "sees no GPU"
    with pytest.raises(DeviceError, match=why):
        resolve("cuda")


def test_set_up_limits_threads() -> None:
    before = torch.get_num_threads()
    try:
        assert devices.set_up("cpu", 3) == devices.CPU
        assert torch.get_num_threads() == 3
    finally:
        devices.set_threads(before)


def test_float32_is_no_tf32_where_the_environment_turns_that_on() -> None:
    """As NVIDIA's containers do, by a variable that PyTorch reads when it is imported."""
    code = (
        "import torch; from shoal.devices import set_up; before = torch.get_float32_matmul_precision(); "
        "set_up('cpu', 1); print(before, torch.get_float32_matmul_precision())"
    )
    env = {**os.environ, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.split() == ["high", "highest"]


def test_ranks_on_gpus_can_also_exchange_what_is_on_the_host() -> None:
    assert devices.collectives(torch.device("cpu")) == "gloo"
    assert devices.collectives(torch.device("cuda", 1)) == "cpu:gloo,cuda:nccl"
    with pytest.raises(DeviceError, match="no collectives"):
        devices.collectives(torch.device("mps"))


def test_mps_sums_in_float32_and_others_in_float64() -> None:
    kinds = {kind: devices.sums_dtype(torch.device(kind)) for kind in ("cpu", "cuda", "mps")}
    assert kinds == {"cpu": torch.float64, "cuda": torch.float64, "mps": torch.float32}


def test_memory_of_this_machine_grows_with_what_is_used() -> None:
    size = 1 << 26
    before = devices.memory(devices.CPU)
    with mmap.mmap(-1, size) as held:  # not a tensor: an allocator may have a freed block of that size at hand
        held.write(b"\1" * size)
        after = devices.memory(devices.CPU)
    if before.used is None or after.used is None or after.peak is None or after.total is None:
        pytest.skip("this system does not tell")
    assert after.used - before.used >= size // 2  # what other threads free meanwhile counts against it
    assert after.used <= after.peak <= after.total


def test_values_on_the_host_share_the_memory_of_a_cpu_tensor() -> None:
    x = torch.zeros(3, requires_grad=True)
    devices.to_numpy(x)[1] = 2.0
    assert x.tolist() == [0.0, 2.0, 0.0]


def test_a_role_follows_the_run_unless_it_has_a_device_of_its_own() -> None:
    tree = {"name": "r", "steps": 1, "tasks": [{"source": "reasoning-gym/spell_backward"}], "device": "cuda"}
    config = RunConfig.model_validate({**tree, "workers": {"device": "cpu"}})
    assert (config.device_of("train"), config.device_of("workers")) == ("cuda", "cpu")
    assert (config.device_of("audit"), config.device_of("eval")) == ("cuda", "cuda")
