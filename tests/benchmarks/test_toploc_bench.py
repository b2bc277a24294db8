"""The toploc benchmark compares equal work: states on which the published package's choice of points is defined."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.run import find_benchmark
from benchmarks.validation import toploc as bench
from shoal import toploc
from shoal.errors import BenchError


def test_it_is_found_by_name() -> None:
    assert find_benchmark("toploc") is bench.bench_toploc


def test_untied_states_leave_no_choice_at_the_last_rank() -> None:
    values = torch.randn(96, 300, generator=torch.Generator().manual_seed(0))
    for start in range(0, 96, bench.CHUNK):
        bits = bench.untied(values)[start : start + bench.CHUNK]
        ranked = np.sort(bits.reshape(-1) & 0x7FFF)[::-1]
        assert ranked[bench.K - 1] > ranked[bench.K]
        assert toploc.build(bits) == toploc.build(values[start : start + bench.CHUNK])


def test_without_a_compiler_it_says_what_is_missing_and_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BenchError, match=r"no-such-compiler is not there.*Only this benchmark needs it"):
        bench._build(Path("python"))
