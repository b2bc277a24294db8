"""Who contributed what, from the supervisor's metrics, whatever nodes call themselves."""

import io
import json
from pathlib import Path

from rich.console import Console

from shoal.watch.contributions import contributions_table, read_contributions

A, B, C = (f"0x{letter * 40}" for letter in "abc")


def node(address: str, role: str = "worker", **more: object) -> dict[str, object]:
    return {"address": address, "role": role, "state": "healthy", "name": "", **more}


def write(run: Path, *entries: dict[str, object]) -> Path:
    folder = run / "metrics"
    folder.mkdir(parents=True)
    lines = [json.dumps({"time": 1.0, "event": "contributions", **entry}) for entry in entries]
    (folder / "supervisor.jsonl").write_text("\n".join(lines) + "\n")
    return run


def shown(run: Path) -> str:
    out = io.StringIO()
    Console(file=out, width=150).print(contributions_table(read_contributions(run)))
    return out.getvalue()


def test_the_last_word_counts_and_workers_stand_first(tmp_path: Path) -> None:
    late = [node(C, "trainer"), node(A, tokens=100, accepted=1), node(B, tokens=300, accepted=3, rejected=2)]
    found = read_contributions(write(tmp_path / "run", {"nodes": [node(A, tokens=5)]}, {"nodes": late}))
    assert [one.address for one in found] == [B, A, C]
    assert (found[0].tokens, found[0].accepted, found[0].rejected) == (300, 3, 2)


def test_shares_are_of_the_accepted_tokens(tmp_path: Path) -> None:
    text = shown(write(tmp_path / "run", {"nodes": [node(A, tokens=1, name="mine"), node(B, tokens=3)]}))
    assert "75%" in text
    assert "25%" in text
    assert "0xaaaa..aaaa" in text
    assert "mine" in text


def test_a_run_without_an_end_has_none(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    assert read_contributions(tmp_path) == []


def test_a_name_does_nothing_to_the_terminal(tmp_path: Path) -> None:
    nasty = node(A, name="\x1b[2J[bold]evil\n", tokens="many", accepted=None)
    text = shown(write(tmp_path / "run", {"nodes": [nasty]}))
    assert "\x1b" not in text
    assert "[bold]evil" in text
