"""The ledger benchmark runs, and gives every figure that other tools read."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.common.progress import Progress
from benchmarks.ledger import bench_ledger, share_of_run
from shoal.errors import BenchError
from tests.support.servers.anvil import anvil


def test_the_ledger_bench_gives_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    # A training of a minute; what is read of it is tested below, and other tests train through a swarm.
    monkeypatch.setattr("benchmarks.ledger._share", lambda *_: 0.01)
    try:
        with anvil():
            pass
    except BenchError as error:
        pytest.skip(f"anvil is not available: {error}")
    with Progress(Console(file=io.StringIO())) as progress:
        result = bench_ledger(True, progress)
    values = json.loads(result.to_json())["values"]
    assert all(values[name] > 0 for name in ("entries_per_s", "verify_per_s", "evm_submit_p50_ms"))
    # Under one root they cost less than the bare transactions would, of 21,000 each, one by one.
    assert values["evm_gas_per_step"] < 256 * 21_000


def test_the_share_of_a_run_is_read_from_what_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_text('{"spent_s": 3.0, "wall_s": 300.0}')
    assert share_of_run(tmp_path) == pytest.approx(0.01)
    with pytest.raises(BenchError, match="does not say how long"):
        share_of_run(tmp_path / "elsewhere")
