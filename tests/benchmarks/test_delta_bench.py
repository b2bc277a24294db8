"""`python -m benchmarks delta`: its figures are those of the files it made."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult
from benchmarks.run import find_benchmark
from benchmarks.weights import delta as bench
from benchmarks.weights.delta import Size
from shoal.config import RunConfig
from shoal.shardcast.delta import kernels as delta_kernels
from tests.support.roles_in_process import make_config

SMALL = Size(group_size=4, new_tokens=8, groups=16, max_groups=256, rounds=1)


def small_config(directory: Path) -> RunConfig:
    """With partial credit, so that a model that knows nothing can be trained."""
    options = {"min_word_len": 3, "max_word_len": 5}
    tasks = [{"source": "reasoning-gym/spell_backward", "binary": False, "options": options}]
    return make_config(directory, tasks=tasks, sampling={"max_prompt_tokens": 64}, train={"token_budget": 1024})


@pytest.fixture(scope="module")
def result(tiny_dir: Path) -> BenchResult:
    torch.set_num_threads(1)
    with Progress(Console(file=io.StringIO())) as progress:
        return bench.measure(small_config(tiny_dir), tiny_dir, SMALL, progress)


def test_it_is_found_by_name() -> None:
    assert find_benchmark("delta") is bench.bench_delta


def test_all_figures_that_have_a_bar_and_those_promised_are_there(result: BenchResult) -> None:
    assert result.bars.keys() >= {
        "size_3e-7_8",
        "size_3e-7_1",
        "vs_entropy",
        "vs_xor_zstd",
        "encode_gb_s",
        "apply_gb_s",
    }
    assert result.ratios.keys() >= {"size_3e-7_8", "size_3e-7_1", "size_1e-6_8", "apply_vs_copy", "encode_vs_copy"}
    assert result.values["groups_with_signal"] == 16


def test_a_higher_rate_and_more_steps_change_more(result: BenchResult) -> None:
    changed = {name: float(result.values[f"changed_{name}_from_base"]) for name in ("3e-7_1", "3e-7_8", "1e-6_8")}
    assert 0 < changed["3e-7_1"] < changed["3e-7_8"] < changed["1e-6_8"] < 0.5
    assert result.ratios["size_3e-7_1"] > result.ratios["size_3e-7_8"] > result.ratios["size_1e-6_8"] > 1


def test_entropy_and_shares_are_those_of_the_files(tmp_path: Path) -> None:
    """Of 4,096 values 1,024 change, half up and half down by one step: 0.811 bits a value and 1 a change."""
    a = np.full(4096, 0x3F80, np.uint16)
    b = a.copy()
    b[::8] += 1
    b[4::8] -= 1
    for name, values in (("a", a), ("b", b)):
        save_file({"w": torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)}, tmp_path / name)
    sizes = bench.compare(tmp_path / "a", tmp_path / "b")
    assert sizes.entropy == pytest.approx((4096 * 0.8112781 + 1024) / 8)
    assert (sizes.changed, sizes.one_step) == (0.25, 1.0)
    assert sizes.full == (tmp_path / "a").stat().st_size
    assert sizes.delta > sizes.entropy / 2


def test_its_order_of_values_is_that_of_the_deltas() -> None:
    values = np.arange(65536, dtype=np.uint16)
    assert bench.ordered(values).tolist() == [int(delta_kernels.ordered(value)) for value in values]
