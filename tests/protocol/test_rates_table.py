"""A run's table of honest rates is signed, of one model, and may be loosened but never tightened."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.config import AuditConfig
from shoal.crypto.keys import Key
from shoal.errors import ConfigError, SwarmError
from shoal.protocol.rates.honest_rates import EDGES, Floats, Histogram, HonestRates, bounds
from shoal.protocol.rates.rates_file import Architecture, RatesFile
from shoal.protocol.rates.rates_table import MAX_ADDITIONS, RatesTable, SignedRates
from shoal.protocol.rates.shipped import default_rates
from shoal.validate.numerics.bets import Bets, Noise, Observed

HERE = "x86-64-cpu-avx2/shoal-0.1/sdpa/bfloat16/tp1"
H100 = "nvidia-h100-80gb-hbm3/vllm-0.11/flash-attn-3/bfloat16/tp8"
MODEL = Architecture(kind="llama", hidden=64, layers=3, heads=4, kv_heads=4, feed_forward=128, vocab=300)
OTHER = MODEL.model_copy(update={"layers": 99})
TABLE = RatesTable(shipped=default_rates())


def rates_file(scale: float = 1.0, *names: str, count: int = 1000, model: Architecture = MODEL) -> RatesFile:
    """Rates of machines whose noise is so many times the judge's own."""
    distances = scale * np.random.default_rng(0).uniform(0.8, 1.2, count)
    one = Histogram.of(distances), Histogram.of(distances[: count // 10], count), Histogram.of(distances)
    names = names or (HERE,)
    rates = HonestRates.of(dict.fromkeys(names, one))
    return RatesFile(model="small", architecture=model, tokens=dict.fromkeys(names, 64 * count), rates=rates)


def all_bounds(table: RatesTable, *patterns: str) -> list[Floats]:
    rates = table.admitted(patterns)
    return [bounds(getattr(rates, kind).values(), intensity=kind == "shortfalls") for kind in HonestRates.model_fields]


def test_a_noisy_profile_loosens_the_bounds() -> None:
    before, after = all_bounds(TABLE), all_bounds(TABLE.loosened(rates_file(8.0), "rates"))
    for old, new in zip(before, after, strict=True):
        assert (new >= old).all()
        assert (new > old).any()


@pytest.mark.parametrize("names", [("flash",), tuple(default_rates().gaps), (HERE,)])
def test_no_addition_tightens_a_bound(names: tuple[str, ...]) -> None:
    """Not even a million counts of machines that are all but exact, on every way that is known."""
    before = all_bounds(TABLE)
    after = all_bounds(TABLE.loosened(rates_file(0.01, *names, count=1_000_000), "rates"))
    assert all((new >= old).all() for old, new in zip(before, after, strict=True))


def test_a_later_version_has_all_that_was_there_before() -> None:
    first = TABLE.loosened(rates_file(4.0), "rates")
    second = first.loosened(rates_file(1.0, H100), "rates")
    assert (TABLE.version, first.version, second.version) == (0, 1, 2)
    assert second.continues(first)
    assert second.continues(TABLE)
    assert not first.continues(second)
    replaced = RatesTable(shipped=default_rates(), additions=(rates_file(0.1), rates_file(1.0, H100)))
    assert not replaced.continues(first)
    tighter = RatesTable(shipped=default_rates().without("eager"), additions=second.additions)
    assert not tighter.continues(second)


def test_rates_of_another_model_are_refused_by_both_names() -> None:
    with pytest.raises(ConfigError, match=r"f.json: measured on small .llama of 99 layers.* 3 layers"):
        TABLE.loosened(rates_file(model=OTHER), "f.json", MODEL)
    # Also where the model itself is not at hand: all additions are of one.
    with pytest.raises(ConfigError, match=r"99 layers.*3 layers"):
        TABLE.loosened(rates_file(), "rates").loosened(rates_file(model=OTHER), "rates")


def test_a_handful_of_answers_changes_no_odds() -> None:
    with pytest.raises(ConfigError, match=r"rests on 63 units of 64 tokens, at least 64"):
        TABLE.loosened(rates_file(count=63), "rates")


def test_additions_have_an_end() -> None:
    full = TABLE.model_copy(update={"additions": (rates_file(),) * MAX_ADDITIONS})
    with pytest.raises(ConfigError, match="the maximum"):
        full.loosened(rates_file(), "rates")


def test_a_run_of_some_profiles_has_the_odds_of_those_alone() -> None:
    """The noise of others excuses nobody there: so an owner of equal machines is strict."""
    table = TABLE.loosened(rates_file(0.2, HERE), "rates").loosened(rates_file(8.0, H100), "rates")
    everyone, only = all_bounds(table)[0], all_bounds(table, "x86-64-*")[0]
    at = int(np.searchsorted(EDGES, 2.0))
    assert only[at] < everyone[at] / 10
    assert set(table.admitted(["x86-64-*"]).gaps) == {HERE}
    assert set(table.admitted([]).gaps) == {*default_rates().gaps, HERE, H100}


@pytest.mark.parametrize("kind", ["shortfalls", "chunks"])
def test_rates_that_rest_on_nothing_are_refused(kind: str) -> None:
    """A bound on them would be infinite, and evidence not a number, which accepts everything."""
    found = rates_file()
    empty = {HERE: Histogram(count=0, above=(0,) * len(EDGES))}
    rates = found.rates.model_copy(update={kind: empty})
    with pytest.raises(ConfigError, match=f"{kind} of {HERE} rest on a count of 0"):
        TABLE.loosened(found.model_copy(update={"rates": rates}), "rates")


def test_a_run_without_proofs_takes_rates_that_were_measured_without_them(tmp_path: Path) -> None:
    """Files of a stock server have none, and its owner can loosen odds by nothing else."""
    found, path = rates_file(4.0, H100), tmp_path / "rates.json"
    empty = {H100: Histogram(count=0, above=(0,) * len(EDGES))}
    bare = found.model_copy(update={"rates": found.rates.model_copy(update={"chunks": empty})})
    bare.write(path)
    table = RatesTable.first(AuditConfig(rates=str(path), proofs=False), MODEL)
    assert table.loosened(bare, "rates", MODEL, proofs=False).version == 2
    answers = [Observed(np.full(64, 0.1), np.zeros(64), np.full(64, 0.5), np.zeros(0))]
    nats = Bets(table.admitted([])).nats(answers, Noise(0.1, 1.0))
    assert np.isfinite(list(nats.values())).all()
    assert all(won == 0 for bet, won in nats.items() if bet.startswith("chunks"))
    with pytest.raises(ConfigError, match="chunks of nvidia-h100"):
        RatesTable.first(AuditConfig(rates=str(path)), MODEL)


def test_a_way_that_is_measured_twice_is_counted_twice_and_not_added_up() -> None:
    table = TABLE.loosened(rates_file(4.0, "flash"), "rates")
    own = [histogram for name, histogram in table.admitted([]).gaps.items() if name.startswith("flash")]
    assert own == [default_rates().gaps["flash"], rates_file(4.0, "flash").rates.gaps["flash"]]


def test_an_unknown_profile_in_a_config_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    rates_file().write(path)
    with pytest.raises(ConfigError, match=r"audit.profiles 'nvidia-h200-\*': .* no such profile; it holds flash"):
        RatesTable.first(AuditConfig(profiles=["nvidia-h200-*"]))
    assert RatesTable.first(AuditConfig(profiles=["x86-64-*"], rates=str(path)), MODEL).version == 1
    with pytest.raises(ConfigError, match=r"audit.rates .*rates.json: measured on small"):
        RatesTable.first(AuditConfig(rates=str(path)), OTHER)
    with pytest.raises(ConfigError, match=r"missing.json: cannot be read"):
        RatesTable.first(AuditConfig(rates=str(tmp_path / "missing.json")))


def test_a_node_joins_with_a_profile_that_was_measured_and_is_admitted() -> None:
    table = TABLE.loosened(rates_file(1.0, HERE, H100), "rates")
    assert table.refusal("", []) == ""
    assert table.refusal("anything/new/at-all/bfloat16/tp2", []) == ""
    assert table.refusal(H100, ["nvidia-*"]) == ""
    for profile in (HERE, H100.replace("tp8", "tp4"), ""):
        reason = table.refusal(profile, ["nvidia-*"])
        assert f"profile {profile or '(none declared)'}: this run admits {H100}; ask its owner" in reason


def test_a_table_is_believed_if_the_coordinator_signed_it_and_it_is_whole() -> None:
    key, stranger = Key.create(), Key.create()
    signed = SignedRates.sign("run", TABLE.loosened(rates_file(), "rates"), key)
    again = SignedRates.model_validate_json(signed.model_dump_json())
    again.check("run", key.address)
    forged = SignedRates.sign("run", signed.rates, stranger)
    with pytest.raises(SwarmError, match=rf"version 1: signed by {stranger.address}, not by {key.address}"):
        forged.check("run", key.address)
    with pytest.raises(SwarmError, match="of run run"):
        signed.check("another", key.address)
    for changed in (
        signed.model_copy(update={"rates": TABLE.loosened(rates_file(9.0), "rates")}),
        signed.model_copy(update={"rates": TABLE}),
        signed.model_copy(update={"version": 2}),
    ):
        with pytest.raises(SwarmError):
            changed.check("run", key.address)


def change(tree: dict[str, Any], path: str, value: Any) -> None:
    *parts, last = path.split("|")
    for part in parts:
        tree = tree[part]
    tree[last] = value


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("format", 7, "has format 7, this release reads 1"),
        ("tokens", {}, "tokens"),
        ("tokens", {"../etc": 1}, "tokens"),
        (f"rates|gaps|{HERE}|count", -1, "count"),
        (f"rates|gaps|{HERE}|count", float("inf"), "count"),
        (f"rates|gaps|{HERE}|above", [1] * 3, "above"),
        (f"rates|gaps|{HERE}|above", [0] * 49 + [5], "5 are above an edge"),
        ("rates|gaps", {}, "has tokens and no histogram"),
        ("extra", 1, "extra"),
    ],
)
def test_a_file_that_is_not_a_rates_file_is_refused_by_its_fault(path: str, value: Any, fault: str) -> None:
    tree = rates_file().model_dump(mode="json")
    change(tree, path, value)
    with pytest.raises(ConfigError) as refused:
        RatesFile.of(tree, "rates f.json")
    assert "f.json" in str(refused.value)
    assert fault in str(refused.value)
