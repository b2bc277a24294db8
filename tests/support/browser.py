"""A real browser for tests and benchmarks: Debian's Chromium, driven by its own protocol over one websocket.

No other driver is needed: a page is opened, what went wrong in it is collected, and expressions are evaluated in it.
"""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from shoal.errors import BenchError

START_S = 120.0
ANSWER_S = 120.0
KEYS = {"Tab": 9, "Enter": 13}
# What a page may ask for besides its own server: nothing. Names resolve to nothing, and nothing is fetched by itself.
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--mute-audio",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def find_chromium() -> Path:
    """The machine's Chromium; BenchError that says how to get it."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return Path(found)
    raise BenchError("chromium is not on PATH; as root: python -m tests.support.browser")


def install() -> None:
    """Installs Debian's package, which needs root: a browser has too many libraries to be unpacked into a cache."""
    with suppress(BenchError):
        find_chromium()
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise BenchError("chromium: installing it takes root and apt-get; tests that need it are skipped")
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-qq", "--no-install-recommends", "chromium"]):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
        if done.returncode:
            raise BenchError(f"chromium: `{' '.join(command)}` ended with {done.returncode}: {done.stderr[-500:]}")


class Page:
    """One tab. `faults` has every console error, exception, blocked resource and failed request since it was opened."""

    def __init__(self, browser: "Browser", session: str, target: str) -> None:
        self._browser, self._session, self.target = browser, session, target
        self.requests: list[str] = []
        self.faults: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, session=self._session, **params)

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def prefer(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str, ready: str, within_s: float = ANSWER_S) -> float:
        """Opens a URL and waits until an expression is true there; gives the seconds that it took."""
        began = time.monotonic()
        self.call("Page.navigate", url=url)
        self.until(ready, within_s)
        return time.monotonic() - began

    def run(self, expression: str) -> Any:
        """The value of an expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression[:200]}: {answer['exceptionDetails'].get('exception', answer)}")
        return answer["result"].get("value")

    def until(self, expression: str, within_s: float = ANSWER_S) -> None:
        deadline = time.monotonic() + within_s
        while True:
            with suppress(AssertionError, TimeoutError):  # the page may be between two documents, or have no core
                if self.run(f"Boolean({expression})"):
                    return
            if time.monotonic() > deadline:
                text = self.run("document.body && document.body.innerText.slice(0, 600)")
                raise AssertionError(f"not within {within_s:g} s: {expression}\nfaults: {self.faults}\npage: {text}")
            time.sleep(0.01)

    def press(self, key: str) -> None:
        """Presses and lets go of Tab or Enter, as a keyboard does: the page hears events that it may trust."""
        typed = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            said = typed if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key], **said)

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def picture(self, path: Path, *, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._browser.forget(self)

    def hear(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Network.loadingFailed" if not params.get("canceled"):
                self.faults.append(f"request failed: {params.get('errorText')} {params.get('blockedReason', '')}")
            case "Runtime.exceptionThrown":
                self.faults.append(f"exception: {json.dumps(params['exceptionDetails'])[:500]}")
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.faults.append(f"console: {[a.get('value', a.get('description')) for a in params['args']]}")
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.faults.append(f"log: {params['entry']['text'][:300]} {params['entry'].get('url', '')}")
            case "Audits.issueAdded" if params["issue"]["code"] == "ContentSecurityPolicyIssue":
                self.faults.append(f"policy: {json.dumps(params['issue']['details'])[:500]}")


class Browser:
    """A headless Chromium with a profile of its own, which goes with it."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="shoal-chromium-", ignore_cleanup_errors=True)
        home = Path(self._profile.name)
        flags = [*FLAGS, f"--user-data-dir={home}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        environment = {**os.environ, "HOME": str(home), "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
        self._process = subprocess.Popen(
            [str(find_chromium()), *flags, "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self._numbers = itertools.count(1)
        self._pages: dict[str, Page] = {}
        self._socket = self._connect(home / "DevToolsActivePort")

    def _connect(self, file: Path) -> ClientConnection:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError, IndexError):
                port, path = file.read_text().split("\n")[:2]
                return connect(f"ws://127.0.0.1:{port}{path}", max_size=None, open_timeout=START_S)
            time.sleep(0.02)
        self.close()
        raise BenchError(f"chromium: did not start within {START_S:.0f} s")

    def call(self, method: str, session: str = "", **params: Any) -> Any:
        """One command and its answer; events that come in between go to their pages."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        self._socket.send(json.dumps(message))
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = json.loads(self._socket.recv(max(0.01, deadline - time.monotonic())))
            if answer.get("id") == number:
                if "error" in answer:
                    raise BenchError(f"chromium: {method}: {answer['error']}")
                return answer["result"]
            if "id" not in answer and (page := self._pages.get(answer.get("sessionId", ""))):
                page.hear(answer["method"], answer["params"])

    def page(self, width: int = 1280, height: int = 900) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page.__new__(Page)
        self._pages[session] = page
        page.__init__(self, session, target)  # type: ignore[misc]
        page.size(width, height)
        return page

    def forget(self, page: Page) -> None:
        self.call("Target.closeTarget", targetId=page.target)
        self._pages = {session: other for session, other in self._pages.items() if other is not page}

    def close(self) -> None:
        with suppress(Exception):
            self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@contextmanager
def opened(browser: Browser, width: int = 1280, height: int = 900) -> Iterator[Page]:
    page = browser.page(width, height)
    try:
        yield page
    finally:
        page.close()


if __name__ == "__main__":
    install()
