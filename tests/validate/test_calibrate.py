"""Thresholds from data: what an honest worker may differ by is measured, never guessed."""

import io
import math
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from shoal.config import ThresholdsConfig
from shoal.config_io import check_config
from shoal.errors import ConfigError
from shoal.generate.engine import Request, TorchEngine
from shoal.generate.reference_engine import PlainEngine
from shoal.models.load import load
from shoal.validate.calibrate import FLOORS, SAFETY, UNITS, Measured, calibrate, resolve, to_toml

TASKS = [{"source": "reasoning-gym/spell_backward"}]


def found(**worst: float) -> Measured:
    measured = Measured()
    for name in UNITS:
        measured.seen[name] = [0.0, worst.get(name, 0.0)]
    return measured


def test_a_threshold_is_the_worst_that_was_seen_times_the_safety_factor() -> None:
    assert found(logprob=0.01).thresholds().logprob == pytest.approx(SAFETY * 0.01)
    assert found(exponents=3).thresholds().exponents == math.ceil(SAFETY * 3)


def test_no_threshold_falls_below_its_floor_nor_above_what_it_can_be() -> None:
    assert found().thresholds() == FLOORS
    assert found(exponents=100, inexact_share=0.5).thresholds().exponents == 128
    assert found(exponents=100, inexact_share=0.5).thresholds().inexact_share == 1.0


def test_what_is_written_can_be_pasted_into_a_config() -> None:
    measured = found(shortfall=0.0123, mantissa_mean=0.4)
    table = tomllib.loads(to_toml("tiny", "float32", measured))
    config = check_config({"name": "run", "steps": 1, "tasks": TASKS, **table}, "test")
    assert config.audit.thresholds == measured.thresholds()
    assert config.audit.thresholds.shortfall >= SAFETY * 0.0123


def test_plain_transformers_draws_the_tokens_that_our_engine_draws(tiny_dir: Path) -> None:
    policy = load(tiny_dir)
    requests = [Request((5, 6, 7 + n // 3), 3, n, 9) for n in range(6)]
    ours = TorchEngine(policy, max_batch=4, max_len=16, temperature=0.8)
    plain = PlainEngine(tiny_dir, policy, "float32", 0.8)
    first, second = (sorted(e.generate(requests, hidden=True), key=lambda c: c.index) for e in (ours, plain))
    assert [(a.tokens, a.finish) for a in first] == [(b.tokens, b.finish) for b in second]
    for a, b in zip(first, second, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
        assert a.hidden_TD is not None
        assert b.hidden_TD is not None
        assert a.hidden_TD.shape == b.hidden_TD.shape
        assert float((a.hidden_TD - b.hidden_TD).abs().max()) < 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_calibrate_measures_a_model_directory_and_writes_its_thresholds(
    tiny_dir: Path, tmp_path: Path, dtype: str
) -> None:
    target = tmp_path / "thresholds.toml"
    said = io.StringIO()
    calibrate(str(tiny_dir), None, dtype, target, 16, Console(file=said, width=100))
    table = tomllib.loads(target.read_text())["audit"]["thresholds"]
    chosen = ThresholdsConfig(**table)
    # float32 is as good as exact; bfloat16 is not, and float32 on bfloat16 weights is honest too.
    assert (chosen == FLOORS) == (dtype == "float32")
    assert chosen.logprob < (0.01 if dtype == "float32" else 2.0)
    assert all(name in said.getvalue() for name in UNITS)


def test_a_tiny_model_is_not_calibrated_without_the_config_that_it_is_built_for() -> None:
    with pytest.raises(ConfigError, match="--config"):
        resolve("tiny", None, None)


def test_a_config_stands_for_its_model(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('name = "run"\nsteps = 1\n[[tasks]]\nsource = "reasoning-gym/spell_backward"\n')
    config, with_tasks = resolve(str(path), None, "bfloat16")
    assert with_tasks
    assert (config.model.source, config.model.dtype) == ("tiny", "bfloat16")
