"""`fairbed watch --web`: its options, and the real control room behind the real server."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import psutil
import pytest

from fairbed.coordinator.tui.app import ControlRoom
from fairbed.testbed.cli import watch
from fairbed.testbed.cli.main import main
from fairbed.testbed.run_folder import Endpoint, write_endpoint
from tests.coordinator.store.fake_run import FakeRun, fake_run
from tests.processes import is_gone
from tests.testbed.web.browser import LIMIT_S, Page, find_chromium, open_page


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return fake_run(tmp_path / "demo-1", rounds=4, devices=3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--web", "--host", "0.0.0.0"], ["--host", "loopback", "ssh -L 8885:127.0.0.1:8885"]),
        (["--web", "--host", "lab.local", "--port", "9000"], ["ssh -L 9000:127.0.0.1:9000"]),
        (["--web", "--port", "70000"], ["--port", "from 0 to 65,535, got 70000"]),
        (["--web", "--sessions", "0"], ["--sessions", "from 1 to 64, got 0"]),
        (["--web", "--idle", "nan"], ["--idle", "got nan"]),
        (["--web", "--headless"], ["--web", "--headless"]),
        (["--steer"], ["--steer", "needs --web"]),
        (["--port", "0"], ["--port", "needs --web"]),
    ],
)
def test_options_that_cannot_be_used_are_one_line(
    run: Path, options: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(run), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words), line


def test_without_the_package_the_command_that_installs_it_is_printed(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "fairbed.testbed.web.server", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "aiohttp"]:
        monkeypatch.delitem(sys.modules, name)

    class Absent:
        def find_spec(self, name: str, *_: object) -> None:
            if name.split(".")[0] == "aiohttp":
                raise ModuleNotFoundError("No module named 'aiohttp'", name="aiohttp")

    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    assert main(["watch", str(run), "--web"]) == 2
    error = capsys.readouterr().err
    assert "the package aiohttp must be installed" in error
    assert "fairbed[web]" in error


@pytest.mark.parametrize(("flags", "sends"), [([], True), (["--read-only"], False)])
def test_a_read_only_viewer_of_a_live_run_has_no_way_to_send_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], sends: bool
) -> None:
    live = FakeRun(tmp_path / "live", devices=3)
    live.play(1)
    live.store.flush()
    write_endpoint(live.folder, Endpoint(url="mqtt://127.0.0.1:1", tenant="main"))
    shown: list[ControlRoom] = []
    monkeypatch.setattr(watch, "_show", shown.append)
    monkeypatch.setattr(watch, "shows_screens", lambda: True)
    monkeypatch.setattr(watch, "low_priority", nullcontext)
    assert main(["watch", str(live.folder), *flags]) == 0
    live.finish()
    assert [room._send_command is not None for room in shown] == [sends]


@pytest.mark.parametrize("flags", [["--steer"], []])
def test_pages_may_steer_only_if_the_server_was_started_for_it(
    run: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    given: list[tuple[Any, ...]] = []
    monkeypatch.setattr(anyio, "run", lambda *arguments: given.append(arguments))
    monkeypatch.setattr(watch, "low_priority", nullcontext)
    assert main(["watch", str(run), "--web", *flags]) == 0
    ((_, settings, _),) = given
    argv = settings.argv
    assert ("--read-only" in argv) is not bool(flags)
    assert str(run) in argv


class Command:
    """`fairbed watch --web` in a process of its own."""

    def __init__(self, run: Path) -> None:
        options = "--web", "--port", "0"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fairbed.testbed.cli.main", "watch", str(run), *options],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert "pages are read-only" in self.process.stdout.readline()
        self.address = self.next_address()
        self.url, _, self.token = self.address.partition("/#")

    def next_address(self) -> str:
        """Return the address that the terminal shows next."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().removeprefix("open in one browser: ").strip()


@pytest.fixture
def command(run: Path) -> Iterator[Command]:
    started = Command(run)
    yield started
    started.process.kill()
    started.process.communicate()


@pytest.mark.full
@pytest.mark.anyio
async def test_the_control_room_arrives_and_ends_with_a_killed_server(
    command: Command, run: Path
) -> None:
    jar = aiohttp.CookieJar(unsafe=True)
    headers = {"Origin": command.url}
    async with aiohttp.ClientSession(cookie_jar=jar, headers=headers) as client:
        async with client.post(f"{command.url}/login", data=command.token) as answer:
            assert answer.status == 204
        assert command.next_address() != command.address
        async with client.ws_connect(f"{command.url}/ws?width=120&height=40") as page:
            text = ""
            while "Fleet" not in text:
                text += (await page.receive_bytes(timeout=LIMIT_S)).decode()
            children = psutil.Process(command.process.pid).children(recursive=True)
            assert ["--read-only" in child.cmdline() for child in children] == [True]
            shutil.rmtree(run)
            async with client.ws_connect(f"{command.url}/ws") as other:
                text = (await other.receive_bytes(timeout=LIMIT_S)).decode()
            assert f"must name a run, got '{run}'" in text
            command.process.kill()
            assert all([await anyio.to_thread.run_sync(is_gone, child) for child in children])


@pytest.mark.full
@pytest.mark.timeout(400)  # Chromium beside other tests
@pytest.mark.anyio
async def test_a_browser_shows_the_control_room_and_asks_no_other_host(
    command: Command, tmp_path: Path
) -> None:
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium; on Debian: apt-get install chromium")
    async with open_page(program, tmp_path / "profile") as page:
        await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        await page.resize(1200, 700)
        await page.call("Page.navigate", url=command.url)
        await page.wait_until(lambda: shows(page, "newest address"), "the refusal")
        await page.call("Page.navigate", url=command.address)
        await page.wait_until(lambda: has_received(page, "Fleet"), "the control room")
        assert await page.evaluate("location.href") == f"{command.url}/"
        assert await page.evaluate("document.title") == "demo-1 - Fairbed"
        assert await page.evaluate("document.cookie") == ""
        await page.wait_until(lambda: has_sent(page, '["focus"]', 0), "the focus")

        before = len(page.sent)
        small = await page.picture()
        await page.resize(1700, 1000)
        await page.wait_until(lambda: has_sent(page, '["resize",', before), "the new size")
        await page.wait_until(lambda: differs(page, small), "a larger screen")

        folder = tmp_path / "downloads"
        await page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        await page.press("p", 80, control=True)
        await page.wait_until(lambda: has_received(page, "Search for commands"), "the palette")
        await page.type("screenshot")
        await page.wait_until(lambda: has_received(page, "SVG"), "the command")
        await page.wait_until(lambda: downloads(page, folder), "the picture")

        assert page.requests
        assert {re.match(r"(?:http|ws)(://[^/]+)", x)[1] for x in page.requests} == {  # type: ignore[index]
            command.url.removeprefix("http")
        }
        assert not [line for line in page.console if "Content Security Policy" in line]
        blocked = await page.evaluate(
            "fetch('http://192.0.2.1/').then(() => 'sent', (error) => error.name)"
        )
        assert blocked == "TypeError"
        await page.evaluate("0")  # notes what the console has written
        assert [line for line in page.console if "Content Security Policy" in line]

        await page.type("q")
        await page.wait_until(lambda: has_class(page, "-closed"), "the end of the session")
        await page.call("Page.reload")
        await page.wait_until(lambda: has_class(page, "-first-byte"), "a session by the cookie")


async def shows(page: Page, text: str) -> bool:
    return text in str(await page.evaluate("document.body?.innerText"))


async def has_received(page: Page, text: str) -> bool:
    await page.evaluate("0")
    return text in page.received


async def downloads(page: Page, folder: Path) -> bool:
    """Press Enter: in a list that is not filtered yet, it only highlights the first command."""
    await page.press("Enter", 13)
    for _ in range(30):
        if await anyio.to_thread.run_sync(holds_picture, folder):
            return True
        await page.evaluate("new Promise((done) => setTimeout(done, 100))")
    return False


def holds_picture(folder: Path) -> bool:
    return any(path.read_bytes().startswith(b"<svg") for path in folder.glob("*.svg"))


async def has_class(page: Page, name: str) -> bool:
    return bool(await page.evaluate(f"document.body?.classList.contains('{name}')"))


async def has_sent(page: Page, start: str, since: int) -> bool:
    await page.evaluate("0")
    return any(text.startswith(start) for text in page.sent[since:])


async def differs(page: Page, picture: bytes) -> bool:
    return await page.picture() != picture
