"""A headless Chromium that reaches nothing but this machine, driven over two pipes: no library is needed for that."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PATIENCE = 60.0  # seconds


class Page:
    """A page in the browser, and the addresses that it asked for."""

    def __init__(self, write: int, read: int) -> None:
        self.asked: list[str] = []
        self.errors: list[str] = []
        self._write, self._read, self._rest, self._number, self._session = write, read, b"", 0, ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its answer."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = json.dumps({"id": self._number, "method": method, "params": params, **session})
        os.write(self._write, message.encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def open(self, page: Path | str) -> None:
        """Open a file or an address, and wait until it is there."""
        address = page if isinstance(page, str) else page.as_uri()
        self.send("Page.navigate", url=address)
        self.wait(f"location.href === '{address}' && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of an expression."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + _PATIENCE
        while not (value := self.run(f"!!({script})")):
            assert time.monotonic() < end, f"{script} stays {value}; errors: {self.errors}"
            time.sleep(0.05)

    def size(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the width and the height of the page, and whether it is dark."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def point(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        codes = {"Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def write(self, text: str) -> None:
        """Write into the field that has the focus, as a keyboard or a paste does."""
        self.send("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """Save a picture of the whole page."""
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._read, 1 << 16)
            assert part, "the browser is gone"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Network.requestWillBeSent":
            self.asked.append(event["params"]["request"]["url"])
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(event["params"]["exceptionDetails"]))
        if event.get("method") in ("Runtime.consoleAPICalled", "Log.entryAdded"):  # warnings too
            self.errors.append(str(event["params"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start Chromium with its data in a folder; skip where there is none."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine; on Debian: apt-get install chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder}"]
    options += [
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--disable-background-networking",
        "--no-first-run",
    ]
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    # Chromium reads from 3 and writes to 4.
    line = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", program, *options]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(line, pass_fds=(theirs_in, theirs_out), **quiet) as process:  # type: ignore[call-overload]
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Page(ours_out, ours_in)
        finally:
            process.terminate()
            process.wait(_PATIENCE)
            os.close(ours_out)
            os.close(ours_in)
