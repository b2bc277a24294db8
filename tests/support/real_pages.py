"""Every page of a real run, opened and audited in a browser: of one that goes on, was killed, or has ended."""

import json
import urllib.request
from typing import Any

from tests.support.axe import assert_accessible
from tests.support.browser import Page

# For a machine on which much else is done: a quiet one takes a tenth of it.
WAIT_S = 400.0
# What is there once a page has its content, in a run that has trained a step.
PAGES = {
    "/": "document.querySelectorAll('.uplot canvas').length >= 7",
    # The relay stands below the origin, and the worker below the relay that it fetched from.
    "/swarm": "document.querySelectorAll('tbody tr').length >= 4 && [...document.querySelectorAll('.tree ul ul ul li')]"
    ".some((one) => one.textContent.startsWith('worker-0') && /relay/.test(one.parentNode.parentNode.textContent))",
    "/rollouts": "document.querySelectorAll('.group').length >= 1",
    "/verdicts?result=accepted": "document.querySelectorAll('tbody tr').length >= 1",
    "/ledger": "document.querySelector('#verified')",
    "/join": r"/pip install shoal-rl '[\s\S]+shoal worker --join http[\s\S]+shoal lend start http/"
    ".test(document.body.innerText)",
}


def document(url: str, name: str) -> Any:
    with urllib.request.urlopen(f"{url}/data/{name}", timeout=WAIT_S) as answer:
        return json.load(answer)


def found_out(url: str) -> list[dict[str, Any]]:
    """Files that were refused because of a sample: their evidence has its tokens."""
    return list(document(url, "verdicts?check=sampling")["files"])


def open_all(page: Page, url: str, state: str, axe: str) -> None:
    """Opens every page, follows a link, audits each, and looks for what went wrong meanwhile."""
    for path, ready in PAGES.items():
        page.open(url + path, ready, WAIT_S)
        page.until(f"document.querySelector('.bar-top .badge').textContent === '{state}'", WAIT_S)
        assert page.run("document.querySelectorAll('main h1').length") == 1
        assert_accessible(page, axe, path)
    page.open(f"{url}/swarm?role=worker", "document.querySelector('tbody .address')", WAIT_S)
    page.run("document.querySelector('tbody .address').click()")
    page.until("/^.node.0x/.test(location.pathname) && document.querySelector('.tile')", WAIT_S)
    assert_accessible(page, axe, "contributor")
    newest = found_out(url)[0]
    tokens = "document.querySelector('.finding') && document.querySelectorAll('.tokens li').length > 0"
    page.open(f"{url}/verdicts/{newest['step']}/{newest['submission']}", tokens, WAIT_S)
    assert "shoal replay RUN/evidence/step-" in page.text()
    assert_accessible(page, axe, "evidence token by token")
    assert page.faults == []
    assert [asked for asked in page.requests if not asked.startswith((f"{url}/", "data:"))] == []
