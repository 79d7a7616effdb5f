"""A headless Chromium that is driven over a pipe: no package, no port."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """Where it is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """A tab, what it complained about, and what it asked the network for."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = requests, answers
        self._number, self._rest, self._session = 0, b"", ""
        self.complaints: list[str] = []
        self.fetched: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser for something and wait for the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            some = os.read(self._answers, 1 << 16)
            assert some, "the browser has gone"
            self._rest += some
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:600])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(parameters["args"])[:600])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.fetched.append(parameters["request"]["url"])

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Of the window; a phone has no scroll bars and minds the page's viewport."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def scheme(self, name: str) -> None:
        """Light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, path: Path) -> None:
        """Load a file and wait until it is there."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self.run("document.readyState") != "complete":
            pass

    def run(self, script: str) -> Any:
        """The value of an expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def middle(self, selector: str) -> tuple[float, float]:
        """The middle of the first such element, scrolled into view."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return x, y

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """An event of the mouse at a place of the window."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str) -> None:
        """Press and release in the middle of an element."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def hover(self, selector: str) -> None:
        """Move to the middle of an element."""
        self.mouse("mouseMoved", *self.middle(selector))

    def drag(self, selector: str, by: float) -> None:
        """Press in the middle of an element and release to the right of it."""
        x, y = self.middle(selector)
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseMoved", x + by / 2, y, button="left")
        self.mouse("mouseMoved", x + by, y, button="left")
        self.mouse("mouseReleased", x + by, y, button="left", clickCount=1)

    def picture(self, left: float, top: float, width: float, height: float) -> bytes:
        """A part of the page, also of what lies below the window, as PNG."""
        clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1}
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(answer["data"])


@contextlib.contextmanager
def browse(chromium: str, profile: Path) -> Iterator[Page]:
    """A fresh browser with one page."""
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
        os.close(requests_in)  # it ends when nobody can ask it anything
        process.wait(timeout=60)
        os.close(answers_out)
