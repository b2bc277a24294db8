"""`shoal bench` as a user calls it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from shoal.bench.run import BENCHES, run_bench
from shoal.errors import BenchError


def test_an_unknown_bench_is_answered_with_the_names_of_all() -> None:
    with pytest.raises(BenchError, match="bench engin: there is none of that name; give one of engine, loop, async"):
        run_bench("engin", True, True, Console())


def test_every_name_leads_to_a_bench() -> None:
    assert all(callable(find()) for find in BENCHES.values())


def test_the_engine_bench_prints_its_figures_and_nothing_else_to_stdout(tmp_path: Path) -> None:
    # An empty cache: --quick builds an untrained tiny model and leaves SmolLM2 out.
    command = [sys.executable, "-m", "shoal", "bench", "engine", "--quick", "--json"]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**os.environ, "SHOAL_CACHE": str(tmp_path)}
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["bench"] == "engine"
    assert found["ratios"]["tiny_vs_generate"] > 0
    assert found["values"]["tiny_tokens_per_s"] > 0
    assert found["values"]["packing_fill"] >= 0.95
    assert "left out" in found["values"]["smollm2"]
    assert "tiny: round 1 of" in ran.stderr
