"""Kernels are compiled for GPUs, down to their machine code, on a machine that has none: what the interpreter takes may
not compile."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.generate.vllm.start import environment_of
from tests.vllm.conftest import settings_of

pytest.importorskip("triton", reason="Triton is not installed: make test-vllm has it")
pytestmark = pytest.mark.xdist_group("sampler")


def uses_tf32(ours: dict[str, str], cache: Path) -> list[bool]:
    """Compiles our kernels and a product of float32 matrices for three generations of GPUs; whether each computes the
    product in TF32."""
    env = {**os.environ, "TRITON_CACHE_DIR": str(cache), **ours}
    command = [sys.executable, "-m", "tests.vllm.gpu_code"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False, env=env)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: list[bool] = json.loads(ran.stdout)["tf32"]
    return found


def test_our_kernels_compile_for_gpus_and_float32_is_no_tf32_in_what_vllm_is_started_with(tmp_path: Path) -> None:
    assert uses_tf32(environment_of(settings_of(cuda=True)), tmp_path) == [False] * 3


def test_without_it_triton_computes_in_tf32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else the test above would prove nothing."""
    monkeypatch.delenv("TRITON_F32_DEFAULT", raising=False)
    assert uses_tf32({}, tmp_path) == [True] * 3
