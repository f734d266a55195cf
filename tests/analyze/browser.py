"""A headless Chromium for tests, driven over its DevTools pipe: no driver, no port, no package."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")) if p), None)
_QUIET = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars")


class Browser:
    """One browser with one page. ``errors``: exceptions and error messages of the page. ``requests``: addresses it asked for."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        command = [CHROMIUM, *_QUIET, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        launch = 'exec "$@" 3<&"$PKB_IN" 4>&"$PKB_OUT"'  # the pipe's ends have fixed numbers in the browser
        environment = {**os.environ, "PKB_IN": str(theirs_in), "PKB_OUT": str(theirs_out)}
        self._process = subprocess.Popen(
            ["bash", "-c", launch, "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True}, session=None)
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", {})

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, parameters: dict[str, Any], session: str | None = "", seconds: float = 60) -> dict[str, Any]:
        """One command of the DevTools protocol; raises RuntimeError with the browser's message when it fails."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session or self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self._note(answer)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("the browser does not answer")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.errors.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])

    def open(self, page: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file and wait until it says that it is drawn."""
        self.resize(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", {"media": "", "features": scheme})
        self.call("Page.navigate", {"url": "about:blank"})
        self.call("Page.navigate", {"url": page.resolve().as_uri()})
        self.wait("document.documentElement.dataset.ready === 'true'")

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", size)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page, promises awaited; raises RuntimeError for what it throws."""
        found = self.call("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", "the script failed"))
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Until an expression holds, looked at once per frame of the page."""
        poll = f"""new Promise((resolve, reject) => {{
            const end = Date.now() + {int(seconds * 1000)};
            const look = () => (({condition}) ? resolve(true) : Date.now() > end ? reject(new Error('never: ' + {json.dumps(condition)}))
                : setTimeout(look, 20));
            look(); }})"""
        while True:
            try:
                self.call("Runtime.evaluate", {"expression": "1"})
                found = self.call("Runtime.evaluate", {"expression": poll, "awaitPromise": True}, seconds=seconds + 10)
            except RuntimeError as error:
                if "navigat" in str(error) or "context" in str(error):  # the page was still being replaced
                    continue
                raise
            if "exceptionDetails" in found:
                raise TimeoutError(f"never came true: {condition}; page errors: {self.errors}")
            return

    def screenshot(self, file: Path, whole: bool = False) -> None:
        data = self.call(
            "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole, **(self._whole() if whole else {})}
        )
        file.write_bytes(base64.b64decode(data["data"]))

    def _whole(self) -> dict[str, Any]:
        size = self.call("Page.getLayoutMetrics", {})["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def pdf(self, file: Path) -> None:
        data = self.call("Page.printToPDF", {"printBackground": True, "preferCSSPageSize": True})
        file.write_bytes(base64.b64decode(data["data"]))
