"""What vLLM is started with that follows from settings alone; `tests/vllm` starts it."""

import os

import pytest

from shoal.generate.vllm.start import VllmSettings, environment_of
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
