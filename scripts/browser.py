"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from websocket import create_connection

PATIENCE_S = 30.0


class Browser:
    """A headless Chromium with one page, driven by its DevTools protocol."""

    def __init__(self, program: str) -> None:
        self._directory = tempfile.mkdtemp(prefix="dafka-browser-")
        self._process = subprocess.Popen(
            [
                program,
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-port=0"),
                # It connects to the shown pages only.
                *("--disable-background-networking", "--disable-component-update"),
                *("--disable-sync", "--disable-quic"),
                *(f"--user-data-dir={self._directory}", "about:blank"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        self._says = self._process.stderr
        for line in self._says:
            if line.startswith("DevTools listening on "):
                break
        else:
            self._says.close()
            self._process.wait()
            shutil.rmtree(self._directory, ignore_errors=True)
            raise RuntimeError(f"{program} did not start")
        self._told = threading.Thread(target=self._says.read, daemon=True)
        self._told.start()
        port = urlsplit(line.split()[-1]).port
        with urlopen(f"http://127.0.0.1:{port}/json") as found:
            page = next(each for each in json.load(found) if each["type"] == "page")
        self._socket = create_connection(
            page["webSocketDebuggerUrl"], PATIENCE_S, suppress_origin=True
        )
        self._number = 0
        self.errors: list[str] = []  # errors of the pages
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol; return its result."""
        self._number += 1
        number = self._number
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            found = json.loads(self._socket.recv())
            if found.get("id") == number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]
            self._note(found)

    def run(self, script: str) -> Any:
        """Run a script in the page; return its value, None if the page is left meanwhile."""
        try:
            found = self.call(
                "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
            )
        except RuntimeError as error:
            if "navigated" in str(error):
                return None
            raise
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, script: str, what: str) -> Any:
        """Wait until a script returns a true value."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self.run(script)):
            if time.monotonic() > deadline:
                text = self.run("document.body.innerText")
                raise AssertionError(f"{what}: not within {PATIENCE_S:.0f} s; the page says {text}")
            time.sleep(0.1)
        return found

    def size(self, width: int, height: int, scale: float = 1.0, *, dark: bool = False) -> None:
        """Set the screen, and the colours that its user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """Draw the screen into a file."""
        found = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def key(self, key: str, text: str = "") -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text)

    def leave(self) -> None:
        """Leave the page; forget its errors, its cookies and its screen."""
        self.call("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank'", "the page is left")
        self.call("Network.clearBrowserCookies")
        self.call("Emulation.clearDeviceMetricsOverride")
        self.call("Emulation.setEmulatedMedia", features=[])
        self.errors = []

    def close(self) -> None:
        """End the browser."""
        self._socket.close()
        self._process.terminate()
        self._process.wait()
        self._told.join()
        self._says.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(event["params"]["exceptionDetails"].get("exception", event)))
        elif event.get("method") == "Log.entryAdded":
            entry = event["params"]["entry"]
            if entry["level"] == "error":
                self.errors.append(f"{entry['text']} {entry.get('url', '')}")
