"""Every role is in the metrics, Prometheus can parse them, and the dashboard asks for nothing that is missing."""

import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

import pytest

from shoal.errors import ConfigError
from shoal.rundir import RunDir
from shoal.sinks.exporter import Exporter
from shoal.sinks.prometheus import RunFigures, once
from shoal.telemetry.prometheus_text import CONTENT_TYPE, MetricsPage
from shoal.watch.history import HIDDEN_ROLES
from tests.support.command import shoal
from tests.support.sink_runs import files_of, write_run, write_step
from tests.watch.conftest import put_status

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana.json"
ROLES = ("trainer", "worker-0", "validator", "evaluator", "coordinator", "origin", "relay", "supervisor")
SAMPLE = re.compile(r'^([a-z_][a-z0-9_]*)(\{(?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*\})? (\S+)$')
CAST = "shoal_cast_"  # of origin and relays, which serve their own


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = write_run(tmp_path / "run", 6)
    for role in (*ROLES, *HIDDEN_ROLES):
        put_status(run.path, role, state="waiting", on="worker")
    with run.metrics("supervisor") as supervisor, run.metrics("validator") as validator:
        for role in ("worker-0", *HIDDEN_ROLES):
            supervisor.write("restart", role=role, code=-9)
        validator.write("banned", node="0xab", check="sampling", reason="x")
        validator.write("note", text="a note")
    with run.metrics("coordinator") as coordinator:
        coordinator.write("latency", version=3, p50=0.1)
    return run


def samples(text: str) -> dict[str, float]:
    """Values by name and labels; a line that is not in the format fails."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match, line
            key = match[1] + (match[2] or "")
            assert key not in found, f"{key} twice"
            found[key] = float(match[3])
    return found


def test_every_role_is_in_it_with_its_state_and_what_it_did(run: RunDir) -> None:
    found = samples(once(run.path))
    for role in ROLES:
        assert found[f'shoal_role_up{{role="{role}"}}'] == 1
        assert found[f'shoal_role_waiting_seconds{{role="{role}",on="worker"}}'] >= 0
    assert found['shoal_worker_files_total{role="worker-0"}'] == 12
    assert found['shoal_worker_tokens_total{role="worker-0"}'] == 3600
    assert found['shoal_validator_verdicts_total{role="validator",result="refused",check="sampling"}'] == 6
    assert found['shoal_validator_bans_total{role="validator"}'] == 1
    assert found['shoal_role_restarts_total{role="worker-0"}'] == 1
    assert (found["shoal_run_steps_done"], found["shoal_run_steps_wanted"]) == (6, 40)
    assert (found["shoal_train_step"], found["shoal_eval_version"], found["shoal_eval_pass_at_1"]) == (5, 5, 0.5)
    assert found['shoal_train_waits{part="worker"}'] == 0.12
    assert found["shoal_latency_p50"] == 0.1


def test_a_role_that_has_ended_is_down(run: RunDir) -> None:
    put_status(run.path, "evaluator", alive=False, state="failed")
    found = samples(once(run.path))
    assert found['shoal_role_up{role="evaluator"}'] == 0
    assert found['shoal_role_state{role="evaluator",state="failed"}'] == 1


def test_the_planter_is_in_no_metric(run: RunDir) -> None:
    with run.metrics("planter") as planter:
        planter.write("submission", step=1, tokens=5)
    assert "planter" not in once(run.path)


def test_counters_are_the_same_for_an_exporter_that_was_started_again(run: RunDir) -> None:
    figures = RunFigures(run.path)
    figures.refresh()
    write_step(run, 6)
    figures.refresh()
    now = 2e9
    again = RunFigures(run.path)
    again.refresh()
    assert figures.page(now) == again.page(now)


@pytest.mark.parametrize("text", ['a"b', "a\nb", "a\\b", 'a"} 1\nshoal_forged 7', "ü"])
def test_text_of_strangers_in_a_label_is_never_a_line_of_its_own(text: str) -> None:
    page = MetricsPage()
    page.add("shoal_x", "gauge", f"about {text}", 1.5, check=text)
    assert [value for key, value in samples(page.text()).items()] == [1.5]
    assert "\nshoal_forged" not in page.text()


def test_a_directory_without_metrics_is_refused(tmp_path: Path) -> None:
    result = shoal(tmp_path, "metrics", str(tmp_path))
    assert (result.returncode, "not a run" in result.stderr) == (3, True)


def test_without_a_port_the_metrics_are_printed_once(tmp_path: Path, run: RunDir) -> None:
    result = shoal(tmp_path, "metrics", str(run.path))
    assert result.returncode == 0
    assert samples(result.stdout)["shoal_run_steps_done"] == 6


@contextmanager
def serving(run: RunDir) -> Iterator[Exporter]:
    with Exporter(run.path, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_prometheus_gets_what_is_new_and_the_run_is_not_touched(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.sinks.exporter.FRESH_S", -1.0)
    before = files_of(run.path)
    with serving(run) as server:
        with urllib.request.urlopen(server.url, timeout=60) as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            assert samples(answer.read().decode())["shoal_run_steps_done"] == 6
        assert files_of(run.path) == before
        write_step(run, 6)
        with urllib.request.urlopen(server.url, timeout=60) as answer:
            assert samples(answer.read().decode())["shoal_run_steps_done"] == 7


def test_on_loopback_no_name_of_a_stranger_is_answered_and_nothing_else_is_served(run: RunDir) -> None:
    with serving(run) as server:
        port = server.server_port
        for path, host, code in (("/metrics", "evil.example", 421), ("/etc/passwd", f"127.0.0.1:{port}", 404)):
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host})
            with pytest.raises(HTTPError) as raised:
                urllib.request.urlopen(request, timeout=60)
            assert raised.value.code == code


def test_a_port_that_is_taken_is_named(run: RunDir) -> None:
    with serving(run) as server, pytest.raises(ConfigError, match=f"metrics 127.0.0.1:{server.server_port}: cannot li"):
        Exporter(run.path, "127.0.0.1", server.server_port)


def asked() -> set[str]:
    """Names of metrics in every query of the dashboard."""
    tree = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in tree["panels"] for target in panel.get("targets", [])]
    queries += [variable["query"]["query"] for variable in tree["templating"]["list"] if variable["type"] == "query"]
    return {name for query in queries for name in re.findall(r"\bshoal_[a-z0-9_]+", query)}


def test_the_dashboard_asks_only_for_metrics_that_are_served(run: RunDir) -> None:
    from tests.support.large_run import write_large_run

    records = write_large_run(run.path.parent / "large", steps=4, node_count=12, samples=128, answer_bytes=100)
    served = {key.partition("{")[0] for path in (run.path, records) for key in samples(once(path))}
    missing = {name for name in asked() - served if not name.startswith(CAST)}
    assert missing == set()
    assert len(asked()) > 25


def test_what_the_dashboard_asks_of_origin_and_relays_is_served_there(tmp_path: Path) -> None:
    from shoal.shardcast.format.store import Store
    from shoal.shardcast.serve.server import Server
    from shoal.shardcast.serve.server import serving as serving_weights

    with (
        serving_weights(Server(Store(tmp_path))) as server,
        urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer,
    ):
        served = set(re.findall(r"^# TYPE (\S+)", answer.read().decode(), re.MULTILINE))
    wanted = {name for name in asked() if name.startswith(CAST)}
    assert len(wanted) == 3
    assert wanted <= served


def test_panels_of_the_dashboard_do_not_overlap_and_all_say_what_they_show() -> None:
    tree = json.loads(DASHBOARD.read_text())
    cells: set[tuple[int, int]] = set()
    for panel in tree["panels"]:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells, panel["title"]
        cells |= own
        assert panel["type"] == "row" or panel["description"]
    assert len({panel["id"] for panel in tree["panels"]}) == len(tree["panels"])
