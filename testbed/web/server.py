"""The web server of `fairbed watch --web`: checks each request, then serves a page and its session.

textual-serve brings the page's terminal (xterm.js) and its fonts. Its own server is not used: it
has no access control, and its page loads a font from another host.
"""

import importlib.resources
import secrets
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import anyio
import msgspec
import textual_serve
from aiohttp import WSMsgType, web

from fairbed.testbed.errors import UsageError
from fairbed.testbed.host.loopback import default_address
from fairbed.testbed.web.access import Access
from fairbed.testbed.web.session import END_S, Cells, FromPage, Ping, Session
from fairbed.wire.printable import Printable, printable

HEARTBEAT_S = 15.0
"""Pause between two checks that the browser is still there, seconds."""

CLOSE_S = 2.0
"""Longest wait for a browser's reply to the end of its session, seconds."""

MAX_LOGIN_BYTES, MAX_MESSAGE_BYTES = 1 << 10, 1 << 16

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # xterm.js makes style elements
        "font-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""The browser requests nothing from other hosts, and shows the page in no other page."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

LOGIN_FIRST = "No access: open the newest address that the terminal of fairbed watch --web shows."


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """What is served, where, and to how many."""

    title: Printable
    """Title of the page: the run."""
    argv: Sequence[str]
    """Command of one control room."""
    host: str
    port: int
    """0: any free port."""
    max_sessions: int
    """Control rooms at a time; each is a process of about 80 MB."""
    idle_s: float
    """A session without keys, mouse or new size for so long ends, seconds."""


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer:
    """Serves control rooms to browsers that have a token.

    Args:
        settings: What is served.
        announce: Receives each new token.
    """

    def __init__(self, settings: WebSettings, announce: Callable[[str], None]) -> None:
        self._settings, self._announce = settings, announce
        self.access = Access(settings.host)
        self._cookie = f"fairbed_{secrets.token_hex(4)}"  # cookies of a host name ignore ports
        self._sessions: dict[Session, anyio.CancelScope] = {}

    def application(self) -> web.Application:
        """Return the application; its shutdown ends all sessions."""
        static = importlib.resources.files(textual_serve) / "static"
        app = web.Application(middlewares=[self._check], client_max_size=MAX_LOGIN_BYTES)
        app.add_routes(
            [
                web.get("/", self._index),
                web.post("/login", self._login),
                web.get("/session", self._title),
                web.get("/ws", self._websocket),
                web.get("/download/{key}", self._download),
                web.static("/page", PAGE),
                web.static("/static", Path(str(static))),
            ]
        )
        app.on_response_prepare.append(_add_headers)
        app.on_shutdown.append(self._end_sessions)
        return app

    @web.middleware
    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse other host names, other origins and browsers without a cookie."""
        host = request.headers.get("Host")
        if not self.access.is_host(host):
            raise web.HTTPForbidden(text="Host must be an address or the name of this server")
        path = request.path
        is_own = self.access.is_own_origin(request.headers.get("Origin"), host)
        if path in ("/login", "/ws") and not is_own:
            raise web.HTTPForbidden(text="Origin must be the page of this server")
        is_public = path in ("/", "/login") or path.startswith(("/page/", "/static/"))
        if not is_public and not self.access.has_cookie(request.cookies.get(self._cookie)):
            raise web.HTTPUnauthorized(text=LOGIN_FIRST)
        return await handler(request)

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(PAGE / "index.html")

    async def _login(self, request: web.Request) -> web.StreamResponse:
        cookie = self.access.redeem((await request.text()).strip())
        if cookie is None:
            raise web.HTTPUnauthorized(text=LOGIN_FIRST)
        self._announce(self.access.token)
        response = web.Response(status=204)
        response.set_cookie(self._cookie, cookie, path="/", httponly=True, samesite="Strict")
        return response

    async def _title(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"title": self._settings.title})

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(
            timeout=CLOSE_S, heartbeat=HEARTBEAT_S, max_msg_size=MAX_MESSAGE_BYTES
        )
        await socket.prepare(request)
        limit = self._settings.max_sessions
        if len(self._sessions) < limit:
            reason = await self._show(socket, _size(request.query))
        else:
            reason = (
                f"the limit of open pages is {limit} (--sessions), all in use; close one of them"
            )
        with suppress(ConnectionError):
            if reason:
                await _send_line(socket, printable(reason))
            await socket.close()
        return socket

    async def _show(self, socket: web.WebSocketResponse, size: Cells) -> str:
        """Show a control room until it, the page or the server ends; return why, if not plain."""
        session = Session(socket.send_bytes, socket.send_str)
        idle_s = self._settings.idle_s
        with anyio.CancelScope(deadline=anyio.current_time() + idle_s) as scope:
            self._sessions[session] = scope
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._receive, socket, session, scope, name="web.receive")
                    reason = await session.run(self._settings.argv, size)
                    tasks.cancel_scope.cancel()
            finally:
                del self._sessions[session]
        if not scope.cancelled_caught:
            return reason
        is_idle = anyio.current_time() >= scope.deadline
        return f"the session was idle for {idle_s / 60:g} min" if is_idle else ""

    async def _receive(
        self, socket: web.WebSocketResponse, session: Session, scope: anyio.CancelScope
    ) -> None:
        """Pass messages of the page on; end the session with the page, or if one is malformed."""
        async for received in socket:
            if received.type is not WSMsgType.TEXT:
                break
            try:
                message = msgspec.json.decode(received.data, type=FromPage)
            except msgspec.DecodeError:
                break
            if not isinstance(message, Ping):
                scope.deadline = anyio.current_time() + self._settings.idle_s
            await session.handle(message)
        scope.cancel()

    async def _download(self, request: web.Request) -> web.StreamResponse:
        key = request.match_info["key"]
        for session in self._sessions:
            if key in session.files and session.files[key].is_complete:
                file = session.files.pop(key)
                disposition = f"attachment; filename*=UTF-8''{quote(file.name)}"
                return web.Response(
                    body=bytes(file.content),
                    content_type="application/octet-stream",
                    headers={"Content-Disposition": disposition},
                )
        raise web.HTTPNotFound(text="No such file: a file can be downloaded once")

    async def _end_sessions(self, app: web.Application) -> None:
        for scope in self._sessions.values():
            scope.cancel()


PAGE = Path(__file__).with_name("page")

LEAVE_SCREEN = b"\x1b[?1049l\x1b[?1003l\x1b[?25h\x1b[2J\x1b[H"
"""Return to the plain screen of a terminal, without the mouse, and clear it."""


async def _send_line(socket: web.WebSocketResponse, line: Printable) -> None:
    await socket.send_bytes(LEAVE_SCREEN + line.encode())


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-cache")


def _size(query: Mapping[str, str]) -> Cells:
    """Return the size that the page begins with; it sends the exact one when it is connected."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(dict(query), Cells, strict=False)
    return Cells(width=80, height=24)


async def serve(settings: WebSettings, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP.

    Args:
        settings: What is served.
        announce: Receives the address that gives one browser access; after each use the next.

    Raises:
        UsageError: The server cannot listen there.
    """
    port = settings.port

    def announce_address(token: str) -> None:
        host = default_address() if settings.host in EVERY_ADDRESS else settings.host
        announce(f"http://{_in_url(host)}:{port}/#{token}")

    server = WebServer(settings, announce_address)
    runner = web.AppRunner(
        server.application(), access_log=None, shutdown_timeout=END_S + CLOSE_S + 1
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, settings.host.strip("[]"), port).start()
        except OSError as exc:
            raise UsageError(
                f"--host, --port: must be free and of this machine, got {settings.host} and "
                f"{port}: {exc.strerror or exc}; choose another, or --port 0 for any free one"
            ) from exc
        port = runner.addresses[0][1]
        announce_address(server.access.token)
        stops = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
        with anyio.open_signal_receiver(*stops) as signals:
            await anext(aiter(signals))
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()


EVERY_ADDRESS = ("0.0.0.0", "::", "[::]")


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
