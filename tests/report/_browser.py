"""A real browser, driven through a pair of pipes, over which Chromium speaks JSON with a zero byte behind each message."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60.0


def browser_path() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a headless Chromium. `problems`: uncaught errors, and what it wrote to the console as an error or a warning."""

    def __init__(self, path: str, profile: Path) -> None:
        commands, answers = os.pipe(), os.pipe()
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-extensions",
            "--disable-dev-shm-usage",
        ]
        shell = f'exec "$0" "$@" 3<&{commands[0]} 4>&{answers[1]}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, path, *arguments, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(commands[0], answers[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands[0])
        os.close(answers[1])
        self._write, self._read = commands[1], answers[0]
        self._rest, self._number, self._session = b"", 0, ""
        self._events: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.requests: list[str] = []
        pages = [target for target in self("Target.getTargets")["targetInfos"] if target["type"] == "page"]
        target = pages[0]["targetId"] if pages else self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._read, 1 << 16)
            if not part:
                raise RuntimeError(f"the browser has gone, with exit code {self.process.poll()}")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self._events.append(message)
            self._note(message["method"], message.get("params", {}))
        return message

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(
                event["exceptionDetails"].get("exception", {}).get("description", event["exceptionDetails"]["text"])
            )
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.problems.append(f"console.{event['type']}: {event['args']}")
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.problems.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])

    def open(self, file: Path, width: int = 1280, height: int = 900, dark: bool = False, touch: bool = False) -> None:
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self("Emulation.setTouchEmulationEnabled", enabled=touch)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self("Emulation.setEmulatedMedia", features=features)
        self._events.clear()
        self.problems.clear()
        self.requests.clear()
        self("Page.navigate", url=file.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._next()
        self.settle()

    def settle(self) -> None:
        """Let what was asked for be drawn."""
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def js(self, expression: str) -> Any:
        answer = self("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"].get("exception", {}).get("description"))
        return answer["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str, count: int = 1) -> None:
        x, y = self.middle(selector)
        for number in range(1, count + 1):
            self.mouse("mousePressed", x, y, button="left", clickCount=number)
            self.mouse("mouseReleased", x, y, button="left", clickCount=number)
        self.settle()

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.mouse("mousePressed", *start, button="left", clickCount=1)
        self.mouse("mouseMoved", *((a + b) / 2 for a, b in zip(start, end, strict=True)), button="left", buttons=1)
        self.mouse("mouseMoved", *end, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)
        self.settle()

    def middle(self, selector: str) -> tuple[float, float]:
        place = self.js(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)}); node.scrollIntoView({{block: 'center'}});"
            " const box = node.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; })()"
        )
        return place[0], place[1]

    def picture(self, file: Path, whole: bool = True) -> None:
        clip = {}
        if whole:
            size = self.js("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
            clip = {"clip": {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}}
        data = self("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)["data"]
        file.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        os.close(self._write)
        self.process.kill()
        self.process.wait()
        os.close(self._read)
