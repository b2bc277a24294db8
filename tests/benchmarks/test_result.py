"""What a benchmark prints: one flat JSON object, or a table that says which bars are met."""

import io
import json

import pytest
from rich.console import Console

from benchmarks.common.result import BenchResult, Figure


def result(ratio: float) -> BenchResult:
    values: dict[str, Figure] = {"speed": 12345.6, "share": 0.1, "rounds": 3, "peer": "not installed"}
    return BenchResult("fish", {"ours_vs_theirs": ratio}, values, {"ours_vs_theirs": (">=", 3.0), "share": ("<=", 0.1)})


def test_json_is_one_line_with_flat_ratios_and_values() -> None:
    text = result(3.5).to_json()
    assert "\n" not in text
    assert json.loads(text) == {
        "bench": "fish",
        "ratios": {"ours_vs_theirs": 3.5},
        "values": {"speed": 12345.6, "share": 0.1, "rounds": 3, "peer": "not installed"},
    }


@pytest.mark.parametrize(("ratio", "met"), [(2.99, False), (3.0, True), (3.01, True), (float("nan"), False)])
def test_a_bar_is_met_from_its_own_value_on(ratio: float, met: bool) -> None:
    assert result(ratio).met("ours_vs_theirs") is met
    assert result(ratio).met("share")


def test_the_table_names_each_figure_its_bar_and_the_verdict() -> None:
    out = io.StringIO()
    result(2.5).print(Console(file=out, width=100))
    rows = {line.split()[1]: line for line in out.getvalue().splitlines() if line.startswith("│")}
    assert ">= 3" in rows["ours_vs_theirs"]
    assert "not met" in rows["ours_vs_theirs"]
    assert "<= 0.1" in rows["share"]
    assert "not met" not in rows["share"]
    assert "12,346" in rows["speed"]
    assert "met" not in rows["rounds"]


@pytest.mark.parametrize("figure", ["typo", "peer"])
def test_a_bar_must_name_a_number_that_was_measured(figure: str) -> None:
    with pytest.raises(ValueError, match=figure):
        BenchResult("fish", {}, {"peer": "text"}, {figure: (">=", 1.0)})
