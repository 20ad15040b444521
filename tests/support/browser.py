"""Debian's Chromium without a screen, driven by its DevTools protocol: real pages, keys, console and requests."""

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import pytest

from support.processes import PATIENCE_S

AXE_VERSION = "4.14.1"
_KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "ArrowDown": 40, "Tab": 9, "Enter": 13}


class Browser:
    """One browser with one page, for the duration of the `with` block.

    Attributes:
        errors: Errors of the console, exceptions of scripts, and requests that failed.
        hosts: Every host that was asked.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self.dialogs: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._folder = Path(tempfile.mkdtemp(prefix="tracejudge-browser-"))
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._events: list[str] = []

    def __enter__(self) -> Self:
        program = shutil.which("chromium")
        if program is None:
            pytest.skip("needs Debian's chromium")
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--mute-audio")
        quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server")
        self._process = subprocess.Popen(
            [program, *options, *quiet, "--remote-debugging-port=0", f"--user-data-dir={self._folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        told, end = self._folder / "DevToolsActivePort", time.monotonic() + 60
        while not (told.exists() and told.read_text().count("\n")):
            assert time.monotonic() < end, "the browser did not start"
            time.sleep(0.05)
        self._run(self._connect(told.read_text().split()[0]))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        # The socket first: aiohttp reports a connection that its session closes as unclosed.
        self._run(self._socket.close())
        self._run(self._session.close())
        self._process.kill()
        self._process.wait()
        self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, url: str) -> None:
        """Load a page, with its scripts."""
        self._events.clear()
        self.call("Page.navigate", url=url)
        self.loaded()

    def loaded(self) -> None:
        """Wait until the page that is being loaded is there."""
        self._run(self._until(lambda: "Page.loadEventFired" in self._events))
        self._events.clear()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        return self._run(self._call(method, parameters))

    def evaluate(self, script: str) -> Any:
        """Return the value of a script, also of a promise."""
        reply = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key; a page that follows is waited for with `loaded`."""
        code = {"windowsVirtualKeyCode": _KEYS.get(key, ord(key[0].upper()))}
        # Links follow the character of the key.
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the screen, and whether its user prefers dark pages."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def scripts(self, *, enabled: bool) -> None:
        """Run scripts of pages, or not."""
        self.call("Emulation.setScriptExecutionDisabled", value=not enabled)

    def network(self, bytes_s: float) -> None:
        """Receive at this rate, as through a slow network; -1 for no limit."""
        rates = {"downloadThroughput": bytes_s, "uploadThroughput": -1}
        self.call("Network.emulateNetworkConditions", offline=False, latency=0, **rates)

    def headers(self, headers: Mapping[str, str]) -> None:
        """Send these headers with each request."""
        self.call("Network.setExtraHTTPHeaders", headers=headers)

    def screenshot(self, path: Path) -> None:
        """Save what the screen shows."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def violations(self) -> list[str]:
        """Return what axe-core finds serious or critical on the page."""
        self.evaluate(axe_source())
        # It describes all nodes of violations, and one of what passes.
        run = "axe.run(document, {resultTypes: ['violations']})"
        faults = self.evaluate(f"{run}.then(r => r.violations.map(v => [v.impact, v.id, v.nodes[0].html]))")
        return [f"{impact} {name}: {html}" for impact, name, html in faults if impact in {"serious", "critical"}]

    async def _connect(self, port: str) -> None:
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json") as answer:
            targets = await answer.json()
        address = next(target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page")
        self._socket = await self._session.ws_connect(address, max_msg_size=0)

    async def _call(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        self._number += 1
        number = self._number
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        await self._until(lambda: number in self._answers)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer)
        values: dict[str, Any] = answer["result"]
        return values

    async def _until(self, is_done: Any) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_done():
                message = json.loads((await self._socket.receive()).data)
                if "id" in message:
                    self._answers[message["id"]] = message
                else:
                    self._note(message["method"], message["params"])

    def _note(self, method: str, values: dict[str, Any]) -> None:
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(values["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and values["type"] in {"error", "warning", "assert"}:
            self.errors.append(str(values["args"]))
        elif method == "Log.entryAdded" and values["entry"]["level"] in {"error", "warning"}:
            self.errors.append(str(values["entry"]))
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(values["message"])
        elif method == "Network.requestWillBeSent":
            address = urlsplit(values["request"]["url"])
            if address.scheme not in {"data", "blob", "about"}:
                self.hosts.add(address.netloc)

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)


def axe_source() -> str:
    """Return the script of axe-core, from npm; it is loaded once into `.browser/`."""
    folder = Path(__file__).parents[2] / ".browser" / AXE_VERSION
    script = folder / "package" / "axe.min.js"
    if not script.exists():
        folder.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(
            ["npm", "pack", "--silent", f"axe-core@{AXE_VERSION}"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        shutil.unpack_archive(folder / packed.stdout.strip().splitlines()[-1], folder)
    return script.read_text()
