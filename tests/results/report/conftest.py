"""A real browser for the tests of the page, driven over the DevTools protocol."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pagesim.results.report import write_report
from tests.results.report.reading import stored

STARTS_WITHIN_S = 30
ANSWERS_WITHIN_S = 300
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Browser:
    """A headless Chromium with one page, and all that the page said, asked for or failed at.

    Args:
        address: of the DevTools websocket of the browser.

    Attributes:
        complaints: errors and warnings of the page's console, exceptions, violations of its policy.
        requests: addresses that the page asked for, other than its own file and data within it.
    """

    def __init__(self, address: str) -> None:
        import websocket

        self.socket = websocket.create_connection(address, timeout=ANSWERS_WITHIN_S, suppress_origin=True)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.address = ""
        self._number = 0
        self._session: str | None = None
        self._target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(1400, 1000)

    def close(self) -> None:
        """Close the page; another comes to the front."""
        self._session = None
        self.call("Target.closeTarget", targetId=self._target)
        self.socket.close()

    def call(self, method: str, **arguments: Any) -> Any:
        """Send a command and return what is answered."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": arguments}
        if self._session is not None:
            message["sessionId"] = self._session
        self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._hear(answer)

    def _hear(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(told["args"])[:500])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = told["request"]["url"]
            if not url.startswith(("data:", "blob:")) and url != self.address:
                self.requests.append(url)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Choose the window's size, in CSS pixels, and what the user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, file: Path, *, drawn: bool = True) -> None:
        """Open a file from disk and wait until it can be used, or until all of it is drawn."""
        self.address = file.resolve().as_uri()
        self.complaints.clear()
        self.requests.clear()
        self.call("Page.navigate", url=self.address)
        self.wait("window.pagesimReport" + (" && pagesimReport.drawn" if drawn else ""))

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, within_s: float = 30.0) -> None:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + within_s
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"{condition} did not come true; {self.complaints}"
            time.sleep(0.02)

    def choose(self, control: str, value: str) -> None:
        """Give a control of the page, by its id, a value, as a user would."""
        self.run(
            f"(() => {{ const control = document.getElementById('{control}');"
            f" control.value = {json.dumps(value)};"
            " for (const kind of ['input', 'change']) control.dispatchEvent(new Event(kind)); })()"
        )

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key and let it go."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, " ": 32}
        common = {"key": key, "code": "Space" if key == " " else key, "modifiers": 8 if shift else 0}
        common["windowsVirtualKeyCode"] = codes[key]
        text = {"text": " "} if key == " " else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def point(self, x: float, y: float) -> None:
        """Move the mouse to a place in the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def goes_dark(self) -> None:
        """See that the page can be dark, sticks out nowhere, complained of nothing and asked for nothing."""
        self.run("document.getElementById('theme').click()")
        self.wait("document.documentElement.dataset.theme === 'dark'")
        assert self.run("document.documentElement.scrollWidth <= innerWidth"), (
            "nothing sticks out at the side"
        )
        assert self.complaints == []
        assert self.requests == []


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Browser]]:
    """Return a function that opens a new page in a headless Chromium."""
    pytest.importorskip("websocket", reason="websocket-client is not installed")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("chromium is not installed")
    profile = tmp_path_factory.mktemp("chromium")
    command = [
        *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-port=0"),
        *(f"--user-data-dir={profile}", "about:blank"),
    ]
    environment = {**os.environ, "HOME": str(profile)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        announced = profile / "DevToolsActivePort"
        end = time.monotonic() + STARTS_WITHIN_S
        while not (announced.exists() and announced.read_text().count("\n")):
            assert process.poll() is None, "chromium ended at once"
            assert time.monotonic() < end, "chromium did not start"
            time.sleep(0.05)
        port, path = announced.read_text().split("\n")[:2]
        yield lambda: Browser(f"ws://127.0.0.1:{port}{path}")
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def standing(chromium: Callable[[], Browser], page: Path) -> Iterator[Browser]:
    """Return a browser in which the module's page stands open."""
    browser = chromium()
    browser.open(page)
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium: Callable[[], Browser]) -> Iterator[Browser]:
    """Return an empty page of a real browser."""
    page = chromium()
    yield page
    page.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page about two systems, of which one swaps."""
    folder = tmp_path_factory.mktemp("two")
    folders = [stored(folder / "a", policy="orca-pow2"), stored(folder / "b", policy="vllm-sosp", n=3)]
    write_report(folders, folder / "report.html", instants=120)
    return folder / "report.html"
