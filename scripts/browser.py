"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

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
                *(f"--user-data-dir={self._directory}", "about:blank"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.startswith("DevTools listening on "):
                break
        else:
            self._process.stderr.close()
            self._process.wait()
            shutil.rmtree(self._directory, ignore_errors=True)
            raise RuntimeError(f"{program} did not start")
        threading.Thread(target=self._process.stderr.read, daemon=True).start()
        port = urlsplit(line.split()[-1]).port
        with urlopen(f"http://127.0.0.1:{port}/json") as found:
            page = next(each for each in json.load(found) if each["type"] == "page")
        self._socket = _WebSocket(page["webSocketDebuggerUrl"])
        self._number = 0
        self.errors: list[str] = []
        """What pages have complained of."""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Calls a method of the protocol; returns its result."""
        self._number += 1
        number = self._number
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            found = json.loads(self._socket.receive())
            if found.get("id") == number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]
            self._note(found)

    def run(self, script: str) -> Any:
        """Runs a script in the page; returns its value."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, script: str, what: str) -> Any:
        """Waits until a script gives something true."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self.run(script)):
            if time.monotonic() > deadline:
                text = self.run("document.body.innerText")
                raise AssertionError(f"{what}: not within {PATIENCE_S:.0f} s; the page says {text}")
            time.sleep(0.1)
        return found

    def size(self, width: int, height: int, scale: float = 1.0, *, dark: bool = False) -> None:
        """Sets the screen, and which colours its user prefers."""
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
        """Draws the screen into a file."""
        found = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def key(self, key: str, text: str = "") -> None:
        """Presses a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text)

    def close(self) -> None:
        """Ends the browser."""
        self._socket.close()
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(event["params"]["exceptionDetails"].get("exception", event)))
        elif event.get("method") == "Log.entryAdded":
            entry = event["params"]["entry"]
            if entry["level"] == "error":
                self.errors.append(f"{entry['text']} {entry.get('url', '')}")


class _WebSocket:
    """As much of RFC 6455 as a DevTools client needs: texts, both ways."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), PATIENCE_S)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {parts.path} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self._file = self._socket.makefile("rb")
        while self._file.readline().strip():
            continue

    def send(self, text: str) -> None:
        body, mask = text.encode(), os.urandom(4)
        size = len(body)
        head = b"\x81" + (
            bytes([0x80 | size])
            if size < 126
            else struct.pack(">BH", 0x80 | 126, size)
            if size < 65_536
            else struct.pack(">BQ", 0x80 | 127, size)
        )
        masked = bytes(each ^ mask[n % 4] for n, each in enumerate(body))
        self._socket.sendall(head + mask + masked)

    def receive(self) -> str:
        parts: list[bytes] = []
        while True:
            first, second = self._file.read(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack(">H", self._file.read(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", self._file.read(8))
            parts.append(self._file.read(size))
            if first & 0x80:
                return b"".join(parts).decode()

    def close(self) -> None:
        self._socket.close()
