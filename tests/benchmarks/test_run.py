"""`python -m benchmarks` and `shoal bench` as a user calls them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import ROOT
from benchmarks.run import BENCHMARKS, run_benchmark
from shoal.errors import BenchError


def test_an_unknown_bench_is_answered_with_the_names_of_all() -> None:
    with pytest.raises(BenchError, match="benchmark engin: unknown; give one of engine, vllm, vllm-learns, loop"):
        run_benchmark("engin", True, True, Console())


def test_a_benchmark_without_parts_refuses_a_directory_for_them(tmp_path: Path) -> None:
    refusal = r"benchmark engine: --out .*: it has no parts to keep; only these have: turns, fbam"
    with pytest.raises(BenchError, match=refusal):
        run_benchmark("engine", True, True, Console(), tmp_path)


def test_every_name_leads_to_a_bench() -> None:
    assert all(callable(one.load()) for one in BENCHMARKS.values())


def test_without_a_name_every_benchmark_is_listed_on_a_line_of_its_own() -> None:
    ran = subprocess.run([sys.executable, "-m", "benchmarks"], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert [line.split()[0] for line in ran.stdout.splitlines()] == list(BENCHMARKS)


def test_shoal_bench_in_another_directory_runs_the_benchmarks_of_its_own_checkout(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__main__.py").write_text("print('another project')")
    command = [sys.executable, "-m", "shoal", "bench", "engin"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert "another project" not in ran.stdout
    assert "benchmark engin: unknown" in ran.stderr


def test_an_installed_package_says_that_benchmarks_are_in_the_repository(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "site-packages"
    site.mkdir(parents=True)
    (site / "shoal").symlink_to(ROOT / "src" / "shoal")
    command = [sys.executable, "-m", "shoal", "bench", "engine"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path)
    assert ran.returncode == 3
    assert "they are in the repository" in ran.stderr


def test_the_engine_bench_prints_its_figures_and_nothing_else_to_stdout(tmp_path: Path) -> None:
    # An empty cache: --quick builds an untrained tiny model and leaves SmolLM2 out.
    command = [sys.executable, "-m", "benchmarks", "engine", "--quick", "--json"]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=240, cwd=ROOT, env={**os.environ, "SHOAL_CACHE": str(tmp_path)}
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["bench"] == "engine"
    assert found["ratios"]["tiny_vs_generate"] > 0
    assert found["values"]["tiny_tokens_per_s"] > 0
    assert found["values"]["packing_fill"] >= 0.95
    assert "left out" in found["values"]["smollm2"]
    assert "tiny: round 1 of" in ran.stderr
