"""The enrolment server of a lab: HTTPS for devices that have no identity yet, or have lost it.

    GET  /install      the script that installs and enrols an agent
    GET  /wheels/      an index for `pip --find-links`
    GET  /wheels/NAME  a file that the index lists
    POST /token        whether a one-time token is open, before a device installs anything
    POST /enrol        a one-time token for an identity (wire/enrolment.py)
    POST /renew        name and password for the standing of the identity

`http.server` of the standard library parses requests, one thread for each connection: its thread
runs TLS handshake, request and reply, so that no slow client holds up the event loop, which only
accepts connections and closes those that take too long. Bounds: connections in all and per address,
seconds and bytes per request, wrong tokens and passwords per minute. No path from the network
reaches the file system: a path is compared with the names of the folder.
"""

import contextlib
import http.server
import io
import logging
import shlex
import shutil
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias, TypeVar
from urllib.parse import quote

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskStatus
from msgspec import Struct

from fairbed.device_agent.installed import agent_version
from fairbed.testbed.errors import LabError
from fairbed.testbed.lab.audit import Audit
from fairbed.testbed.lab.folder import Lab, server_addresses
from fairbed.testbed.lab.identities import Identities, Identity
from fairbed.wire.enrolment import (
    MAX_REQUEST_BYTES,
    EnrolReply,
    EnrolRequest,
    Problem,
    RenewReply,
    RenewRequest,
    Standing,
    TokenReply,
    TokenRequest,
    decode_json,
)
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import PROTOCOL_VERSION

MAX_CONNECTIONS, MAX_PER_ADDRESS = 32, 8
"""Connections at a time; pip opens one, uv two (install.sh). 100 boards that enrol at once wait a
second for their turn: a reply takes milliseconds."""

REQUEST_S = 20.0
"""Longest TLS handshake and request, seconds."""

WHEEL_S = 1800.0
"""Longest transfer of a wheel: 20 MB (onnxruntime) at 100 kbit/s."""

BACKLOG = 64

WRONG_PER_MINUTE = 6
"""Wrong tokens and passwords of one address, after which it waits. A token has 192 random bits, so
this bounds the load, not the chance to guess one; the audit log has a bound for all addresses."""

MAX_ADDRESSES = 1024
"""Addresses whose wrong tokens are counted; the oldest is forgotten first."""

_log = logging.getLogger(__name__)

Now: TypeAlias = Callable[[], float]

_Request = TypeVar("_Request", bound=Struct)


class WrongAttempts:
    """Counts wrong tokens and passwords by address, over the last minute; any thread uses it."""

    def __init__(self, limit: int = WRONG_PER_MINUTE) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._times: OrderedDict[str, list[float]] = OrderedDict()

    def is_blocked(self, address: str, now_s: float) -> bool:
        """Return whether an address has reached the limit."""
        with self._lock:
            times = [at for at in self._times.get(address, ()) if now_s - 60.0 < at <= now_s]
            if times:
                self._times[address] = times
            else:
                self._times.pop(address, None)
        return len(times) >= self._limit

    def add(self, address: str, now_s: float) -> None:
        """Count a wrong token or password."""
        with self._lock:
            self._times.setdefault(address, []).append(now_s)
            self._times.move_to_end(address)
            while len(self._times) > MAX_ADDRESSES:
                self._times.popitem(last=False)


def install_script(lab: Lab, address: str) -> str:
    """Return the script that enrols a device, with the values of the lab before it.

    Args:
        lab: The lab.
        address: The lab's address for this device.
    """
    values = {
        "LAB_URL": f"https://{_bracketed(address)}:{lab.settings.enrol_port}",
        "LAB_NAME": lab.settings.name,
        "LAB_CA": lab.ca.read_text("ascii").strip(),
        "VERSION": agent_version(),
        "HAS_WHEELS": "yes" if wheels(lab) else "no",
    }
    head = "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items())
    shebang, _, body = Path(__file__).with_name("install.sh").read_text("utf-8").partition("\n")
    return f"{shebang}\n{head}{body}"


def wheels(lab: Lab) -> Mapping[str, Path]:
    """Return the wheels of the lab by name; links and other files are not served."""
    try:
        found = sorted(lab.wheels.iterdir())
    except OSError:
        return {}
    return {
        path.name: path
        for path in found
        if path.suffix == ".whl" and path.is_file() and not path.is_symlink()
    }


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


@dataclass(slots=True)
class _Refusal(Exception):
    """A request that gets a problem as its answer."""

    status: HTTPStatus
    problem: str


@dataclass(slots=True)
class _Service:
    """What the connections share; its methods run in their threads."""

    lab: Lab
    identities: Identities
    audit: Audit
    now: Now
    wrong: WrongAttempts = field(default_factory=WrongAttempts)

    def enrol(self, request: EnrolRequest, address: str) -> EnrolReply:
        """Redeem a token.

        Raises:
            _Refusal: The lab refuses the request.
        """
        now_s = self.now()
        self._check_attempts(address, now_s)
        self._check_protocol(request.protocol, request.agent)
        try:
            identity, password = self.identities.redeem(
                request.token, request.name, host_name=request.host_name, now_s=now_s
            )
        except LabError as exc:
            self.wrong.add(address, now_s)
            self.audit.refuse(
                "enrol-refused",
                at_s=now_s,
                name=request.name or request.host_name,
                address=address,
                detail=str(exc),
            )
            raise _Refusal(HTTPStatus.FORBIDDEN, str(exc)) from exc
        self.audit.write(
            "enrol",
            at_s=now_s,
            name=identity.name,
            role=identity.role,
            by="token",
            address=address,
            detail=f"agent {request.agent}, {request.machine}, Python {request.python}",
        )
        if identity.role == "device":
            before = self.identities.contacts().get(identity.name)
            was_seen = before is not None and before.state is not None  # of a replaced identity
            self.identities.saw(
                identity.name,
                at_s=now_s,
                address=address,
                agent=request.agent,
                state="offline" if was_seen else None,
            )
        return EnrolReply(
            lab=self.lab.settings.name,
            name=identity.name,
            role=identity.role,
            tenant="main" if identity.role != "device" else identity.tenant,
            user=identity.user,
            password=password,
            port=self.lab.settings.port,
            expires_s=identity.expires_s,
            task_key=self.lab.task_key(identity) if identity.role == "device" else None,
        )

    def check_token(self, request: TokenRequest, address: str) -> TokenReply:
        """Answer whether a token is open.

        Raises:
            _Refusal: It is not, or this address has asked for too many.
        """
        now_s = self.now()
        self._check_attempts(address, now_s)
        try:
            self.identities.check_token(request.token, now_s=now_s)
        except LabError as exc:
            self.wrong.add(address, now_s)
            self.audit.refuse(
                "enrol-refused", at_s=now_s, name="", address=address, detail=str(exc)
            )
            raise _Refusal(HTTPStatus.FORBIDDEN, str(exc)) from exc
        return TokenReply(lab=self.lab.settings.name)

    def renew(self, request: RenewRequest, address: str) -> RenewReply:
        """Return the standing of an identity.

        Raises:
            _Refusal: No identity has this name and password.
        """
        now_s = self.now()
        self._check_attempts(address, now_s)
        identity = self.identities.authenticate(request.name, request.password)
        if identity is None:
            self.wrong.add(address, now_s)
            self.audit.refuse(
                "renew-refused", at_s=now_s, name=request.name, address=address, detail="password"
            )
            raise _Refusal(
                HTTPStatus.FORBIDDEN,
                f"{request.name}: the lab {self.lab.settings.name} has no identity with this name "
                f"and password; enrol the device again: fairbed enroll {request.name}",
            )
        contact = self.identities.contacts().get(identity.name)
        is_accepted = identity.is_accepted(now_s)
        if is_accepted and contact is not None and contact.agent != request.agent:
            self.identities.saw(identity.name, at_s=contact.at_s, agent=request.agent)
        standing, since_s = _standing(identity, request.name, now_s)
        return RenewReply(
            standing=standing,
            name=identity.name,
            lab=self.lab.settings.name,
            version=agent_version(),
            is_seen=contact is not None and contact.state == "online",
            since_s=since_s,
            task_key=self.lab.task_key(identity) if is_accepted else None,
        )

    def _check_attempts(self, address: str, now_s: float) -> None:
        if self.wrong.is_blocked(address, now_s):
            raise _Refusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"more than {WRONG_PER_MINUTE} wrong tokens or passwords from {address}; wait a "
                "minute",
            )

    def _check_protocol(self, protocol: int, agent: str) -> None:
        if protocol == PROTOCOL_VERSION:
            return
        own = agent_version()
        advice = (
            f"upgrade the lab host: pip install 'fairbed=={agent}'"
            if protocol > PROTOCOL_VERSION
            else "run the line of fairbed enroll, which installs the lab's version"
        )
        raise _Refusal(
            HTTPStatus.CONFLICT,
            f"versions do not fit: agent {agent} has protocol {protocol}, lab {own} has protocol "
            f"{PROTOCOL_VERSION}; {advice}",
        )


def _standing(identity: Identity, name: str, now_s: float) -> tuple[Standing, float | None]:
    if identity.revoked_s is not None:
        return "revoked", identity.revoked_s
    if not identity.is_accepted(now_s):
        return "expired", identity.expires_s
    return ("valid" if identity.name == name else "renamed"), None


class _Connection(http.server.BaseHTTPRequestHandler):
    """One request; the constructor serves it."""

    server_version, sys_version = "fairbed", ""

    def __init__(
        self,
        link: ssl.SSLSocket,
        address: str,
        service: _Service,
        sends_wheel: threading.Event,
    ) -> None:
        self._service, self._address, self._sends_wheel = service, address, sends_wheel
        super().__init__(link, (address, 0), None)  # type: ignore[arg-type]  # it has no server

    def do_GET(self) -> None:
        """Send the script, the index of wheels, or a wheel."""
        lab = self._service.lab
        if self.path == "/install":
            self._send(HTTPStatus.OK, "text/plain; charset=utf-8", self._script().encode())
            return
        offered = {f"/wheels/{quote(name)}": path for name, path in wheels(lab).items()}
        if self.path == "/wheels/":
            names = (name.removeprefix("/wheels/") for name in offered)
            rows = "".join(f'<a href="{name}">{name}</a><br>\n' for name in names)
            page = f"<!DOCTYPE html><html><body>\n{rows}</body></html>\n"
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", page.encode())
        elif self.path in offered:
            self._send_wheel(offered[self.path])
        else:
            self._problem(
                HTTPStatus.NOT_FOUND, "not found; fairbed enroll prints the line to run on a device"
            )

    do_HEAD = do_GET
    """The same without the body; uv wants to know the size of a wheel."""

    def do_POST(self) -> None:
        """Enrol a device, or return the standing of its identity."""
        try:
            if self.path == "/enrol":
                reply: Struct = self._service.enrol(self._body(EnrolRequest), self._address)
            elif self.path == "/token":
                reply = self._service.check_token(self._body(TokenRequest), self._address)
            elif self.path == "/renew":
                reply = self._service.renew(self._body(RenewRequest), self._address)
            else:
                raise _Refusal(
                    HTTPStatus.NOT_FOUND, "not found; /token, /enrol and /renew take requests"
                )
        except _Refusal as exc:
            self._problem(exc.status, exc.problem)
        except LabError as exc:  # for example a full disk
            self._problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"the lab host has a problem: {exc}")
        else:
            self._send(HTTPStatus.OK, "application/json", msgspec.json.encode(reply))

    def _body(self, kind: type[_Request]) -> _Request:
        length = self.headers.get("Content-Length", "")
        is_number = length.isascii() and length.isdecimal()
        if not is_number or int(length) > MAX_REQUEST_BYTES:
            raise _Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the request must have 0 to {MAX_REQUEST_BYTES} bytes, got "
                f"{length[:20] or 'none'}",
            )
        try:
            return decode_json(self.rfile.read(int(length)), kind)
        except DecodeError as exc:
            raise _Refusal(
                HTTPStatus.BAD_REQUEST,
                f"malformed request: {exc}; agent and lab may be of versions that do not fit, the "
                f"lab has {agent_version()}",
            ) from exc

    def _script(self) -> str:
        """Return the script for the address that this device used, if the lab has it."""
        host = self.headers.get("Host", "")
        given = host.rpartition(":")[0].strip("[]") if ":" in host else host
        known = server_addresses(self._service.lab.settings)
        address = given if given in known else self._service.lab.settings.addresses[0]
        return install_script(self._service.lab, address)

    def _send_wheel(self, path: Path) -> None:
        self._sends_wheel.set()
        with path.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            self._head(HTTPStatus.OK, "application/octet-stream", size)
            if self.command != "HEAD":
                shutil.copyfileobj(file, self.wfile, 1 << 18)

    def _problem(self, status: HTTPStatus, problem: str) -> None:
        self._send(status, "application/json", msgspec.json.encode(Problem(problem=problem)))

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self._head(status, kind, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the date of the reply, by which a device finds its clock to be wrong."""
        return super().date_time_string(self._service.now() if timestamp is None else timestamp)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: the audit log has what matters, and no request is worth a line."""


def _serve(
    link: socket.socket,
    address: str,
    context: ssl.SSLContext,
    service: _Service,
    sends_wheel: threading.Event,
) -> None:
    """Serve one connection; runs in a thread. Nothing that happens in it ends the server."""
    try:
        link.settimeout(REQUEST_S)
        with context.wrap_socket(link, server_side=True) as tls:
            _Connection(tls, address, service, sends_wheel)
    except OSError:
        link.close()  # the client left, spoke no TLS, or took too long
    except Exception:
        _log.exception("a request for enrolment from %s failed", address)


def tls_context(lab: Lab) -> ssl.SSLContext:
    """Return the TLS settings of the server.

    Raises:
        LabError: The certificate cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(lab.server, lab.server_key)
    except (OSError, ssl.SSLError) as exc:
        raise LabError(
            f"{lab.server}: must be a certificate with its key, got {exc}; restore a copy of the "
            "folder"
        ) from exc
    return context


def _listen(port: int) -> socket.socket:
    """Return a socket that listens on all addresses of this machine."""
    try:
        if socket.has_dualstack_ipv6():
            listener = socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG
            )
        else:
            listener = socket.create_server(("", port), backlog=BACKLOG)
    except OSError as exc:
        raise LabError(
            f"enrol_port: must be a free port, got {port}: {exc.strerror}; change it in lab.toml, "
            "or stop what listens there"
        ) from exc
    listener.setblocking(False)
    return listener


async def serve_enrolment(
    lab: Lab,
    identities: Identities,
    audit: Audit,
    *,
    now: Now = time.time,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve enrolment on all addresses of this machine until cancelled.

    Args:
        lab: The lab.
        identities: Its identities.
        audit: Its audit log.
        now: Unix time.
        task_status: Started when the port listens.

    Raises:
        LabError: The port is taken, or the certificate cannot be read.
    """
    context = tls_context(lab)
    service = _Service(lab, identities, audit, now)
    limiter = anyio.CapacityLimiter(MAX_CONNECTIONS)
    per_address: dict[str, int] = {}

    async def connection(link: socket.socket, address: str) -> None:
        # TLS takes `link` over; a shutdown of its duplicate ends the same connection.
        with link.dup() as duplicate:
            sends_wheel = threading.Event()
            try:
                async with anyio.create_task_group() as closing:
                    closing.start_soon(_close_late, duplicate, sends_wheel)
                    await anyio.to_thread.run_sync(
                        partial(_serve, link, address, context, service, sends_wheel),
                        abandon_on_cancel=True,
                        limiter=limiter,
                    )
                    closing.cancel_scope.cancel()
            finally:
                _shut_down(duplicate)
                link.close()  # for a thread that did not begin; TLS has emptied it otherwise
                per_address[address] -= 1
                if per_address[address] == 0:
                    del per_address[address]

    with contextlib.closing(_listen(lab.settings.enrol_port)) as listener:
        task_status.started()
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(lambda: audit.write_left_out(now()))
            group = await stack.enter_async_context(anyio.create_task_group())
            while True:
                link, address = await _accept(listener)
                is_full = sum(per_address.values()) >= MAX_CONNECTIONS
                if is_full or per_address.get(address, 0) >= MAX_PER_ADDRESS:
                    link.close()
                    continue
                per_address[address] = per_address.get(address, 0) + 1
                group.start_soon(connection, link, address, name=f"enrolment[{address}]")


ACCEPT_RETRY_S = 0.5
"""Pause after a failed accept: the process has no file descriptor left."""


async def _accept(listener: socket.socket) -> tuple[socket.socket, str]:
    while True:
        await anyio.wait_readable(listener)
        try:
            link, (host, *_) = listener.accept()
        except BlockingIOError:
            continue
        except OSError:
            await anyio.sleep(ACCEPT_RETRY_S)
            continue
        return link, host.removeprefix("::ffff:")


async def _close_late(link: socket.socket, sends_wheel: threading.Event) -> None:
    """Shut a connection down when it takes too long, which ends a read or write of its thread."""
    await anyio.sleep(REQUEST_S)
    if sends_wheel.is_set():
        await anyio.sleep(WHEEL_S)
    _shut_down(link)


def _shut_down(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
