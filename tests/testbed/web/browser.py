"""A headless Chromium over its DevTools protocol, without a driver program.

No name resolves in it except addresses of this machine, and it lists what pages request.
"""

import base64
import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.abc

LIMIT_S = 120.0
"""Limit of steps that take a second on an idle machine."""


def find_chromium() -> str | None:
    """Return the program; None if there is none."""
    names = "chromium", "chromium-browser", "google-chrome"
    return next((found for name in names if (found := shutil.which(name))), None)


class Page:
    """The one page of the browser."""

    def __init__(self, socket: "aiohttp.ClientWebSocketResponse[bool]") -> None:
        self._socket, self._ids = socket, itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self.requests: list[str] = []
        """Addresses that the page has requested."""
        self.sent: list[str] = []
        """Texts that the page has sent over its WebSocket."""
        self.received = ""
        """What the page has received of a terminal."""
        self.console: list[str] = []
        """Errors in the console, such as what the policy of the page blocked."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, and note events until its answer."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        with anyio.fail_after(LIMIT_S):
            while number not in self._answers:
                self._note(await self._socket.receive_json())
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer)
        return answer.get("result", {})  # type: ignore[no-any-return]  # JSON of Chromium

    def _note(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
        elif message["method"] == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        elif message["method"] == "Network.webSocketCreated":
            self.requests.append(message["params"]["url"])
        elif message["method"] == "Network.webSocketFrameSent":
            self.sent.append(message["params"]["response"]["payloadData"])
        elif message["method"] == "Network.webSocketFrameReceived":
            frame = message["params"]["response"]
            if frame["opcode"] == 2:
                self.received += base64.b64decode(frame["payloadData"]).decode(errors="replace")
        elif message["method"] == "Log.entryAdded":
            self.console.append(message["params"]["entry"]["text"])

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page, of its promise if it is one."""
        result = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def wait_until(self, holds: Callable[[], Any], what: str) -> None:
        """Wait until an awaitable condition holds."""
        deadline = anyio.current_time() + LIMIT_S
        while not await holds():
            assert anyio.current_time() < deadline, f"waited {LIMIT_S:g} s for {what}"
            await anyio.sleep(0.05)

    async def resize(self, width: int, height: int) -> None:
        """Give the page another size, in pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def type(self, text: str) -> None:
        """Press and release a key for each character."""
        for key in text:
            await self.call("Input.dispatchKeyEvent", type="keyDown", text=key, key=key)
            await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def press(self, key: str, code: int, *, control: bool = False) -> None:
        """Press and release a key that types no character, by its code on Windows."""
        values = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 2 if control else 0}
        await self.call("Input.dispatchKeyEvent", type="rawKeyDown", **values)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **values)

    async def picture(self) -> bytes:
        """Return what the page shows, as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot"))["data"])


@asynccontextmanager
async def open_page(program: str, folder: Path) -> AsyncIterator[Page]:
    """Start a browser with an empty profile in a folder; yield its page."""
    arguments = [
        "--headless=new",
        "--no-first-run",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--remote-debugging-port=0",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
        f"--user-data-dir={folder}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ]
    process = await anyio.open_process(
        [program, *arguments, "about:blank"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        port = await _port(process)
        async with aiohttp.ClientSession() as client:
            with anyio.fail_after(LIMIT_S):
                target: dict[str, Any] = {}
                while not target:
                    async with client.get(f"http://127.0.0.1:{port}/json/list") as answer:
                        pages = [one for one in json.loads(await answer.text())]
                    target = next((one for one in pages if one["type"] == "page"), {})
            address = target["webSocketDebuggerUrl"]
            async with client.ws_connect(address, max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Network", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                yield page
    finally:
        with anyio.CancelScope(shield=True):
            process.terminate()
            with anyio.move_on_after(5):
                await process.wait()
            await process.aclose()


async def _port(process: anyio.abc.Process) -> int:
    text = ""
    assert process.stderr is not None
    with anyio.fail_after(LIMIT_S):
        async for data in process.stderr:
            text += data.decode(errors="replace")
            if found := re.search(r"DevTools listening on ws://[^:]+:(\d+)/", text):
                return int(found[1])
    raise AssertionError(f"Chromium did not start: {text}")
