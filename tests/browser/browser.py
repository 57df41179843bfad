"""Chromium, driven over the WebDriver protocol: JSON over HTTP, which httpx speaks as it is.

https://www.w3.org/TR/webdriver2/ has the commands; those under `goog/` are chromedriver's own.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the member of an object that stands for an element
KEYS = {"enter": "\ue007", "escape": "\ue00c", "left": "\ue012", "right": "\ue014", "home": "\ue011", "tab": "\ue004"}
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


def missing() -> str:
    """Which of the two programs is not here; "" if both are."""
    return next((name for name in ("chromium", "chromedriver") if shutil.which(name) is None), "")


class Browser:
    """One window. Elements are named by CSS selectors."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client = client
        self._session = session

    def command(self, method: str, path: str, **body: Any) -> Any:
        """The value that a command answers with."""
        answer = self._client.request(
            method, f"/session/{self._session}/{path}", json=body if method == "POST" else None
        )
        value = answer.json()["value"]
        assert answer.status_code == 200, value
        return value

    def devtools(self, command: str, **parameters: Any) -> Any:
        """A command of Chromium's own protocol."""
        return self.command("POST", "goog/cdp/execute", cmd=command, params=parameters)

    def open(self, url: str) -> None:
        self.command("POST", "url", url=url)

    def look(self, width: int, height: int, scheme: str) -> None:
        """Take this size and colour scheme, `light` or `dark`."""
        phone = width < 600
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, script: str, *arguments: Any) -> Any:
        """What `script`, the body of a function, returns."""
        return self.command("POST", "execute/sync", script=script, args=list(arguments))

    def text(self, selector: str) -> str:
        """The text of the first such element that is seen; "" without one."""
        seen = "const found = document.querySelector(arguments[0]); return found ? found.innerText : ''"
        text: str = self.run(seen, selector)
        return text

    def count(self, selector: str) -> int:
        number: int = self.run("return document.querySelectorAll(arguments[0]).length", selector)
        return number

    def click(self, selector: str) -> None:
        self.command("POST", f"element/{self._find(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        """Press keys in an element, as a person does."""
        self.command("POST", f"element/{self._find(selector)}/value", text=text)

    def role_and_name(self, selector: str) -> tuple[str, str]:
        """What an element is to who does not see it."""
        element = self._find(selector)
        return self.command("GET", f"element/{element}/computedrole"), self.command(
            "GET", f"element/{element}/computedlabel"
        )

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        """Wait until `condition` is true; fail with `what` and what the page then says."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}; the page says: {self.text('body')!r}"
            time.sleep(0.05)

    def shoot(self, path: Path) -> None:
        """Save what is seen as a PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.command("GET", "screenshot")))

    def complaints(self) -> list[str]:
        """What the console has said since it was asked last: errors, warnings, what the policy refused."""
        entries = self.command("POST", "se/log", type="browser")
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def requested(self) -> list[str]:
        """The addresses that were asked for since this was asked last."""
        events = [
            json.loads(entry["message"])["message"] for entry in self.command("POST", "se/log", type="performance")
        ]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def _find(self, selector: str) -> str:
        found: str = self.command("POST", "element", using="css selector", value=selector)[ELEMENT]
        return found


@contextmanager
def started(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile in `profile`; it ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    driver = subprocess.Popen(["chromedriver", f"--port={port}", "--log-level=SEVERE"], stdout=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            session = _begin(client, profile)
            try:
                browser = Browser(client, session)
                browser.open("about:blank")  # a new tab of Chromium's asks for a hundred things of its own
                yield browser
            finally:
                client.delete(f"/session/{session}")
    finally:
        driver.terminate()
        driver.wait(10)


def _begin(client: httpx.Client, profile: Path) -> str:
    options = {
        "binary": shutil.which("chromium"),
        "args": [*_FLAGS, f"--user-data-dir={profile}"],
    }
    wanted = {
        "browserName": "chrome",
        "goog:chromeOptions": options,
        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
    }
    deadline = time.monotonic() + 20
    while True:
        with suppress(httpx.TransportError):
            answer = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
            assert "sessionId" in answer, answer
            session: str = answer["sessionId"]
            return session
        assert time.monotonic() < deadline, "chromedriver does not answer"
        time.sleep(0.1)
