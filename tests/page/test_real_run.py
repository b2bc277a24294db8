"""Every page of a real run, opened in a browser while `shoal run` is at work and again after it has ended."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.browser import Browser, opened
from tests.support.page_in_process import serving_pages
from tests.support.run_processes import CONFIG, STEPS, Runs

SHORT = 8
START_S, END_S = 200.0, 200.0
CHEATER = '\n[[cheaters]]\nattack = "int4"\n'
# What is there once a page has its content, in a run that has trained a step.
PAGES = {
    "/": "document.querySelectorAll('.uplot canvas').length >= 7",
    "/swarm": "document.querySelectorAll('tbody tr').length >= 4",
    "/rollouts": "document.querySelectorAll('.group').length >= 1",
    "/verdicts?result=accepted": "document.querySelectorAll('tbody tr').length >= 1",
    "/ledger": "document.querySelector('#verified')",
    "/join": "/shoal worker --join http/.test(document.body.innerText)",
}


@dataclass
class RealRun:
    """A run, the address that it printed, and how to wait for its end."""

    path: Path
    url: str
    runs: Runs

    def ended(self) -> Path:
        assert self.runs.started[0].wait(END_S) == 0, (self.path.parent / "real.log").read_text()[-3000:]
        return self.path


@pytest.fixture(scope="module")
def run(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRun]:
    folder = tmp_path_factory.mktemp("real-run")
    config = folder / "config.toml"
    config.write_text(
        CONFIG.replace(f"steps = {STEPS}", f"steps = {SHORT}").replace("every = 15", "every = 4") + CHEATER
    )
    with Runs(folder / "cache") as runs:
        runs.start(config, folder / "real")
        yield RealRun(folder / "real", _address(folder / "real.log", runs), runs)


def _address(log: Path, runs: Runs) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and runs.started[0].poll() is None:
        if found := re.search(r"watch at (http://127\.0\.0\.1:\d+)/", log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(log.read_text()[-3000:])


def _open_all(browser: Browser, url: str, state: str) -> None:
    with opened(browser) as page:
        for path, ready in PAGES.items():
            page.open(url + path, ready, START_S)
            page.until(f"document.querySelector('.bar-top .badge').textContent === '{state}'")
            assert page.run("document.querySelectorAll('main h1').length") == 1
        page.open(f"{url}/swarm?role=worker", "document.querySelector('tbody .address')")
        page.run("document.querySelector('tbody .address').click()")
        page.until("/^.node.0x/.test(location.pathname) && document.querySelector('.tile')")
        assert page.faults == []
        assert [asked for asked in page.requests if not asked.startswith((f"{url}/", "data:"))] == []


def test_every_page_of_a_run_that_goes_on_is_there_and_clean(browser: Browser, run: RealRun) -> None:
    with opened(browser) as page:  # from the first second on, and again and again until there is a step
        deadline = time.monotonic() + START_S
        while "of step" not in (text := page.run("document.body?.innerText || ''")):
            assert time.monotonic() < deadline, text
            if "No step yet" not in text:
                page.call("Page.navigate", url=run.url)
            time.sleep(0.5)
    _open_all(browser, run.url, "running")


def test_every_page_of_the_same_run_after_its_end_comes_from_its_files(browser: Browser, run: RealRun) -> None:
    with serving_pages(run.ended()) as url, opened(browser) as page:
        _open_all(browser, url, "finished")
        page.open(f"{url}/ledger", "/signed up to entry/.test(document.body.innerText)")
        assert page.run("document.querySelector('#verified').textContent") == "Verified"
        page.open(f"{url}/verdicts", "document.querySelector('tbody a')")
        page.run("document.querySelector('tbody a').click()")
        page.until("document.querySelector('.finding') && document.querySelectorAll('.tokens li').length > 0")
        assert "shoal replay RUN/evidence/step-" in page.text()
        assert page.faults == []
