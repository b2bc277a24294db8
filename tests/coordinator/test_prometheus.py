"""A coordinator's metrics: sums that anybody may see, and nothing of any one node."""

import httpx2

from shoal.telemetry.prometheus_text import CONTENT_TYPE
from tests.support.coordinator_in_process import World, key_of


def test_a_coordinator_shows_prometheus_its_nodes_and_files_and_names_none(world: World) -> None:
    for name in ("a", "b"):
        world.link(key_of(name)).join("worker")
    world.coordinator._seen = None
    answer = httpx2.get(f"{world.url}/metrics")
    assert answer.headers["Content-Type"] == CONTENT_TYPE
    lines = answer.text.splitlines()
    assert 'shoal_coordinator_nodes{state="joined"} 2' in lines
    assert 'shoal_coordinator_files{result="accepted"} 0' in lines
    assert f"shoal_run_steps_wanted {world.coordinator.terms.steps}" in lines
    assert "0x" not in answer.text
    assert "127.0.0.1" not in answer.text
