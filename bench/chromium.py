"""A headless Chromium, driven over the DevTools protocol, for tests, screenshots and measurements of the
page.

The protocol is https://chromedevtools.github.io/devtools-protocol over ``websockets``, so only Chromium
itself needs to be installed (Debian: ``apt-get install chromium``).
"""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

Json = dict[str, Any]
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions",
    "--disable-sync", "--hide-scrollbars=false", "--force-color-profile=srgb", "--remote-debugging-port=0",
)  # fmt: skip
_START_SECONDS = 60.0
_KEYS = {"/": ("Slash", 191), "?": ("Slash", 191), "Escape": ("Escape", 27), "Enter": ("Enter", 13),
         "ArrowDown": ("ArrowDown", 40), "ArrowUp": ("ArrowUp", 38), "ArrowLeft": ("ArrowLeft", 37),
         "ArrowRight": ("ArrowRight", 39), "End": ("End", 35), "Home": ("Home", 36), "Tab": ("Tab", 9),
         "PageDown": ("PageDown", 34), "PageUp": ("PageUp", 33)}  # fmt: skip


def find_chromium() -> str | None:
    """The path of a Chromium or Chrome, None if there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Page:
    """One tab. ``requests`` are the URLs that it has requested, ``problems`` its errors and violated
    policies."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._numbers = connection, itertools.count(1)
        self.requests: list[str] = []
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> Json:
        """The result of a protocol method. Raises RuntimeError if it fails."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=60))
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: Json = message["result"]
                return result
            self._note(message)

    def run(self, expression: str) -> Any:  # noqa: ANN401
        """The value of a JavaScript expression, awaited. Raises RuntimeError if it throws."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"].get("exception", {}).get("description")))
        return found["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 30) -> None:
        """Return when an expression is true. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.run(f"Boolean({expression})"):
                return
            time.sleep(0.02)
        raise TimeoutError(f"never true: {expression}; {self.problems}")

    def open(self, url: str) -> None:
        """Navigate to a URL, and clear ``requests`` and ``problems``."""
        self.requests.clear()
        self.problems.clear()
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """Emulate ``prefers-color-scheme``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def press(self, key: str) -> None:
        """Press and release a key, like the keyboard."""
        code, number = _KEYS.get(key, (f"Key{key.upper()}", ord(key.upper()[0])))
        event = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        for key in text:
            self.press(key)

    def click(self, x: float, y: float) -> None:
        """Click at a point of the window."""
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self) -> bytes:
        """A screenshot of the window, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def _note(self, message: Json) -> None:
        method, about = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(about["exceptionDetails"].get("exception", {}).get("description")))
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.problems.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")


@contextmanager
def chromium(path: str, width: int = 1440, height: int = 900) -> Iterator[Page]:
    """A tab of a new browser with a separate profile."""
    with tempfile.TemporaryDirectory(prefix="stowage-chromium-", ignore_cleanup_errors=True) as profile:
        command = [path, *_ARGUMENTS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            tab = _tab(process, Path(profile))
            # The browser does not answer a closing handshake while events of the page are unread.
            with connect(tab, max_size=None, ping_interval=None, close_timeout=0.1) as connection:
                page = Page(connection)
                page.resize(width, height)
                yield page
        finally:
            process.terminate()
            process.wait(30)


def _tab(process: subprocess.Popen[bytes], profile: Path) -> str:
    """The WebSocket of the first tab."""
    end = time.monotonic() + _START_SECONDS
    port_file = profile / "DevToolsActivePort"
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"Chromium ended with {process.returncode}")
        if port_file.exists() and (lines := port_file.read_text().split()):
            return _first_tab(int(lines[0]))
        time.sleep(0.05)
    raise TimeoutError("Chromium did not start")


def _first_tab(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
        tabs = json.load(answer)
    return str(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
