"""The web server before a real client, with a small child that speaks the web driver's protocol."""

import json
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import anyio
import psutil
import pytest
from aiohttp import WSMsgType, web

from fairbed.testbed.errors import UsageError
from fairbed.testbed.web import session as sessions
from fairbed.testbed.web.server import HEADERS, WebServer, WebSettings, serve
from fairbed.wire.printable import printable
from tests.processes import is_gone

pytestmark = pytest.mark.anyio

LIMIT_S = 20.0

CHILD = """
import json, os, signal, sys
def send(kind, data):
    sys.stdout.buffer.write(kind + len(data).to_bytes(4, "big") + data)
    sys.stdout.buffer.flush()
def meta(**fields):
    send(b"M", json.dumps(fields).encode())
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("prelude", flush=True)
print("__GANGLION__", flush=True)
send(b"D", f"{os.getpid()} {os.environ['COLUMNS']}x{os.environ['ROWS']}".encode())
while head := sys.stdin.buffer.read(5):
    data = sys.stdin.buffer.read(int.from_bytes(head[1:], "big"))
    fields = json.loads(data) if head[:1] == b"M" else {}
    if data == b"q":
        meta(type="exit")
        sys.exit(0)
    elif data == b"fail":
        sys.exit("a traceback\\nfairbed: runs/x: no run there")
    elif data == b"mixed":
        send(b"P", b"t13:deliver_chunk3:key65536" + b"x")
    elif data == b"no JSON":
        send(b"M", b"{")
    elif data == b"huge":
        sys.stdout.buffer.write(b"D" + b"\\xff" * 4)
        sys.stdout.buffer.flush()
    elif data == b"file":
        parts = iter((b"<svg/", b">", b""))
        meta(type="deliver_file_start", key="k1", path="/home/me/a b.svg", open_method="browser")
    elif fields.get("type") == "deliver_chunk_request":
        part = next(parts)
        text = lambda x: b"s%d:%s" % (len(x), x)
        send(b"P", b"t" + text(b"deliver_chunk") + text(b"k1") + b"%d:" % len(part) + part + b"e")
    else:
        send(b"D", head[:1] + data)
while "stubborn" in sys.argv:
    signal.pause()
"""


@dataclass
class Site:
    """A server in this process, and a client with its own cookies."""

    server: WebServer
    runner: web.AppRunner
    client: aiohttp.ClientSession
    url: str
    announced: list[str]

    @property
    def origin(self) -> dict[str, str]:
        return {"Origin": self.url}

    async def log_in(self, token: str | None = None, **headers: str) -> int:
        text = self.server.access.token if token is None else token
        sent = headers or self.origin
        async with self.client.post(f"{self.url}/login", data=text, headers=sent) as answer:
            return answer.status

    @asynccontextmanager
    async def page(self, query: str = "?width=100&height=30") -> AsyncIterator["Page"]:
        address = f"{self.url}/ws{query}"
        async with self.client.ws_connect(address, headers=self.origin) as connection:
            yield Page(connection)


class Page:
    """What a browser sends and receives over its WebSocket."""

    def __init__(self, connection: "aiohttp.ClientWebSocketResponse[bool]") -> None:
        self.connection = connection

    async def receive(self) -> str:
        """Return the next bytes of the terminal."""
        return (await self.connection.receive_bytes(timeout=LIMIT_S)).decode()

    async def child(self) -> tuple[psutil.Process, str]:
        """Return the child behind this page, and its first size."""
        pid, size = (await self.receive()).split()
        return psutil.Process(int(pid)), size

    async def closed(self) -> bool:
        """Wait for the end of the connection."""
        message = await self.connection.receive(timeout=LIMIT_S)
        return message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED)


@asynccontextmanager
async def served(*flags: str, max_sessions: int = 2, idle_s: float = 600.0) -> AsyncIterator[Site]:
    announced: list[str] = []
    settings = WebSettings(
        title=printable("a run"),
        argv=[sys.executable, "-I", "-S", "-c", CHILD, *flags],
        host="127.0.0.1",
        port=0,
        max_sessions=max_sessions,
        idle_s=idle_s,
    )
    server = WebServer(settings, announced.append)
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=LIMIT_S)
    await runner.setup()
    await web.TCPSite(runner, settings.host, 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
            yield Site(server, runner, client, url, announced)
    finally:
        await runner.cleanup()


async def test_nothing_of_a_run_is_given_without_a_cookie() -> None:
    async with served() as site:
        for path in ("/session", "/ws", "/download/k1", "/else"):
            async with site.client.get(site.url + path, headers=site.origin) as answer:
                assert answer.status == 401
                assert "newest address" in await answer.text()
        for path in ("/", "/page/page.js", "/static/js/textual.js", "/static/css/xterm.css"):
            async with site.client.get(site.url + path) as answer:
                assert answer.status == 200
        assert await site.log_in("wrong") == 401
        assert not site.announced


async def test_a_token_is_exchanged_once_for_a_cookie_that_no_script_reads() -> None:
    async with served() as site:
        token = site.server.access.token
        async with site.client.post(f"{site.url}/login", data=token, headers=site.origin) as answer:
            assert answer.status == 204
            cookie = answer.headers["Set-Cookie"]
        assert {"HttpOnly", "Path=/", "SameSite=Strict"} <= set(cookie.split("; "))
        assert "Domain" not in cookie
        async with site.client.get(f"{site.url}/session") as answer:
            assert await answer.json() == {"title": "a run"}
        assert site.announced == [site.server.access.token] != [token]
        assert await site.log_in(token) == 401


async def test_pages_of_other_origins_get_neither_a_session_nor_a_login() -> None:
    async with served() as site:
        token = site.server.access.token
        assert await site.log_in(token, Origin="http://evil.example") == 403
        assert await site.log_in(token) == 204
        for headers in ({}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await site.client.ws_connect(f"{site.url}/ws", headers=headers)
            assert refused.value.status == 403


async def test_a_foreign_host_name_is_refused_whatever_it_asks_for() -> None:
    async with served() as site:
        await site.log_in()
        for path in ("/", "/session", "/page/page.js"):
            headers = {"Host": "evil.example:8885"}
            async with site.client.get(site.url + path, headers=headers) as answer:
                assert answer.status == 403


async def test_every_answer_forbids_requests_to_other_hosts() -> None:
    async with served() as site:
        for path in (
            "/",
            "/session",
            "/page/page.js",
            "/static/js/textual.js",
            "/nil",
            "/page/nil",
        ):
            async with site.client.get(site.url + path) as answer:
                assert HEADERS.items() <= dict(answer.headers).items(), path
        policy = HEADERS["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "http" not in policy
        for path in ("/", "/page/page.js", "/page/page.css"):
            async with site.client.get(site.url + path) as answer:
                assert re.search(r"(?:https?|wss?):?//\w", await answer.text()) is None


async def test_the_size_and_the_keys_of_a_page_reach_its_child() -> None:
    async with served() as site:
        await site.log_in()
        async with site.page() as page:
            child, size = await page.child()
            assert size == "100x30"
            await page.connection.send_str('["stdin", "é"]')
            assert await page.receive() == "Dé"
            await page.connection.send_str('["resize", {"width": 9999, "height": 0}]')
            resize = json.loads((await page.receive())[1:])
            assert resize == {"type": "resize", "width": 500, "height": 1}
            await page.connection.send_str('["focus"]')
            assert json.loads((await page.receive())[1:]) == {"type": "focus"}
            await page.connection.send_str('["ping", "12"]')
            assert await page.connection.receive_json() == ["pong", "12"]
        assert await anyio.to_thread.run_sync(is_gone, child)


async def test_a_size_that_is_none_is_the_size_of_a_plain_terminal() -> None:
    async with served() as site:
        await site.log_in()
        async with site.page("?width=x") as page:
            assert (await page.child())[1] == "80x24"


@pytest.mark.parametrize("text", ["{", "[]", '["else"]', '["stdin", 1]', '["resize", {}]'])
async def test_a_malformed_message_ends_its_session_alone(text: str) -> None:
    async with served() as site:
        await site.log_in()
        async with site.page() as page, site.page() as other:
            child, _ = await page.child()
            await other.child()
            await page.connection.send_str(text)
            assert await page.closed()
            assert await anyio.to_thread.run_sync(is_gone, child)
            await other.connection.send_str('["stdin", "a"]')
            assert await other.receive() == "Da"


async def test_sessions_are_limited_in_number_and_a_closed_one_makes_room() -> None:
    async with served(max_sessions=1) as site:
        await site.log_in()
        async with site.page() as first:
            child, _ = await first.child()
            async with site.page() as second:
                assert "the limit of open pages is 1 (--sessions)" in await second.receive()
                assert await second.closed()
            await first.connection.send_str('["stdin", "q"]')
            assert await first.closed()
        assert await anyio.to_thread.run_sync(is_gone, child)
        async with site.page() as third:
            await third.child()


async def test_a_session_without_input_ends_after_a_while() -> None:
    async with served(idle_s=1.5) as site:
        await site.log_in()
        async with site.page() as page:
            child, _ = await page.child()
            await page.connection.send_str('["ping", "not a key"]')
            assert await page.connection.receive_json() == ["pong", "not a key"]
            assert "idle for 0.025 min" in await page.receive()
            assert await page.closed()
        assert await anyio.to_thread.run_sync(is_gone, child)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("fail", "fairbed: runs/x: no run there"),
        ("huge", "at most 16 MiB, got 4,294,967,295 B"),
        ("mixed", "a packet of the control room must be readable, got: "),
        ("no JSON", "a packet of the control room must be readable, got: "),
    ],
)
async def test_a_page_shows_why_its_child_failed(key: str, reason: str) -> None:
    async with served() as site:
        await site.log_in()
        async with site.page() as page:
            await page.child()
            await page.connection.send_str(json.dumps(["stdin", key]))
            text = await page.receive()
            assert reason in text
            assert "a traceback" not in text
            assert await page.closed()


async def test_a_file_of_a_control_room_is_downloaded_once_and_never_shown() -> None:
    async with served() as site:
        await site.log_in()
        async with site.page() as page:
            await page.child()
            await page.connection.send_str('["stdin", "file"]')
            assert await page.connection.receive_json() == ["deliver_file_start", "k1"]
            async with site.client.get(f"{site.url}/download/k1") as answer:
                assert await answer.read() == b"<svg/>"
                assert answer.content_type == "application/octet-stream"
                disposition = answer.headers["Content-Disposition"]
            assert disposition == "attachment; filename*=UTF-8''a%20b.svg"
            async with site.client.get(f"{site.url}/download/k1") as answer:
                assert answer.status == 404


async def test_a_server_that_ends_leaves_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "END_S", 0.2)
    async with served("stubborn") as site:
        await site.log_in()
        async with site.page() as one, site.page() as two:
            children = [(await page.child())[0] for page in (one, two)]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(site.runner.cleanup)
                assert await one.closed()
                assert await two.closed()
    for child in children:
        assert await anyio.to_thread.run_sync(is_gone, child)


async def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = WebSettings(
            title=printable(""), argv=[], host="127.0.0.1", port=port, max_sessions=1, idle_s=1.0
        )
        with pytest.raises(UsageError, match=rf"must be free .* got 127\.0\.0\.1 and {port}: "):
            await serve(settings, lambda _: None)
