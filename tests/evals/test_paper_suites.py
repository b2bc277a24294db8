"""The paper's suites: from files in the cache, which are fetched by their hashes and refused with any other."""

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from shoal.errors import ConfigError, TaskError
from shoal.evals import fetch_suite as fetching
from shoal.evals.fetch_suite import fetch_suite
from shoal.evals.paper_suites import PAPER_SUITES, PaperSuite, Remote
from shoal.evals.suite import evaluate_suite
from shoal.evals.suite_catalogue import find_suite
from shoal.evals.suites_command import fetch_suites, print_suites

FILES: dict[str, bytes] = {}


class Served(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = FILES.get(self.path)
        self.send_response(200 if body is not None else 404)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Served) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
    FILES.clear()


def put(served: str, name: str, body: bytes) -> Remote:
    FILES[f"/{name}"] = body
    return Remote(f"{served}/{name}", hashlib.sha256(body).hexdigest())


def nobody(*_: object) -> None:
    pass


def test_every_file_is_pinned_by_a_revision_and_a_hash() -> None:
    for suite in PAPER_SUITES.values():
        for remote in [*suite.parts, *([suite.extra[0]] if suite.extra else [])]:
            assert len(bytes.fromhex(remote.sha256)) == 32
            assert "/main/" not in remote.url
            assert remote.url.startswith("https://")


def test_a_suite_without_its_file_says_where_it_belongs_and_how_to_fetch_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"aime24: .*/evals/aime24.parquet is not there; .* shoal suites --fetch aime24"
    ):
        find_suite("aime24")
    with pytest.raises(
        ConfigError, match=r"suites --fetch words: has no file to fetch; .* aime24, aime25, gpqa-diamond"
    ):
        fetch_suites(["words"], Console())


def test_a_fetched_suite_is_asked_of_a_model_and_judged(
    served: str, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(json.dumps({"problem": f"{n}?", "answer": str(n)}) + "\n" for n in range(3))
    suite = replace(PAPER_SUITES["aime25"], parts=(put(served, "rows.jsonl", rows.encode()),))
    monkeypatch.setitem(PAPER_SUITES, "aime25", suite)
    said = Console(file=io.StringIO(), width=200)
    fetch_suites(["aime25"], said)
    print_suites(said)
    assert str(suite.path) in said.file.getvalue()  # type: ignore[attr-defined]
    short = find_suite("aime25").model_copy(update={"max_new_tokens": 4, "samples": 2})
    assert (short.name, short.sources[0].name) == ("aime25", "aime25")
    told = Console(file=io.StringIO(), width=200)
    evaluate_suite([tiny_dir], short, "float32", True, told)
    found = json.loads(told.file.getvalue())["models"][0]["results"][0]  # type: ignore[attr-defined]
    assert (found["source"], found["tasks"], found["failed"]) == ("aime25", 3, 0)
    assert found["pass_at"]["1"]["value"] == 0.0


def test_another_file_than_the_pinned_one_is_not_used(served: str) -> None:
    remote = put(served, "rows.jsonl", b"{}\n")
    suite = replace(PAPER_SUITES["aime25"], parts=(replace(remote, sha256="0" * 64),))
    with pytest.raises(TaskError, match=r"has the SHA-256 ca3d.* \(3 bytes\), 0000.* is pinned; it is another file"):
        fetch_suite(suite, nobody)
    assert not suite.path.exists()
    gone = replace(suite, parts=(Remote(f"{served}/gone", "0" * 64),))
    with pytest.raises(
        TaskError, match=r"(?s)gone: cannot be fetched \(.*404.*\); fetch it elsewhere, check that its SHA-256"
    ):
        fetch_suite(gone, nobody)
    assert list(suite.path.parent.iterdir()) == []


def test_problems_of_a_contest_are_kept_by_the_day_they_were_published(served: str) -> None:
    days = ["2024-07-31T20:00:00", "2024-08-01T00:00:00", "2025-01-31T23:00:00", "2025-02-01T00:00:00"]
    lines = [json.dumps({"contest_date": day, "n": n}) for n, day in enumerate(days)]
    first, second = put(served, "1", "\n".join(lines[:2]).encode()), put(served, "2", "\n".join(lines[2:]).encode())
    suite = replace(PAPER_SUITES["livecodebench"], parts=(first, second))
    path = fetch_suite(suite, nobody)
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [1, 2]


def zipped(names: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, body in names.items():
            archive.writestr(name, body)
    return out.getvalue()


def test_an_archive_is_unpacked_and_never_out_of_its_folder(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = put(served, "rows.jsonl", b"{}\n")

    def with_archive(names: dict[str, bytes]) -> PaperSuite:
        return replace(PAPER_SUITES["ifeval"], parts=(rows,), extra=(put(served, "a.zip", zipped(names)), "nltk_data"))

    suite = with_archive({"punkt_tab/english/a.txt": b"x"})
    path = fetch_suite(suite, nobody)
    assert (path.parent / "nltk_data" / "punkt_tab" / "english" / "a.txt").read_bytes() == b"x"
    with pytest.raises(TaskError, match="names that lead out of its folder"):
        fetch_suite(with_archive({"../evil.txt": b"x"}), nobody)
    monkeypatch.setattr(fetching, "MAX_UNPACKED", 10)
    with pytest.raises(TaskError, match="unfolds to more than 10 bytes"):
        fetch_suite(with_archive({"a.txt": b"0" * 11}), nobody)
