"""Every page of a real run, opened in a browser while `shoal run` is at work and again after it was killed.

The run has more steps than anybody waits for, so it is at work for as long as pages are opened, and a worker that
cheats in a way that is always seen, so there are verdicts with evidence.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser, opened
from tests.support.page_in_process import serving_pages
from tests.support.real_pages import PAGES, WAIT_S, document, found_out, open_all
from tests.support.run_processes import Runs

pytestmark = pytest.mark.timeout(1800)

CONFIG = """
name = "pages"
steps = 100000

[[tasks]]
source = "reasoning-gym/spell_backward"
options = { min_word_len = 3, max_word_len = 4 }
binary = false

[model.tiny]
hidden = 32
layers = 1
warm_steps = 0

[sampling]
group_size = 4
max_new_tokens = 8
max_prompt_tokens = 64

[train]
groups_per_step = 4

[workers]
count = 1
groups_per_submission = 2

[audit]
strikes = 100000

[eval]
tasks = 4
every = 100000

[keep]
rollouts = 100

[[cheaters]]
attack = "edited_tokens"
"""


@dataclass
class RealRun:
    """A run that has trained a step and found out its cheater, and the address that it printed."""

    path: Path
    url: str
    runs: Runs

    def crash(self) -> Path:
        """Kills the run's first process, with which all others end, and gives what it leaves behind."""
        self.runs.started[0].kill()
        self.runs.started[0].wait(WAIT_S)
        return self.path


@pytest.fixture(scope="module")
def run(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRun]:
    folder = tmp_path_factory.mktemp("real-run")
    (folder / "config.toml").write_text(CONFIG)
    log = folder / "real.log"
    with Runs(folder / "cache") as runs:
        process = runs.start(folder / "config.toml", folder / "real")

        def within(found: Callable[[], Any]) -> Any:
            deadline = time.monotonic() + WAIT_S
            while time.monotonic() < deadline and process.poll() is None:
                with suppress(OSError, ValueError):  # the server is starting, or says what is missing yet
                    if value := found():
                        return value
                time.sleep(0.1)
            raise AssertionError(log.read_text()[-3000:])

        url = within(lambda: re.search(r"watch at (http://127\.0\.0\.1:\d+)/", log.read_text()))[1]
        within(lambda: found_out(url) and document(url, "run")["series"]["x"] and document(url, "ledger")["cosigned"])
        yield RealRun(folder / "real", url, runs)


def test_every_page_of_a_run_that_goes_on_is_there_and_clean(browser: Browser, run: RealRun, axe: str) -> None:
    with opened(browser) as page:
        open_all(page, run.url, "running", axe)
        page.open(run.url, PAGES["/"], WAIT_S)
        before = document(run.url, "run")["series"]["x"][-1]
        later = f"Number(/of step ([0-9,]+)/.exec(document.body.innerText)[1].replace(',', '')) > {before}"
        page.until(later, WAIT_S)
        assert page.faults == [], "an open page follows the run"


def test_every_page_of_a_run_that_was_killed_comes_from_its_files(browser: Browser, run: RealRun, axe: str) -> None:
    with serving_pages(run.crash()) as url, opened(browser) as page:
        open_all(page, url, "stopped", axe)
        page.open(f"{url}/ledger", "/signed up to entry/.test(document.body.innerText)", WAIT_S)
        assert page.run("document.querySelector('#verified').textContent").startswith("Verified")
        assert page.faults == []
