"""Seconds until a page's main content is there in Chromium, bytes of its code, and seconds until a new step shows."""

import time
from pathlib import Path
from statistics import median

from benchmarks.common.progress import Progress
from benchmarks.common.result import Figure
from tests.support.browser import Browser, opened
from tests.support.large_run import append_step

STEPS, NODES, SAMPLES = 10_000, 5_000, 4_096
READY = {
    "run": ("/", "document.querySelectorAll('.uplot canvas').length >= 8"),
    "swarm": ("/swarm", "document.querySelectorAll('tbody tr').length >= 100"),
    "rollouts": ("/rollouts", "document.querySelectorAll('.group').length >= 16"),
}
CODE = (
    "performance.getEntriesByType('resource').filter(e => /\\.(js|css)$/.test(e.name))"
    ".reduce((sum, e) => sum + e.decodedBodySize, 0)"
)


def paints(url: str, run: Path, first_step: int, repeats: int, progress: Progress) -> dict[str, Figure]:
    """Medians over so many openings, each in a new tab of a browser that was just started."""
    seconds: dict[str, list[float]] = {name: [] for name in READY}
    sizes: list[int] = []
    with Browser() as browser:
        for repeat in range(repeats):
            progress.detail(f"opening {repeat + 1} of {repeats}")
            for name, (path, ready) in READY.items():
                with opened(browser) as page:
                    seconds[name].append(page.open(url + path, ready))
                    sizes.append(page.run(CODE))
        shown = [_new_step(browser, url, run, first_step + repeat) for repeat in range(repeats)]
    found: dict[str, Figure] = {f"{name}_paint_s": median(values) for name, values in seconds.items()}
    return {"bytes_per_page": max(sizes), **found, "new_step_s": median(shown)}


def _new_step(browser: Browser, url: str, run: Path, step: int) -> float:
    with opened(browser) as page:
        page.open(url, READY["run"][1])
        began = time.monotonic()
        append_step(run, step)
        page.until(f"document.body.innerText.includes('of step {step:,}')")
        return time.monotonic() - began
