"""Headless Chromium through its debugging pipe: pages, clicks, keys, errors, screenshots.

Two pipes and JSON are all it needs (no driver, no websocket): Chromium reads commands from file
descriptor 3 and writes answers and events to 4, each ended by a zero byte.
"""

import base64
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--force-device-scale-factor=1", "--remote-debugging-pipe"),
)


def find_chromium() -> str | None:
    """Return the browser's program; None where it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page of a fresh Chromium, with everything it said on the way."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = " ".join([f"'{program}'", *FLAGS, f"'--user-data-dir={profile}'", "about:blank"])
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", f"exec {command} 3<&{to_browser} 4>&{from_browser}"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        page = wait_until(self._find_page)
        attached = self.send("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the browser's answer to a command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self.events.append(answer)

    def open(self, path: Path) -> None:
        """Open a file and wait until it is loaded."""
        self.events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        # The page that was open before is complete as well, until this one takes its place.
        while not any(each.get("method") == "Page.loadEventFired" for each in self.events):
            self.events.append(self._receive())
        state = "document.readyState + location.protocol"
        wait_until(lambda: self.evaluate(state) == "completefile:")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def click(self, expression: str) -> None:
        """Press and release the left button in the middle of an element."""
        found = self.evaluate(
            f"(() => {{ const e = {expression}; e.scrollIntoView({{block: 'center'}}); "
            "const r = e.getBoundingClientRect(); return [r.x + r.width/2, r.y + r.height/2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                **{"type": kind, "x": found[0], "y": found[1], "button": "left", "clickCount": 1},
            )

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            pressed = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
            if text and kind == "keyDown":
                pressed["text"] = text
            self.send("Input.dispatchKeyEvent", **pressed)

    def screenshot(self, path: Path, *, scheme: str = "light", width: int = 1280) -> None:
        """Write a picture of the whole page."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self) -> list[str]:
        """Return errors and warnings of the console, and uncaught exceptions."""
        self.evaluate("0")
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            if event.get("method") == "Log.entryAdded":
                found.append(str(params["entry"]))
            if event.get("method") == "Runtime.consoleAPICalled":
                found.append(str(params["args"]))
        return found

    def requests(self) -> list[str]:
        """Return every address that was asked for."""
        self.evaluate("0")
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def _find_page(self) -> dict[str, Any] | None:
        targets = self.send("Target.getTargets")["targetInfos"]
        return next((dict(each) for each in targets if each["type"] == "page"), None)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            wait_until(self._has_spoken, running=self._process, every_s=0.002)
            chunk = os.read(self._read, 1 << 16)
            assert chunk, "Chromium has closed its pipe"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _has_spoken(self) -> bool:
        return bool(select.select([self._read], [], [], 0)[0])
