"""A viewer of a live run on another machine: keeps a replica of its store up to date.

The viewer asks for the rows after its cursor, writes the page and asks again, so no queue can
grow: a viewer that is slow gets larger pages, one that lost its link goes on where it was. A
problem is an alert in the replica, which the control room shows as it shows those of the run.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit, urlunsplit

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskStatus
from anyio.from_thread import start_blocking_portal

from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.replication import (
    SCHEMA,
    Cursor,
    Page,
    Replica,
    decode_page,
    encode_cursor,
)
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.run_folder import Endpoint
from fairbed.wire.codec import decode_rows_part, decode_to_device, encode
from fairbed.wire.errors import DecodeError, Disconnected, Refused, innermost
from fairbed.wire.messages import CoordinatorStatus, RowsPart, RowsRequest, is_device_name
from fairbed.wire.text import text_of, toml_of
from fairbed.wire.topics import LOCAL_OPERATOR, Topics
from fairbed.wire.transport.address import parse_url, redact, with_password
from fairbed.wire.transport.base import LinkDown, LinkUp, Packet, Transport
from fairbed.wire.transport.client import MqttTransport

FIRST_REPEAT_S = 1.0
"""Time between two requests until the first answer since the link is up: the relay of the run may
be starting, or have no link yet."""
REPEAT_S = 10.0
"""The same later, without a part of an answer: twice the time that a relay holds a request."""
CONNECT_S = 10.0
"""Longest wait for the broker, at the start."""
ATTACH_S = 20.0
"""Longest wait for the first row, at the start."""
RETRY_S = 5.0
"""Time between two requests that are refused."""

PERSONS = ("viewer", "operator")
"""Roles of a lab whose user names are `<role>_<name>`."""


@dataclass(frozen=True, slots=True)
class Target:
    """A run on another machine, and the name of its viewer: a `cli.elsewhere.RunElsewhere`."""

    url: str = field(repr=False)
    """Broker address with user and password."""
    tenant: str
    viewer: str
    """Name in the topics of requests and rows."""
    operator: str | None
    """Name in the topics of commands; None if the user may send none."""

    @property
    def shown(self) -> str:
        """The broker without the password."""
        return redact(self.url)

    @property
    def endpoint(self) -> Endpoint:
        """Where commands go."""
        return Endpoint(url=self.url, tenant=self.tenant)

    def followed(
        self, on_progress: Callable[[int, int], None], on_problem: Callable[[str], None]
    ) -> AbstractContextManager[Path]:
        """Return the folder of a replica that is up to date while the context lasts."""
        return followed(self, on_progress, on_problem)


def parse_target(text: str, password: str | None = None) -> Target:
    """Return the run of an address such as `mqtts://viewer_alice@HOST/TENANT?cafile=ca.pem`.

    Args:
        text: An address, or the file that `fairbed enroll NAME --role viewer` made.
        password: Password for an address without one.

    Raises:
        UsageError: It is no address, or the file cannot be used.
    """
    url, tenant = _split(text if "://" in text else _url_in(Path(text)))
    try:
        topics = Topics(tenant)
        if password is not None:
            url = with_password(url, password)
        user = parse_url(url).username or ""
    except ValueError as exc:
        raise UsageError(f"watch: {exc}") from exc
    role, _, name = user.partition("_")
    if role in PERSONS and is_device_name(name):
        return Target(url, topics.tenant, name, name if role == "operator" else None)
    return Target(url, topics.tenant, f"v{secrets.token_hex(8)}", LOCAL_OPERATOR)


def _split(url: str) -> tuple[str, str]:
    """Return the address of the broker, and the tenant in its path (default `main`)."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path="")), parts.path.strip("/") or "main"


class _Login(msgspec.Struct, frozen=True):
    broker_url: str


def _url_in(path: Path) -> str:
    try:
        return msgspec.convert(toml_of(text_of(path.read_bytes())), _Login).broker_url
    except (OSError, msgspec.ValidationError, ValueError) as exc:
        raise UsageError(
            f"{path}: must be the file of an enrolled viewer or operator, got {exc}; make one "
            "with: fairbed enroll NAME --role viewer"
        ) from exc


class Viewer:
    """Follows a run until it has ended, or until it is cancelled.

    Args:
        target: The run.
        transport: The link to its broker.
        replica: Gets the rows.
        on_progress: Called with the last round that it has and the newest one, while it loads.
        on_problem: Called with each problem, in one line.
    """

    def __init__(
        self,
        target: Target,
        transport: Transport,
        replica: Replica,
        on_progress: Callable[[int, int], None] = lambda done, newest: None,
        on_problem: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._target, self._transport, self._replica = target, transport, replica
        self._on_progress, self._on_problem = on_progress, on_problem
        self._topics = Topics(target.tenant)
        self._cursor = Cursor()
        self._request: bytes | None = None
        """Id of the request that is not answered yet."""
        self._parts: dict[int, RowsPart] = {}
        self._is_up = False
        self._up_s = 0.0
        """Instant since which the link is up."""
        self._is_answered = False
        """There was an answer since the link is up."""
        self._down_reason = "not connected yet"
        self._status: CoordinatorStatus | None = None
        self._changed = anyio.Event()
        self._problem = ""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follow the run; the replica is complete, up to that instant, when this is started.

        Raises:
            RunError: The broker, or a run behind it, did not answer in time, or refuses.
            StoreError: The disk of this machine failed.
        """
        is_started = False
        async with self._transport, anyio.create_task_group() as group:
            group.start_soon(self._receive, group.cancel_scope, name="viewer.receive")
            with anyio.move_on_after(CONNECT_S):
                while not self._is_up:
                    await self._changed.wait()
            if not self._is_up:
                raise RunError(
                    f"{self._target.shown}: the broker must answer within {CONNECT_S:g} s, got: "
                    f"{self._down_reason}"
                )
            give_up_s = anyio.current_time() + ATTACH_S
            while True:
                page = await self._next_page(give_up_s if self._cursor.run == "" else None)
                if self._cursor.run not in ("", page.cursor.run):
                    await self._end(f"the run has ended; {page.cursor.run} runs there now")
                    break
                await anyio.to_thread.run_sync(self._apply, page)
                self._on_progress(page.cursor.round, page.last_round)
                if page.has_more:
                    continue
                if not is_started:
                    is_started = True
                    task_status.started()
                if not page.is_alive:
                    break
            group.cancel_scope.cancel()

    def _apply(self, page: Page) -> None:
        self._replica.apply(page)
        self._cursor = page.cursor
        self._problem = ""

    async def _end(self, problem: str) -> None:
        await self._report(problem)
        await anyio.to_thread.run_sync(self._replica.set_ended)

    async def _report(self, problem: str) -> None:
        """Show a problem in the control room, with the time at which it began."""
        if self._problem != problem and self._cursor.run:
            since = datetime.now().astimezone().strftime("%H:%M:%S")
            text = f"since {since}: {problem}"
            self._on_problem(text)
            await anyio.to_thread.run_sync(self._replica.set_problem, text)
        self._problem = problem

    async def _next_page(self, give_up_s: float | None) -> Page:
        """Ask for the rows after the cursor until they come.

        Args:
            give_up_s: Instant at which to fail; None never does.

        Raises:
            RunError: There was no answer, or a refusal, at the start.
        """
        while True:
            if not self._is_up:
                await self._report(f"no link to the run's broker, tried again: {self._down_reason}")
                while not self._is_up:
                    await self._changed.wait()
            self._request, self._parts = secrets.token_bytes(16), {}
            after = encode_cursor(self._cursor) if self._cursor.run else b""
            request = RowsRequest(id=self._request, schema=SCHEMA, after=after)
            with suppress(Disconnected):
                await self._transport.publish(
                    self._topics.watch(self._target.viewer), encode(request)
                )
            refusal = await self._collect(REPEAT_S if self._is_answered else FIRST_REPEAT_S)
            if refusal and give_up_s is not None:
                raise RunError(f"{self._target.shown}: {refusal}")
            if refusal:
                await self._report(refusal)
                await anyio.sleep(RETRY_S)
            elif self._is_complete():
                body = b"".join(self._parts[i].body for i in range(len(self._parts)))
                try:
                    return await anyio.to_thread.run_sync(decode_page, body)
                except StoreError as exc:
                    await self._report(f"the run sent no valid rows, {exc}")
                    await anyio.sleep(RETRY_S)
            elif give_up_s is not None and anyio.current_time() > give_up_s:
                raise RunError(self._no_answer())
            elif give_up_s is None and self._is_up and self._is_silent():
                self._is_answered = False
                await self._report(self._silence())

    async def _collect(self, repeat_s: float) -> str:
        """Wait for the parts of the answer, each at most `repeat_s`; return a refusal, or ''."""
        while self._is_up and not self._is_complete():
            before = len(self._parts)
            with anyio.move_on_after(repeat_s):
                while self._is_up and len(self._parts) == before:
                    await self._changed.wait()
            if len(self._parts) == before:
                return ""
            self._is_answered = True
            if problem := next((x.problem for x in self._parts.values() if x.problem), ""):
                return problem
        return ""

    def _is_complete(self) -> bool:
        return bool(self._parts) and len(self._parts) == next(iter(self._parts.values())).parts

    def _is_silent(self) -> bool:
        """Return whether a relay has had the time to answer."""
        return self._is_answered or anyio.current_time() > self._up_s + REPEAT_S

    def _silence(self) -> str:
        if self._status is None or self._status.state == "off":
            return "the coordinator of the run is off; its last rows may be missing"
        return "the run does not answer; it is asked again each second"

    def _no_answer(self) -> str:
        where, tenant = self._target.shown, self._target.tenant
        if self._status is None or self._status.state == "off":
            return (
                f"{where}: a run must be live in the tenant {tenant}, got none; start it, or name "
                "another tenant: mqtts://USER@HOST/TENANT"
            )
        return (
            f"{where}: the run {self._status.run!r} must answer within {ATTACH_S:g} s, got no "
            "answer; the user must be a viewer or an operator of the lab (fairbed enroll NAME "
            "--role viewer), and the lab as new as this Fairbed"
        )

    async def _receive(self, scope: anyio.CancelScope) -> None:
        for topic in (self._topics.coordinator, self._topics.rows(self._target.viewer)):
            with suppress(Disconnected):
                await self._transport.subscribe(topic)
        try:
            async for event in self._transport.events():
                match event:
                    case LinkUp():
                        self._is_up, self._is_answered = True, False
                        self._up_s = anyio.current_time()
                    case LinkDown(reason=reason):
                        self._is_up, self._down_reason = False, reason
                    case Packet():
                        self._on_packet(event)
                self._notify()
        except Refused as exc:
            if not self._cursor.run:
                raise RunError(f"{exc}; viewers and operators of a lab may watch its runs") from exc
            await self._end(str(exc))
            scope.cancel()

    def _on_packet(self, packet: Packet) -> None:
        with suppress(DecodeError):
            if packet.topic == self._topics.coordinator:
                status = decode_to_device(packet.payload)
                if isinstance(status, CoordinatorStatus):
                    self._status = status
                return
            part = decode_rows_part(packet.payload)
            if part.id == self._request:
                known = next(iter(self._parts.values()), part)
                if part.parts == known.parts:
                    self._parts[part.part] = part

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


@contextmanager
def followed(
    target: Target,
    on_progress: Callable[[int, int], None] = lambda done, newest: None,
    on_problem: Callable[[str], None] = lambda line: None,
) -> Iterator[Path]:
    """Yield the folder of a replica that a thread keeps up to date while the context lasts.

    Raises:
        RunError: The broker, or a run behind it, did not answer in time, or refuses.
        StoreError: The disk of this machine failed.
    """
    with TemporaryDirectory(prefix="fairbed-watch-") as folder:
        replica = Replica(Path(folder))
        try:
            with start_blocking_portal() as portal:
                transport = portal.call(MqttTransport, target.url, f"viewer-{secrets.token_hex(6)}")
                viewer = Viewer(target, transport, replica, on_progress, on_problem)
                try:
                    following, _ = portal.start_task(viewer.run)
                except Exception as exc:
                    raise innermost(exc) from exc
                try:
                    yield Path(folder)
                finally:
                    following.cancel()
        finally:
            replica.close()
