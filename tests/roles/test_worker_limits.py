"""A worker's own limits: memory that cannot be exceeded, and an error before a model is loaded that does not fit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoal.devices import CPU
from shoal.errors import LimitError
from shoal.models.cache_size import cache_bytes
from shoal.roles.worker_limits import check_model_fits, gpu_share, limit_gpu_memory, own_memory
from tests.support.roles_in_process import make_config

EATER = """
import json, sys
import torch
from shoal.errors import LimitError
from shoal.roles.worker_limits import memory_bound, own_memory

limit, peak, held = int(sys.argv[1]), 0, []
try:
    with memory_bound(limit):
        while True:
            held.append(torch.ones(250_000) if sys.argv[2] == "torch" else bytearray(b"x" * 1_000_000))
            peak = max(peak, own_memory()[0])
except LimitError as error:
    print(json.dumps([peak, str(error)]))
"""


@pytest.mark.parametrize("how", ["torch", "python"])
def test_memory_is_held_within_5_percent_of_the_limit_however_fast_it_is_asked_for(how: str) -> None:
    """A megabyte at a time, with nobody who watches."""
    limit = 900_000_000
    done = subprocess.run(
        [sys.executable, "-c", EATER, str(limit), how], capture_output=True, text=True, timeout=250, check=True
    )
    peak, said = json.loads(done.stdout)
    assert 0.95 * limit <= peak <= 1.05 * limit
    assert said == "--memory 900 MB: the worker needed more, and was refused it; raise it, or lower --batch"


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded_with_what_would(
    tiny_dir: Path, tmp_path: Path
) -> None:
    config = make_config(tiny_dir)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(10**9)  # a sparse file: nothing is written
    (tmp_path / "config.json").write_text((tiny_dir / "config.json").read_text())
    with pytest.raises(
        LimitError, match=r"--memory 900 MB: this run needs .* \(1 GB of weights in float32, .*raise it"
    ):
        check_model_fits(tmp_path, config, 900_000_000)
    check_model_fits(tmp_path, config, 10**10)


def test_a_cache_that_does_not_fit_is_refused_with_the_batch_that_does(tiny_dir: Path, tmp_path: Path) -> None:
    config = make_config(tiny_dir)
    shape = {"num_attention_heads": 8, "hidden_size": 4096, "num_hidden_layers": 80}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    one = cache_bytes(tmp_path / "config.json", config.max_len, 4)
    assert one == 2 * 80 * 4096 * config.max_len * 4
    limit = own_memory()[0] + int(1.1 * 2.5 * one)
    with pytest.raises(LimitError, match="or give --batch 2"):
        check_model_fits(tmp_path, config, limit)


def test_a_model_that_does_not_say_its_shape_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": "many"}')
    assert cache_bytes(tmp_path / "config.json", 100, 4) == 0
    assert cache_bytes(tmp_path / "missing.json", 100, 4) == 0


def test_a_limit_of_gpu_memory_without_a_gpu_is_refused() -> None:
    with pytest.raises(LimitError, match="--gpu-memory 2 GB: this worker computes on cpu; leave it out"):
        limit_gpu_memory(CPU, 2 * 10**9)
    limit_gpu_memory(CPU, None)


def test_a_limit_of_gpu_memory_is_a_share_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_share(6 * 10**9, 24 * 10**9) == 0.25
    assert gpu_share(48 * 10**9, 24 * 10**9) == 1.0
    told: list[tuple[float, torch.device]] = []
    device = torch.device("cuda", 0)
    monkeypatch.setattr("shoal.roles.worker_limits.memory", lambda _: type("M", (), {"total": 24 * 10**9})())
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, where: told.append((share, where)))
    limit_gpu_memory(device, 6 * 10**9)
    assert told == [(0.25, device)]
