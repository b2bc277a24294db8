"""The coordinator's metrics for Prometheus: sums that `/v1/status` shows to anybody, and nothing of any one node."""

from collections.abc import Mapping

from shoal.coordinator.status import Overview
from shoal.telemetry.prometheus_text import MetricsPage


def metrics_text(seen: Overview) -> str:
    """What `GET /metrics` of a coordinator answers."""
    page = MetricsPage()
    page.add("shoal_run_steps_wanted", "gauge", "Training steps of the whole run.", seen.steps)
    page.add("shoal_run_steps_done", "gauge", "Training steps that are done.", seen.version or 0)
    files = {"accepted": seen.accepted, "refused": seen.rejected, "unjudged": seen.waiting}
    add_coordinator(page, seen.states, files)
    page.add("shoal_coordinator_groups_needed", "gauge", "Groups that a step needs.", seen.needed)
    for step, count in sorted(seen.counts.items()):
        ahead = str(step - (seen.version or 0))
        for state, groups in (("seen", count.seen), ("leased", count.leased)):
            page.add(
                "shoal_coordinator_groups",
                "gauge",
                "Groups that arrived or are out on leases, by how many steps their own is ahead of the trainer.",
                groups,
                ahead=ahead,
                state=state,
            )
    return page.text()


def add_coordinator(page: MetricsPage, states: Mapping[str, int], files: Mapping[str, int]) -> None:
    """Nodes by state and files by verdict."""
    for state, count in sorted(states.items()):
        page.add("shoal_coordinator_nodes", "gauge", "Nodes by state.", count, state=state)
    for result, count in sorted(files.items()):
        page.add("shoal_coordinator_files", "gauge", "Files that were handed in, by verdict.", count, result=result)
