"""The section `lora` of the benchmark `sharding`: sizes are those of files; the bars are on bytes and on learning."""

from dataclasses import replace
from pathlib import Path

from benchmarks.training.adapters import conclude, sizes
from shoal.models.load import load
from shoal.roles.evaluator import Evaluation

BEFORE = Evaluation(100, 0.4, 0.3, 0.5, 0.5, 0)


def test_sizes_are_those_of_the_files_of_two_versions(tiny_dir: Path, tmp_path: Path) -> None:
    found = sizes(load(tiny_dir, "bfloat16"), tmp_path)
    for kind in ("full", "adapter"):
        assert found[f"lora_{kind}_bytes"] == sum(file.stat().st_size for file in (tmp_path / kind).iterdir())
    assert 1 < found["lora_full_bytes"] / found["lora_adapter_bytes"] < 10, "of a model this small, rank 8 is much"
    assert 0 < found["lora_merge_cpu_s"] < 1


def test_the_bars_are_on_bytes_and_on_what_the_run_learnt() -> None:
    values = {"lora_full_bytes": 260.0, "lora_adapter_bytes": 10.0}
    learnt = conclude(values, BEFORE, replace(BEFORE, pass_at_1=0.55))
    assert learnt.met("lora_bytes")
    assert learnt.met("lora_gain")
    assert not conclude({**values, "lora_adapter_bytes": 11.0}, BEFORE, BEFORE).met("lora_bytes")
    assert not conclude(values, BEFORE, replace(BEFORE, pass_at_1=0.45)).met("lora_gain")
