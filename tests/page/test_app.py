"""The pages' server: what it answers, to whom, with which headers, and what it never shows."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.coordinator.archive import HOME, STATE
from shoal.coordinator.http.loopback import is_loopback_name
from shoal.errors import ConfigError, SwarmError
from shoal.files import locked
from shoal.page.app import HEADERS, MAX_STREAMS
from shoal.page.data_routes import ELSEWHERE, NO_DATABASE
from shoal.page.documents import MAX_WAITING
from shoal.page.pages import LOOK_S, Pages
from shoal.page.rollouts import steps_near
from shoal.page.serve import serve_page
from shoal.page.source import NO_CONFIG, RunFiles
from shoal.rundir import RUN_FILE
from shoal.telemetry.status import StatusFile
from tests.support.large_run import HOSTILE, SECRET, address, append_step, write_large_run
from tests.support.page_in_process import serving_pages
from tests.support.until import until

DOCUMENTS = (
    "run",
    "swarm",
    "rollouts",
    "rollouts/9/0/0",
    "verdicts",
    "verdicts/8/3",
    f"node/{address(3)}",
    "ledger",
    "join",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    return write_large_run(folder / "run", steps=10, node_count=300, samples=256, answer_bytes=20_000)


@pytest.fixture(scope="module")
def url(run: Path) -> Iterator[str]:
    with serving_pages(run) as url:
        yield url


def get(url: str, **options: Any) -> httpx2.Response:
    with httpx2.Client(trust_env=False, timeout=30) as client:
        return client.get(url, **options)


def document(url: str) -> Any:
    answer = get(url)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    "path", ["/", "/swarm", "/node/" + address(1), "/static/app.js", "/data/run", "/data/none", "/x"]
)
def test_every_answer_has_a_policy_that_lets_a_browser_run_our_files_alone(url: str, path: str) -> None:
    headers = get(url + path).headers
    assert {name: headers[name] for name in HEADERS} == HEADERS
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_document_shows_a_network_address_a_url_of_a_node_or_a_directory(url: str, run: Path, name: str) -> None:
    text = get(f"{url}/data/{name}").text
    for private in (SECRET, "203.0.113", "/home/owner", str(run), "planter", "planting", '"network"', "cheaters"):
        assert private not in text, f"{name} shows {private}"


def test_the_run_document_has_every_figure_that_the_terminal_has(url: str) -> None:
    found = document(f"{url}/data/run")
    assert (found["state"], found["done"], found["total"]) == ("finished", 10, 10)
    assert [name for name, _ in found["cells"]][:3] == ["reward", "solve rate", "held-out pass@1"]
    assert found["series"]["x"] == list(range(10))
    assert {role["role"] for role in found["roles"]} == {"trainer", "origin"}
    assert found["held_out"][0][:1] == [0]


def test_nodes_are_counted_searched_sorted_and_listed_page_by_page(url: str) -> None:
    first = document(f"{url}/data/swarm")
    assert (first["found"], len(first["nodes"]), sum(first["states"].values())) == (300, 100, 300)
    last = document(f"{url}/data/swarm?page=99")
    assert (last["page"], len(last["nodes"])) == (2, 100)
    assert not {one["address"] for one in first["nodes"]} & {one["address"] for one in last["nodes"]}
    banned = document(f"{url}/data/swarm?state=banned")
    assert {one["state"] for one in banned["nodes"]} == {"banned"}
    assert banned["found"] == first["states"]["banned"]
    assert [one["name"] for one in document(f"{url}/data/swarm?search=node-123")["nodes"]] == ["node-123"]
    assert document(f"{url}/data/swarm?search=%25")["found"] == 0, "a wildcard is a character like others"
    assert document(f"{url}/data/swarm?sort=accepted")["nodes"][0]["accepted"] == 69


def test_rollouts_are_counted_filtered_and_decoded(url: str) -> None:
    found = document(f"{url}/data/rollouts")
    assert (found["step"], found["samples"], found["files"]) == (9, 256, 2)
    assert sum(count for _, _, count in found["rewards"]) == 256
    low, high, count = found["rewards"][-1]
    picked = document(f"{url}/data/rollouts?reward_from={low}&reward_to={high}")
    assert 0 < picked["found"] <= found["found"]
    assert document(f"{url}/data/rollouts?task=12&source=spell_backward")["found"] == 2
    assert document(f"{url}/data/rollouts?node={address(12)}")["found"] == 8
    assert document(f"{url}/data/rollouts?reward_from=7")["found"] == 0
    group = document(f"{url}/data/rollouts/9/1/0")
    assert group["samples"][1]["text"] == HOSTILE[1]
    assert len(group["samples"][1]["logprobs"]) == len(group["samples"][1]["pieces"]) == group["samples"][1]["tokens"]
    assert count > 0


def test_a_sample_on_the_edge_of_two_bars_is_listed_under_the_upper_one_that_counts_it(url: str) -> None:
    def listed(low: float, high: float) -> int:
        return int(document(f"{url}/data/rollouts?tokens_from={low}&tokens_to={high}")["found"])

    found = document(f"{url}/data/rollouts")
    shortest, longest = found["lengths"][0][0], found["lengths"][-1][1]
    assert listed(shortest - 10, shortest) == listed(shortest + 0.25, shortest + 0.5) == 0
    assert listed(shortest, shortest) > 0
    assert listed(longest - 0.5, longest) > 0, "no bar follows the last one"
    for low, high, count in found["lengths"]:
        assert bool(count) <= listed(low, high) <= count


def test_a_step_whose_rollouts_are_gone_is_said_to_be_and_not_taken_for_another(url: str) -> None:
    found = document(f"{url}/data/rollouts?step=4")
    assert (found["step"], found["gone"]) == (9, 4)
    assert document(f"{url}/data/rollouts?step=9")["gone"] is None
    assert document(f"{url}/data/rollouts")["gone"] is None


@given(st.sets(st.integers(0, 5000), min_size=1, max_size=1200), st.data())
def test_every_step_can_be_reached_from_every_other(steps: set[int], data: st.DataObject) -> None:
    ordered = sorted(steps)
    chosen = data.draw(st.sampled_from(ordered))
    shown = steps_near(ordered, chosen)
    at, place = ordered.index(chosen), shown.index(chosen)
    assert shown[max(0, place - 1) : place + 2] == ordered[max(0, at - 1) : at + 2], "its neighbours"
    assert ordered[-1] in shown
    assert len(shown) <= 300


def test_rollouts_whose_environment_nobody_plays_again_are_marked(tmp_path: Path) -> None:
    run = write_large_run(tmp_path / "run", steps=3, node_count=3, samples=16, answer_bytes=100)
    file, source = run / RUN_FILE, "spell_backward"
    tree = json.loads(file.read_text())
    assert shown_sources(run) == (source, source)
    tree["config"]["tasks"][0]["unverified"] = "accept"
    file.write_text(json.dumps(tree))
    row, group = shown_sources(run)
    assert row == f"{source}, unverified"
    assert group == f"{source}, unverified: what the environment said and what it gave is the worker's word"


def shown_sources(run: Path) -> tuple[str, str]:
    """What a row of the page calls the source of a group, and what the group itself does."""
    with serving_pages(run) as url:
        found = document(f"{url}/data/rollouts?source=spell_backward")
        row = found["groups"][0]
        group = document(f"{url}/data/rollouts/{found['step']}/{row['submission']}/{row['group']}")
        return row["source"], group["source"]


def test_a_long_answer_is_cut_and_comes_whole_when_asked_for(url: str) -> None:
    group = document(f"{url}/data/rollouts/9/0/0")
    assert (group["samples"][0]["is_cut"], len(group["samples"][0]["text"])) == (True, 4000)
    whole = document(f"{url}/data/rollouts/9/0/0/0")["text"]
    assert len(whole) == 20_000
    assert whole.startswith(HOSTILE[0])


def test_verdicts_say_what_was_claimed_and_found_and_refuse_what_is_not_a_number(url: str) -> None:
    found = document(f"{url}/data/verdicts")
    assert (found["refused"], found["accepted"], found["found"], len(found["files"])) == (200, 2, 200, 50)
    one = document(f"{url}/data/verdicts/8/3")
    assert one["finding"]["claimed"] == f"token 5 {HOSTILE[1]}"
    assert one["finding"]["found"].endswith("from [address]")
    assert document(f"{url}/data/verdicts?check=proofs")["found"] == 0
    assert document(f"{url}/data/verdicts?check=Sampling")["found"] == 200
    assert document(f"{url}/data/verdicts?check=%22%25")["found"] == 0, "a name that no check can have finds nothing"
    assert document(f"{url}/data/verdicts?node={address(7)}")["found"] == 1
    refused = get(f"{url}/data/verdicts?step=x1")
    assert (refused.status_code, refused.json()["error"]) == (422, "step = 'x1': must be a whole number")
    assert get(f"{url}/data/verdicts/8/999").status_code == 404
    assert get(f"{url}/data/verdicts?check={'x' * 2000}").status_code == 422


def test_an_unknown_node_is_said_to_be_unknown(url: str) -> None:
    answer = get(f"{url}/data/node/{'0x' + 'f' * 40}")
    assert (answer.status_code, answer.json()["error"][:19]) == (404, "it is not on record")


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/manifest.json", "/run.json", "/keys/x"]
)
def test_no_other_file_is_ever_served(url: str, path: str) -> None:
    assert get(url + path).status_code == 404


def test_nothing_can_be_changed(url: str) -> None:
    with httpx2.Client(trust_env=False) as client:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert client.request(method, f"{url}/data/run").status_code == 405


def test_a_page_on_loopback_answers_to_no_name_of_a_stranger(url: str) -> None:
    assert get(f"{url}/data/run", headers={"Host": "evil.example.org"}).status_code == 421
    assert get(f"{url}/data/run", headers={"Host": "127.0.0.1.evil.example.org:80"}).status_code == 421
    assert get(f"{url}/data/run", headers={"Host": "localhost:1234"}).status_code == 200
    assert [is_loopback_name(name) for name in ("[::1]:80", "[::1]", "10.0.0.1:80", "")] == [True, True, False, False]


def test_a_page_is_served_to_others_only_if_that_is_said(run: Path) -> None:
    from rich.console import Console

    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:0: is not loopback; --public"):
        serve_page(run, "0.0.0.0", 0, Console(quiet=True))


@pytest.mark.parametrize("host", ["nosuch.invalid", "a..b"])
def test_a_page_that_cannot_listen_names_itself_and_its_own_flags(run: Path, host: str) -> None:
    from rich.console import Console

    with pytest.raises(SwarmError, match=rf"^page {host}:0: cannot listen \(.*\); give another --host or --port$"):
        serve_page(run, host, 0, Console(quiet=True), public=True)


def test_a_new_step_is_told_to_open_pages_at_the_next_look_which_is_within_a_second(tmp_path: Path) -> None:
    run = write_large_run(tmp_path / "run", steps=3, node_count=3, samples=128, answer_bytes=100)
    with serving_pages(run) as url, httpx2.Client(trust_env=False, timeout=60) as client:
        with client.stream("GET", f"{url}/events") as stream:
            told = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
            assert next(told)["done"] == 3
            began = time.monotonic()
            append_step(run, 3)
            assert next(news["done"] for news in told if news["done"] == 4) == 4
            assert time.monotonic() - began < 60
            assert LOOK_S <= 1.0
        assert document(f"{url}/data/run")["done"] == 4


def test_how_long_a_role_has_been_waiting_is_told_though_nothing_is_written_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the coordinator hangs: then no file changes, and somebody looks at the page to see why."""
    monkeypatch.setattr("shoal.page.pages.BEAT_S", 0.1)
    run = write_large_run(tmp_path / "run", steps=3, node_count=3, samples=16, answer_bytes=100)
    (run / "locks").mkdir()
    with locked(run / "locks" / "trainer", "taken"):
        StatusFile(run / "status" / "trainer.json", "trainer").waiting("leases", "coordinator", None)
        with (
            serving_pages(run) as url,
            httpx2.Client(trust_env=False, timeout=60) as client,
            client.stream("GET", f"{url}/events") as stream,
        ):
            told = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
            first = next(told)["waiting"]
            assert first[0].startswith("trainer waits on coordinator (not started): leases (")
            assert next(news["waiting"] for news in told if news["waiting"] != first)


def test_records_that_nothing_is_written_to_are_news_once_when_no_node_was_heard_lately(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the swarm of a run that crashed would generate for ever, on a page that stays open."""
    monkeypatch.setattr("shoal.page.source.RECENT_S", 0.1)
    monkeypatch.setattr("shoal.page.source.RECORDS_S", 0.0)
    files = RunFiles.open(run)
    assert files.revision.records == 1
    time.sleep(0.2)
    for _ in range(3):
        files.refresh()
        assert files.revision.records == 2


def test_rollouts_that_take_long_to_decode_delay_nothing_else(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are asked for at once: neither the live part of open pages nor another document."""
    decoded = threading.Event()

    def slow(*_: object) -> dict[str, object]:
        decoded.wait(60)
        return {"steps": [], "step": None}

    for module in ("pages", "data_routes"):
        monkeypatch.setattr(f"shoal.page.{module}.rollouts_document", slow)
    with serving_pages(run) as url, httpx2.Client(trust_env=False, timeout=30) as client:
        answers: list[int] = []
        asking = [
            threading.Thread(target=lambda n=n: answers.append(get(f"{url}/data/rollouts?step={n}").status_code))
            for n in range(MAX_WAITING + 6)
        ]
        try:
            for one in asking:
                one.start()
            until(lambda: 503 in answers)  # their queue is full
            with client.stream("GET", f"{url}/events") as stream:
                assert next(stream.iter_lines()) == "event: news"
            for name in ("run", "swarm", "verdicts", "ledger", "join"):
                assert get(f"{url}/data/{name}").status_code == 200, name
            assert 200 not in answers, "none of them is ready yet"
        finally:
            decoded.set()
            for one in asking:
                one.join(60)
        assert answers.count(200) == MAX_WAITING - 1, "beside the newest step's, which nobody has to ask for"


def test_streams_are_bounded_and_a_closed_one_gives_its_place_back(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.page.app.MAX_STREAMS", 1)
    assert MAX_STREAMS == 256
    with serving_pages(run) as url, httpx2.Client(trust_env=False, timeout=10) as client:
        with client.stream("GET", f"{url}/events") as stream:
            lines = stream.iter_lines()
            next(lines)
            with client.stream("GET", f"{url}/events") as second:
                assert second.status_code == 503
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with client.stream("GET", f"{url}/events") as stream:
                if stream.status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError("its place was not given back")


def test_one_network_gets_half_of_the_streams(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.page.app.MAX_STREAMS", 4)
    monkeypatch.setattr("shoal.page.app.network_of", lambda scope: dict(scope["headers"])[b"x-from"].decode())
    reading: list[Iterator[str]] = []
    with serving_pages(run, public=True) as url, ExitStack() as held, httpx2.Client(trust_env=False) as client:

        def opens(network: str) -> int:
            stream = held.enter_context(client.stream("GET", f"{url}/events", headers={"X-From": network}))
            if stream.status_code == 200:
                reading.append(stream.iter_lines())  # a stream ends with what reads it
                next(reading[-1])  # it is counted by now
            return stream.status_code

        assert [opens("192.0.2.1") for _ in range(3)] == [200, 200, 503]
        assert [opens("127.0.0.1") for _ in range(3)] == [200, 200, 503], "this machine, until all are taken"


def test_a_run_that_is_only_metrics_or_whose_database_is_broken_says_so_and_shows_the_rest(
    run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copied"
    (copy / "metrics").mkdir(parents=True)
    (copy / "metrics" / "trainer.jsonl").write_bytes((run / "metrics" / "trainer.jsonl").read_bytes() + b'{"torn')
    with serving_pages(copy) as url:
        assert document(f"{url}/data/run")["done"] == 10
        assert get(f"{url}/data/swarm").json()["error"].startswith("no usable run.json of this release is here")
        (copy / "run.json").write_bytes((run / "run.json").read_bytes())
    with serving_pages(copy) as url:
        assert "records are not here" in get(f"{url}/data/swarm").json()["error"]
        (copy / HOME).mkdir()
        (copy / HOME / STATE).write_bytes(b"not a database" * 100)
        answer = get(f"{url}/data/swarm")
        assert (answer.status_code, "cannot be read" in answer.json()["error"]) == (503, True)
        assert document(f"{url}/data/ledger")["kind"] == "none"


@pytest.mark.parametrize(
    ("setting", "value", "status", "shown"),
    [
        ("database", "postgresql://dbuser@db.internal.invalid:1/records", 503, NO_DATABASE),
        ("store", "s3://secret-bucket/folder", 422, ELSEWHERE),
    ],
)
def test_where_records_and_files_are_stored_is_logged_and_never_shown(
    run: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    setting: str,
    value: str,
    status: int,
    shown: str,
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copied"))
    tree = json.loads((copy / RUN_FILE).read_text())
    tree["config"]["swarm"][setting] = value
    (copy / RUN_FILE).write_text(json.dumps(tree))
    with serving_pages(copy) as url:
        for _ in range(2):
            answer = get(f"{url}/data/rollouts")
            assert (answer.status_code, answer.json()) == (status, {"error": shown})
    private = "db.internal.invalid" if setting == "database" else "secret-bucket"
    assert [private in record.message for record in caplog.records] == [True], "once, however often it is asked for"


def test_why_a_runs_config_cannot_be_read_is_logged_and_its_settings_and_directory_are_not_shown(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "runs" / "c1" / "metrics").mkdir(parents=True)
    tree = json.loads((run / RUN_FILE).read_text())
    tree["config"]["swarm"]["databse"] = "db.internal.invalid"
    (tmp_path / "runs" / "c1" / RUN_FILE).write_text(json.dumps(tree))
    monkeypatch.chdir(tmp_path)
    with serving_pages(Path("runs/c1")) as url:
        for name in ("swarm", "join"):
            text = get(f"{url}/data/{name}").text
            assert NO_CONFIG in text
            assert "runs/" not in text
            assert "internal" not in text
    assert "db.internal.invalid" in caplog.text


@pytest.mark.parametrize("number", ["9" * 20, "9" * 5000])
@pytest.mark.parametrize(
    "path", ["data/rollouts/{}/0/0", "data/rollouts/9/0/{}", "data/verdicts/8/{}", "verdicts/8/{}", "verdicts/{}/3"]
)
def test_a_number_that_no_record_can_have_is_not_found(url: str, path: str, number: str) -> None:
    assert get(f"{url}/{path.format(number)}").status_code == 404


@pytest.mark.parametrize("path", ["rollouts/9/0/{}", "rollouts/9/0/0/{}", "rollouts/{}/0/0", "verdicts/{}/{}"])
def test_the_largest_number_of_a_path_is_an_ordinary_one(url: str, path: str) -> None:
    assert get(f"{url}/data/{path.format('9' * 18, '9' * 18)}").status_code == 404


def test_pages_write_nothing_into_a_run_and_hold_no_lock_on_it(run: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        wal = ("-wal", "-shm")  # SQLite's own, which any reader may make
        return {
            str(path): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in run.rglob("*")
            if path.is_file() and not path.name.endswith(wal)
        }

    before = state()
    with serving_pages(run) as url:
        for name in DOCUMENTS:
            get(f"{url}/data/{name}")
        held = {line.split()[5].rpartition(":")[2] for line in Path("/proc/locks").read_text().splitlines()}
        mine = {str(path.stat().st_ino) for path in run.rglob("*")}
        assert not held & mine
    assert state() == before


def test_files_are_followed_by_one_thread_however_many_documents_are_asked_for(run: Path) -> None:
    pages = Pages(RunFiles.open(run))
    before = threading.active_count()
    assert pages.revision == (1, 1, 1)
    pages.files.refresh()
    assert pages.revision == (1, 1, 1), "nothing was written, so nothing is news"
    assert threading.active_count() == before


def test_a_document_that_fails_unexpectedly_is_an_answer_with_the_policy_and_says_nothing_of_why(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> dict[str, object]:
        raise RuntimeError("/home/owner/secret")

    monkeypatch.setattr("shoal.page.data_routes.run_document", fails)
    with serving_pages(run) as url:
        answer = get(f"{url}/data/run")
        assert (answer.status_code, list(answer.json())) == (500, ["error"])
        assert "secret" not in answer.text
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert get(f"{url}/data/join").status_code == 200


def test_files_are_followed_on_after_a_look_that_failed_unexpectedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_large_run(tmp_path / "run", steps=3, node_count=3, samples=128, answer_bytes=100)
    looks: list[int] = []
    refresh = RunFiles.refresh

    def first_fails(files: RunFiles) -> None:
        looks.append(1)
        if len(looks) == 2:  # the first one opens the run
            raise OverflowError("int too large to convert to float")
        refresh(files)

    monkeypatch.setattr(RunFiles, "refresh", first_fails)
    with serving_pages(run) as url:
        until(lambda: len(looks) > 2)
        append_step(run, 3)
        until(lambda: document(f"{url}/data/run")["done"] == 4)
