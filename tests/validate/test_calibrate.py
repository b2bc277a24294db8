"""Thresholds and rates from data: what an honest worker may differ by is measured, never guessed."""

import io
import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from shoal.cli import app
from shoal.config import ThresholdsConfig
from shoal.config_io import check_config
from shoal.errors import ConfigError
from shoal.generate.engine import Request
from shoal.generate.reference_engine import PlainEngine
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import load
from shoal.models.this_machine import this_profile
from shoal.protocol.rates.honest_rates import EDGES
from shoal.protocol.rates.rates_file import RatesFile, read_architecture
from shoal.validate.calibrate import command
from shoal.validate.calibrate.command import calibrate, merge
from shoal.validate.calibrate.tally import Tally, to_rates_file
from shoal.validate.calibrate.target import resolve
from shoal.validate.calibrate.thresholds import FLOORS, SAFETY, UNITS, Measured, to_toml
from shoal.validate.numerics.bets import UNIT
from shoal.validate.numerics.ways import WAYS
from tests.support.model_and_checks import model_dir

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
    table = tomllib.loads(to_toml("tiny", measured))
    config = check_config({"name": "run", "steps": 1, "tasks": TASKS, **table}, "test")
    assert config.audit.thresholds == measured.thresholds()
    assert config.audit.thresholds.shortfall >= SAFETY * 0.0123


def test_plain_transformers_draws_the_tokens_that_our_engine_draws(tiny_dir: Path) -> None:
    policy = load(tiny_dir)
    requests = [Request((5, 6, 7 + n // 3), 3, n, 9) for n in range(6)]
    ours = TorchEngine(policy, max_batch=4, max_len=16, temperature=0.8)
    plain = PlainEngine(tiny_dir, policy, "float32", 0.8)
    first, second = (sorted(e.generate(requests, hidden=True), key=lambda c: c.key) for e in (ours, plain))
    assert [(a.tokens, a.finish) for a in first] == [(b.tokens, b.finish) for b in second]
    for a, b in zip(first, second, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
        assert a.hidden_TD is not None
        assert b.hidden_TD is not None
        assert a.hidden_TD.shape == b.hidden_TD.shape
        assert float((a.hidden_TD - b.hidden_TD).abs().max()) < 1e-3


def test_calibrate_measures_a_model_directory_and_writes_its_thresholds(tiny_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "thresholds.toml"
    said = io.StringIO()
    calibrate(str(tiny_dir), None, "float32", target, 16, Console(file=said, width=100))
    table = tomllib.loads(target.read_text())["audit"]["thresholds"]
    assert ThresholdsConfig(**table) == FLOORS  # float32 is as good as exact
    assert all(name in said.getvalue() for name in UNITS)


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """What `calibrate` writes and says in bfloat16; answers of 32 tokens, because shorter ones make no unit."""
    folder = tmp_path_factory.mktemp("rates")
    config, said = folder / "run.toml", io.StringIO()
    config.write_text(
        'name = "run"\nsteps = 1\n[[tasks]]\nsource = "reasoning-gym/spell_backward"\n[sampling]\nmax_new_tokens = 32\n'
    )
    calibrate(str(model_dir("long")), config, "bfloat16", folder / "rates.json", 16, Console(file=said, width=120))
    return folder / "rates.json", said.getvalue()


def test_in_bfloat16_all_ways_and_this_machine_are_measured(rates: tuple[Path, str]) -> None:
    path, said = rates
    found = RatesFile.read(path)
    own = this_profile("bfloat16").name
    assert set(found.tokens) == {*WAYS, own}
    assert found.architecture == read_architecture(model_dir("long"))
    assert all(name in said for name in WAYS)
    assert min(found.tokens.values()) > 100
    for way, units in found.rates.gaps.items():
        assert units.count == found.tokens[way] // UNIT
    # Twice as much noise as the judge's own is rare for all, and float32 has far less than it.
    twice = int(np.searchsorted(EDGES, 2.0))
    assert all(units.above[twice] == 0 for units in found.rates.gaps.values())
    assert found.rates.gaps["float32"].above[twice - 8] == 0
    assert found.rates.gaps[own].above[0] == found.rates.gaps[own].count


def counted_again(path: Path, folder: Path) -> Path:
    """Rates of another machine, with a token more."""
    tree = json.loads(path.read_text())
    tree["tokens"] = {name: count + 1 for name, count in tree["tokens"].items()}
    (folder / "again.json").write_text(json.dumps(tree))
    return folder / "again.json"


def test_merging_adds_histograms_and_tokens(rates: tuple[Path, str], tmp_path: Path) -> None:
    path, said = rates[0], io.StringIO()
    merge([path, counted_again(path, tmp_path)], tmp_path / "both.json", Console(file=said, width=200))
    one, both = RatesFile.read(path), RatesFile.read(tmp_path / "both.json")
    assert both.tokens == {name: 2 * count + 1 for name, count in one.tokens.items()}
    assert both.rates.gaps["tp8"] == one.rates.gaps["tp8"] + one.rates.gaps["tp8"]
    assert f"{sum(both.tokens.values()):,} tokens" in said.getvalue()


def test_rates_of_another_model_or_format_do_not_add_up(rates: tuple[Path, str], tmp_path: Path) -> None:
    tree = json.loads(rates[0].read_text())
    other, newer = tmp_path / "other.json", tmp_path / "newer.json"
    other.write_text(json.dumps({**tree, "model": "big", "architecture": {**tree["architecture"], "layers": 99}}))
    newer.write_text(json.dumps({**tree, "format": 2}))
    with pytest.raises(ConfigError, match=r"other.json: measured on big .* 99 layers.*rates.json on .* 3 layers"):
        merge([rates[0], other], tmp_path / "sum.json", Console())
    with pytest.raises(ConfigError, match=r"newer.json: has format 2, this release reads 1"):
        merge([rates[0], newer], tmp_path / "sum.json", Console())
    with pytest.raises(ConfigError, match=r"two or more rates files and --out"):
        merge([rates[0]], tmp_path / "sum.json", Console())
    assert not (tmp_path / "sum.json").exists()


def test_rates_that_do_not_add_up_are_refused_by_name(rates: tuple[Path, str], tmp_path: Path) -> None:
    path, out = rates[0], tmp_path / "sum.json"
    tree = json.loads(path.read_text())

    def written(name: str, **changes: object) -> Path:
        (tmp_path / name).write_text(json.dumps({**tree, **changes}))
        return tmp_path / name

    with pytest.raises(ConfigError, match=r"named.json: has the same counts as .*rates.json; give each once"):
        merge([path, written("named.json", model="the same by another name")], out, Console())
    full = dict.fromkeys(tree["tokens"], 2**53 - 1)
    with pytest.raises(ConfigError, match=r"full.json: together with .*rates.json it is not a valid .* two files"):
        merge([path, written("full.json", tokens=full)], out, Console())

    def ways(prefix: str) -> dict[str, object]:
        names = [f"{prefix}/{number}" for number in range(600)]
        one = {kind: next(iter(found.values())) for kind, found in tree["rates"].items()}
        return {
            "tokens": dict.fromkeys(names, 100),
            "rates": {kind: dict.fromkeys(names, found) for kind, found in one.items()},
        }

    with pytest.raises(ConfigError, match=r"b.json: together with .*a.json .*at most 1000 items"):
        merge([written("a.json", **ways("a")), written("b.json", **ways("b"))], out, Console())
    way, found = next(iter(tree["rates"]["gaps"].items()))
    odd = {**found, "count": found["above"][0] / 2}
    more = {**tree["rates"], "gaps": {**tree["rates"]["gaps"], way: odd}}
    with pytest.raises(ConfigError, match=rf"odd.json: .*gaps: '{way}' has {found['above'][0]} of "):
        merge([path, written("odd.json", rates=more)], out, Console())
    assert not out.exists()


def test_a_model_with_a_long_path_can_be_calibrated(rates: tuple[Path, str]) -> None:
    one = RatesFile.read(rates[0])
    kinds = (one.rates.gaps, one.rates.shortfalls, one.rates.chunks)
    tally = Tally(100, 1.0, 0, 1.0, *(found["flash"] for found in kinds))
    assert to_rates_file({"flash": tally}, "/models/" + "x" * 300, one.architecture).model == "x" * 200


def test_a_tiny_model_is_not_calibrated_without_the_config_that_it_is_built_for() -> None:
    with pytest.raises(ConfigError, match="--config"):
        resolve("tiny", None, None)


def test_a_config_stands_for_its_model(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('name = "run"\nsteps = 1\n[[tasks]]\nsource = "reasoning-gym/spell_backward"\n')
    config, with_tasks = resolve(str(path), None, "bfloat16")
    assert with_tasks
    assert (config.model.source, config.model.dtype) == ("tiny", "bfloat16")


def test_the_command_has_three_forms_and_none_ignores_a_flag(
    rates: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shoal(*words: object) -> object:
        return CliRunner().invoke(app, ["calibrate", *map(str, words)], catch_exceptions=True).exception

    assert shoal("merge", rates[0], counted_again(rates[0], tmp_path), "--out", tmp_path / "both.json") is None
    assert RatesFile.read(tmp_path / "both.json").model == RatesFile.read(rates[0]).model
    asked: list[object] = []
    monkeypatch.setattr(command, "calibrate_answers", lambda *words: asked.extend(words[:4]))
    assert shoal("run", "--answers", "a.parquet", "b.parquet", "c.parquet", "--profile", "p") is None
    assert asked == [Path("run"), [Path("a.parquet"), Path("b.parquet"), Path("c.parquet")], "p", None]
    for words, fault in (
        (("smollm2", "tiny"), "takes one model, and tiny is a second one"),
        (("smollm2", "--profile", "p"), "does not take --profile: only calibrate --answers does"),
        (("merge", "a", "b", "--samples", "16"), "calibrate merge does not take --samples"),
        (("run", "--answers", "a", "--dtype", "float32"), "calibrate --answers does not take --dtype"),
    ):
        assert fault in str(shoal(*words))
