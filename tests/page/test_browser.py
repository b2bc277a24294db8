"""Every page in a real browser: a long run of a large swarm with hostile text in it, on a desk and on a phone.

No console error, no violation of the policy, no request elsewhere, nothing of a stranger's text executed, and no fault
that the accessibility audit finds.
"""

import json
from pathlib import Path

import pytest

from shoal.page.pages import LOOK_S
from tests.support.axe import axe_faults
from tests.support.browser import Browser, Page, opened
from tests.support.large_run import HOSTILE, address, append_step, write_large_run
from tests.support.page_in_process import serving_pages

STEP = 9_999
MANY_TABS = 60
# Where each page is, and what is there once its main content is.
PAGES = {
    "run": ("/", "document.querySelectorAll('.uplot canvas').length >= 8"),
    "swarm": ("/swarm", "document.querySelectorAll('tbody tr').length === 100"),
    "rollouts": ("/rollouts", "document.querySelectorAll('.group').length >= 24"),
    "group": (f"/rollouts?step={STEP}&group=0.0", "document.querySelectorAll('.sample').length === 16"),
    "verdicts": ("/verdicts", "document.querySelectorAll('tbody tr').length === 50"),
    "verdict": (f"/verdicts/{STEP - 1}/3", "document.querySelector('.finding')"),
    "node": (f"/node/{address(3)}", "document.querySelector('.tile')"),
    "ledger": ("/ledger", "document.querySelector('main h1') && document.querySelector('main .empty')"),
    "join": ("/join", "document.querySelector('#may')"),
}


def assert_clean(page: Page, url: str) -> None:
    assert page.faults == []
    assert [asked for asked in page.requests if not asked.startswith((f"{url}/", "data:"))] == []
    assert page.run("window.owned === undefined")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_a_large_run_with_hostile_text_shows_it_as_text(
    browser: Browser, large_pages: str, axe: str, name: str
) -> None:
    path, ready = PAGES[name]
    with opened(browser) as page:
        page.open(large_pages + path, ready)
        assert page.run("document.querySelectorAll('main h1').length") == 1
        assert page.run("document.title").endswith("Shoal")
        assert axe_faults(page, axe) == []
        page.prefer("dark")
        page.until("getComputedStyle(document.body).backgroundColor === 'rgb(14, 23, 28)'")
        assert axe_faults(page, axe) == [], "in the dark"
        page.size(360, 740, phone=True)
        page.until("innerWidth === 360")
        assert page.run("document.documentElement.scrollWidth") <= 360, "a phone must not scroll sideways"
        assert_clean(page, large_pages)


def test_hostile_answers_of_a_megabyte_are_shown_whole_and_run_nothing(browser: Browser, large_pages: str) -> None:
    path, ready = PAGES["group"]
    with opened(browser) as page:
        page.open(large_pages + path, ready)
        for number in (0, 1):
            # The browser lays an answer out once it is in view, and text that is not laid out is not shown.
            page.run(f"document.querySelectorAll('.sample')[{number}].scrollIntoView()")
            page.until(f"document.body.innerText.includes({json.dumps(HOSTILE[number])})")
        assert page.run("document.querySelectorAll('main script, main img, main iframe').length") == 0
        page.run("[...document.querySelectorAll('.sample button')].find(b => /Show all/.test(b.textContent)).click()")
        page.until("document.querySelector('.sample pre').textContent.length === 1 << 20")
        assert_clean(page, large_pages)


def test_a_step_that_is_written_shows_up_on_an_open_page(browser: Browser, tmp_path: Path) -> None:
    run = write_large_run(tmp_path / "run", steps=5, node_count=3, samples=128, answer_bytes=100)
    with serving_pages(run) as url, opened(browser) as page:
        page.open(url, "document.querySelectorAll('.uplot canvas').length >= 8")
        assert "of step 4" in page.text()
        append_step(run, 5)
        page.until("/of step 5/.test(document.body.innerText)", 60.0)
        assert LOOK_S <= 1.0, "how soon it shows, on a machine that has time"
        assert_clean(page, url)


def test_a_run_without_a_step_says_what_it_waits_for(browser: Browser, tmp_path: Path) -> None:
    run = tmp_path / "young"
    (run / "metrics").mkdir(parents=True)
    with serving_pages(run) as url, opened(browser) as page:
        page.open(url, "document.querySelector('.empty.big')")
        assert "No step yet: no role has started" in page.text()
        for path in ("/swarm", "/rollouts", "/verdicts", "/ledger"):
            page.open(url + path, "document.querySelector('main .empty:not(.loading)')")
        assert [fault for fault in page.faults if "404" not in fault] == []


def tab_to(page: Page, selector: str) -> None:
    """Presses Tab until the first element that a selector finds has the focus."""
    for _ in range(MANY_TABS):
        if page.run(f"document.activeElement === document.querySelector({json.dumps(selector)})"):
            return
        page.press("Tab")
    raise AssertionError(f"{selector} is not reached by {MANY_TABS} times Tab")


def test_pages_are_reached_and_used_by_keyboard(browser: Browser, large_pages: str) -> None:
    with opened(browser) as page:
        page.open(f"{large_pages}/swarm", PAGES["swarm"][1])
        page.press("Tab")
        page.press("Tab")
        assert page.run("document.activeElement.className") == "brand"
        tab_to(page, 'nav a[href="/rollouts"]')
        page.press("Enter")
        page.until(PAGES["rollouts"][1])
        assert page.run("document.activeElement.id") == "main", "a screen reader starts at the new page"
        page.run("history.back()")
        page.until(PAGES["swarm"][1])
        assert_clean(page, large_pages)


def test_the_theme_follows_the_system_until_it_is_chosen_and_is_remembered(browser: Browser, large_pages: str) -> None:
    def ground(page: Page) -> str:
        return str(page.run("getComputedStyle(document.body).backgroundColor"))

    with opened(browser) as page:
        page.prefer("dark")
        page.open(f"{large_pages}/join", PAGES["join"][1])
        dark = ground(page)
        page.run("document.querySelector('.theme').click()")
        light = ground(page)
        assert light != dark
        page.open(f"{large_pages}/join", PAGES["join"][1])
        assert ground(page) == light
        page.run("localStorage.clear()")


def test_filters_are_in_the_address_and_a_bar_of_the_histogram_is_one(browser: Browser, large_pages: str) -> None:
    with opened(browser) as page:
        page.open(f"{large_pages}/rollouts", PAGES["rollouts"][1])
        tab_to(page, ".histogram .bar")
        page.press("Enter")
        page.until("/reward_from/.test(location.search) && document.querySelector('.bar.on')")
        page.open(f"{large_pages}/swarm?state=banned&search=node-5", "document.querySelector('tbody tr')")
        assert set(page.run("[...document.querySelectorAll('tbody .badge')].map(b => b.textContent)")) == {"banned"}
        assert_clean(page, large_pages)


def test_a_page_that_was_refused_its_news_asks_again(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser itself tries again only where the line broke, and never after an answer such as 503."""
    run = write_large_run(tmp_path / "run", steps=5, node_count=3, samples=128, answer_bytes=100)
    monkeypatch.setattr("shoal.page.app.MAX_STREAMS", 0)
    with serving_pages(run) as url, opened(browser) as page:
        page.open(url, "/page server away, trying again/.test(document.body.innerText)")
        monkeypatch.setattr("shoal.page.app.MAX_STREAMS", 256)
        page.until("document.querySelector('.run-name') && !/server away/.test(document.body.innerText)", 60.0)


def test_a_page_whose_server_has_ended_says_so_instead_of_loading_for_ever(browser: Browser, tmp_path: Path) -> None:
    run = write_large_run(tmp_path / "run", steps=5, node_count=3, samples=128, answer_bytes=100)
    with opened(browser) as page:
        with serving_pages(run) as url:
            page.open(url, "document.querySelectorAll('.uplot canvas').length >= 8")
        page.run("document.querySelector('nav a[href=\"/swarm\"]').click()")
        page.until("/This page did not load/.test(document.body.innerText)", 60.0)


def test_a_page_that_the_browser_kept_hears_of_news_when_it_is_shown_again(browser: Browser, tmp_path: Path) -> None:
    run = write_large_run(tmp_path / "run", steps=5, node_count=3, samples=128, answer_bytes=100)
    with serving_pages(run) as url, opened(browser) as page:
        page.open(url, "document.querySelectorAll('.uplot canvas').length >= 8")
        for kind in ("pagehide", "pageshow"):  # as when somebody leaves the page and comes back
            page.run(f"dispatchEvent(new PageTransitionEvent('{kind}', {{ persisted: true }}))")
        append_step(run, 5)
        page.until("/of step 5/.test(document.body.innerText)", 60.0)
        assert_clean(page, url)


def test_times_and_amounts_are_rounded_before_they_are_split_into_units(browser: Browser, large_pages: str) -> None:
    def shown(expression: str) -> object:
        return page.run(f"import('/static/format.js').then(({{ duration, compact }}) => {expression})")

    with opened(browser) as page:
        page.open(f"{large_pages}/join", PAGES["join"][1])
        assert shown("[9.96, 59.6, 119.7, 3599.6].map(duration)") == ["10 s", "1 min 0 s", "2 min 0 s", "1 h 0 min"]
        assert shown("[9999, 999949, 999950, 999995000].map(compact)") == ["9,999", "999.9 k", "1.00 M", "1.00 G"]
