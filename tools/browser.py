"""A headless Chromium that is driven over a pipe: no package, no port."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """Return the path of the installed browser, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserError(Exception):
    """What the browser answers to a call that failed."""


class Page:
    """A tab, with its console errors and its network requests."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = requests, answers
        self._number, self._rest, self._session = 0, b"", ""
        self.problems: list[str] = []
        self.requested: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(answer["error"]["message"])
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            received = os.read(self._answers, 1 << 16)
            assert received, "the browser has exited"
            self._rest += received
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._record(message.get("method", ""), message.get("params", {}))
        return message

    def _record(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:600])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(parameters["args"])[:600])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Set the size of the window; a mobile one has no scroll bars and respects the page's viewport."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def scheme(self, name: str) -> None:
        """Set the colour scheme: light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, path: Path) -> None:
        """Load a file and wait until it is complete."""
        self.visit(path.resolve().as_uri())

    def visit(self, url: str) -> None:
        """Load an address and wait until it is complete."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def wait(self, script: str, seconds: float = 60.0) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self._holds(script):
            assert time.monotonic() < deadline, f"still not so after {seconds:g} seconds: {script}"
            time.sleep(0.02)

    def _holds(self, script: str) -> bool:
        try:
            return bool(self.run(f"Boolean({script})"))
        except BrowserError as error:
            if "navigated" not in str(error):
                raise
            return False  # the page it was asked of has just been left

    def run(self, script: str) -> Any:
        """Return the value of an expression, or of the promise that it is."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def centre(self, selector: str, right: float = 0.0) -> tuple[float, float]:
        """Scroll the first matching element into view, and return its centre, shifted to the right by some pixels."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return x + right, y

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Dispatch a mouse event at a position in the window."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str, right: float = 0.0) -> None:
        """Press and release at the centre of an element, or so many pixels to its right."""
        x, y = self.centre(selector, right)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def hover(self, selector: str, right: float = 0.0) -> None:
        """Move to the centre of an element, or so many pixels to its right."""
        self.mouse("mouseMoved", *self.centre(selector, right))

    def drag(self, selector: str, by: float) -> None:
        """Press at the centre of an element and release `by` pixels to the right."""
        x, y = self.centre(selector)
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseMoved", x + by / 2, y, button="left")
        self.mouse("mouseMoved", x + by, y, button="left")
        self.mouse("mouseReleased", x + by, y, button="left", clickCount=1)
        self.run("new Promise((done) => setTimeout(done))")  # until then D3 ignores clicks

    def picture(self, left: float, top: float, width: float, height: float) -> bytes:
        """Return a part of the page, also below the window, as PNG."""
        clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1}
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(answer["data"])


@contextlib.contextmanager
def browse(chromium: str, profile: Path) -> Iterator[Page]:
    """Start a new browser with one page."""
    requests_out, requests_in = os.pipe()
    answers_out, answers_in = os.pipe()
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
    ]
    # the browser reads from its descriptor 3 and writes to 4
    shell = f'exec "$0" "$@" 3<&{requests_out} 4>&{answers_in}'
    process = subprocess.Popen(
        ["bash", "-c", shell, chromium, *options],
        pass_fds=(requests_out, answers_in),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(requests_out)
    os.close(answers_in)
    try:
        yield Page(requests_in, answers_out)
    finally:
        os.close(requests_in)  # the browser exits when this pipe is closed
        process.wait(timeout=60)
        os.close(answers_out)
