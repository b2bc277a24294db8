"""`python -m benchmarks vllm-learns`: whose files the verdicts are on. The run itself needs vLLM."""

import pytest

from benchmarks.common.progress import Progress
from benchmarks.generation.vllm_learns import accepted_of, bench_vllm_learns
from shoal.errors import BenchError
from shoal.extras import is_installed


def test_a_worker_is_counted_the_verdicts_on_its_own_files_alone() -> None:
    mine = [{"step": 0, "submission": 1}, {"step": 1, "submission": 0}, {"step": 1, "submission": 5}]
    verdicts = [
        {"step": 0, "submission": 0, "accept": False},
        {"step": 0, "submission": 1, "accept": True},
        {"step": 1, "submission": 1, "accept": False},
        {"step": 1, "submission": 0, "accept": False},
    ]
    assert accepted_of(mine, verdicts) == [True, False]


@pytest.mark.skipif(is_installed("vllm"), reason="vLLM is installed here")
def test_without_vllm_it_names_the_extra() -> None:
    from rich.console import Console

    with pytest.raises(BenchError, match=r"benchmark vllm-learns: needs vllm"):
        bench_vllm_learns(True, Progress(Console()))
