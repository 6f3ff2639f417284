"""The sessions of a device that has a task key: what it signs, and which messages it carries out.

A session begins with the status of a coordinator, which is not signed. While the device works it
begins only with a signed `Welcome` of that coordinator: a forged status, or one of an earlier run,
ends no work.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from fairbed.wire.codec import decode_to_device
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import (
    CoordinatorStatus,
    FromDevice,
    Goodbye,
    Hello,
    Message,
    Signed,
    Status,
    ToDevice,
    Welcome,
)
from fairbed.wire.signature import (
    NONCE_BITS,
    Binding,
    SessionKeys,
    is_signed_by,
    opened,
    session_keys,
    sign,
)

_log = logging.getLogger(__name__)


def binding_of(status: CoordinatorStatus) -> Binding:
    """Return what the messages of an announced coordinator are bound to."""
    return Binding(status.run_id, status.boot, status.task or b"")


@dataclass(frozen=True, slots=True)
class _CoordinatorSession:
    status: CoordinatorStatus
    hello: Hello
    keys: SessionKeys


class DeviceSignatures:
    """Signs the messages of a device and opens those to it; without a task key it does neither.

    Args:
        name: Of the device.
        task_key: Its key; None takes unsigned messages.
        hello: The message with which it joins, without a nonce.
        on_proved: Called when the coordinator that `expect` named has proved itself, before its
            `Welcome` is handled.
    """

    def __init__(
        self,
        name: str,
        task_key: str | None,
        hello: Hello,
        on_proved: Callable[[CoordinatorStatus], None],
    ) -> None:
        self._name = name
        self._key = task_key
        self._hello = hello
        self._on_proved = on_proved
        self._current: _CoordinatorSession | None = None
        self._next: _CoordinatorSession | None = None
        """With a coordinator that has not proved itself while the device works for another one."""
        self._ignored: set[str] = set()
        """Kinds of messages without a valid signature that were logged."""

    @property
    def are_demanded(self) -> bool:
        """The device has a task key."""
        return self._key is not None

    @property
    def hello(self) -> Hello:
        """The message with which the device joins the current coordinator."""
        return self._hello if self._current is None else self._current.hello

    @property
    def expected(self) -> CoordinatorStatus | None:
        """Status of a coordinator that has not proved itself yet."""
        return None if self._next is None else self._next.status

    def begin(self, status: CoordinatorStatus) -> None:
        """Begin the session with a coordinator; messages of the last session are worthless."""
        known, self._next = self._next, None
        if known is None or binding_of(known.status) != binding_of(status):
            known = self._session(status)
        self._current = known

    def expect(self, status: CoordinatorStatus) -> Hello | None:
        """Prepare a session with another coordinator; return the hello to send it, once."""
        if self._next is not None and binding_of(self._next.status) == binding_of(status):
            return None
        self._next = self._session(status)
        return None if self._next is None else self._next.hello

    def forget_expected(self) -> None:
        """Drop the session that was prepared: the coordinator of the current one is on."""
        self._next = None

    def signed(self, message: FromDevice) -> Message:
        """Return a message as it is sent: signed, if a session has begun.

        The status is not: the broker sends it for a device that is gone, and keeps it.
        """
        session = self._current
        if isinstance(message, Hello) and self._next is not None and message == self._next.hello:
            session = self._next
        if session is None or isinstance(message, Status):
            return message
        return sign(message, session.keys.from_device)

    def opened(self, message: ToDevice | Signed) -> ToDevice | None:
        """Return a message that this device may act on; None if it lacks a valid signature.

        The status of a coordinator is for all devices and has no signature. The goodbye to all
        devices comes a second time, signed.
        """
        if not isinstance(message, Signed):
            if self._key is None or isinstance(message, CoordinatorStatus):
                return message
            if not isinstance(message, Goodbye):
                self._ignore(message, "a message to this device must be signed")
            return None
        if self._key is None:
            self._ignore(message, "this device has no task_key to check a signature")
            return None
        if self._current is None:  # no coordinator was seen yet
            return None
        try:
            return decode_to_device(opened(message, self._current.keys.to_device))
        except DecodeError as exc:
            welcome = self._proof(message)
            if welcome is None:
                self._ignore(message, str(exc))
            return welcome

    def _proof(self, message: Signed) -> Welcome | None:
        """Return a message if it is the `Welcome` of the coordinator that is expected."""
        expected = self._next
        if expected is None or not is_signed_by(message, expected.keys.to_device):
            return None
        welcome = decode_to_device(message.body)
        if not isinstance(welcome, Welcome):
            return None
        self._on_proved(expected.status)
        return welcome

    def _session(self, status: CoordinatorStatus) -> _CoordinatorSession | None:
        if self._key is None:
            return None
        hello = structs.replace(self._hello, nonce=secrets.randbits(NONCE_BITS))
        return _CoordinatorSession(
            status, hello, session_keys(self._key, binding_of(status), hello)
        )

    def _ignore(self, message: ToDevice | Signed, problem: str) -> None:
        kind = type(message).__name__
        if kind not in self._ignored:
            self._ignored.add(kind)
            _log.warning(
                "%s: ignored, now and later: %s, got %s; if it is of your own coordinator, enrol "
                "this device again: fairbed enroll --upgrade",
                self._name,
                problem,
                kind,
            )
