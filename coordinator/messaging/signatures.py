"""The sessions with devices that have a task key: messages to them and from them are signed.

A device that the lab gave a key takes part with signed messages only, whatever its hello contains:
its login at the broker alone is not enough to act for it (docs/decisions/0018).
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

import anyio
import anyio.to_thread

from fairbed.coordinator.ports import TaskKeyOf, no_task_key
from fairbed.wire.codec import decode_from_device
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import Context, FromDevice, Hello, Message, Signed, Status, ToDevice
from fairbed.wire.signature import Binding, SessionKeys, is_signed_by, session_keys, sign

FORMER_SESSIONS = 64
"""Replaced sessions of a device that are known, so that none of them begins again."""

NO_TASK_KEY = (
    "it takes signed messages only, and this run has no key for it; enrol it again: fairbed enroll "
    "--replace, or run the line of fairbed enroll --upgrade on it"
)
"""Of a device that has the key of another lab, or of an enrolment that was replaced."""

UNSIGNED = (
    "its messages must be signed with the task key that the lab has for it; run the line of "
    "fairbed enroll --upgrade on it"
)

KEY_UNREADABLE = (
    "the registry of the lab must be readable to check its signature; its log has the reason"
)

FORGED = (
    "its messages must be signed with its task key, for this run and start of its coordinator; if "
    "it is your device, run the line of fairbed enroll --upgrade on it"
)


@dataclass(frozen=True, slots=True)
class _DeviceSession:
    number: tuple[int, int]
    """Boot and nonce of the hello that began it."""
    keys: SessionKeys


class FleetSignatures:
    """The sessions of one coordinator process.

    Args:
        binding: Of this process; without it no message is signed.
        task_key_of: Returns the task key of a device.
    """

    def __init__(
        self, binding: Binding | None = None, task_key_of: TaskKeyOf = no_task_key
    ) -> None:
        self._binding = binding
        self._task_key_of = task_key_of
        self._sessions: dict[str, _DeviceSession] = {}
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._former: defaultdict[str, deque[tuple[int, int]]] = defaultdict(
            lambda: deque(maxlen=FORMER_SESSIONS)
        )

    @property
    def devices(self) -> Iterable[str]:
        """Devices with a session."""
        return list(self._sessions)

    async def begin(self, device: str, hello: Hello, signed: Signed | None) -> str:
        """Begin a session, or repeat the hello of the current one.

        Args:
            device: Name of the device.
            hello: Its hello.
            signed: The message in which it came; None if it is not signed.

        Returns:
            Why the hello is refused; empty if it is valid.
        """
        if self._task_key_of is no_task_key:  # most runs: no device has a key
            return NO_TASK_KEY if signed is not None else ""
        async with self._locks[device]:  # of two hellos the later one counts
            try:
                key = await anyio.to_thread.run_sync(self._task_key_of, device)
            except LookupError:
                return KEY_UNREADABLE
            return self._checked(device, hello, signed, key)

    def signed(self, device: str, message: ToDevice) -> Message:
        """Return a message as it is sent: signed, if the device has a session."""
        session = self._sessions.get(device)
        return message if session is None else sign(message, session.keys.to_device)

    def opened(self, device: str, message: FromDevice | Signed) -> FromDevice | None:
        """Return a message of a device; None if it belongs to no session that has begun.

        A hello begins a session, so it is returned without a check: see `begin`. A status is sent
        by the broker, too, and is never signed.

        Raises:
            DecodeError: The message is forged, or of another run, session or task.
        """
        session = self._sessions.get(device)
        if not isinstance(message, Signed):
            if session is None or isinstance(message, Hello | Status):
                return message
            raise DecodeError(f"{type(message).__name__}: {UNSIGNED}")
        content = decode_from_device(message.body)
        if isinstance(content, Hello):
            return content
        if session is not None and is_signed_by(message, session.keys.from_device):
            return content
        if session is None or isinstance(content, Context):  # sent before its hello was handled
            return None
        raise DecodeError(f"{type(content).__name__}: {FORGED}")

    def _checked(self, device: str, hello: Hello, signed: Signed | None, key: str | None) -> str:
        """Begin the session of a hello if it is valid; return why it is not."""
        if signed is None:
            return UNSIGNED if key is not None or device in self._sessions else ""
        if key is None or self._binding is None:
            return NO_TASK_KEY
        keys, number = session_keys(key, self._binding, hello), (hello.boot, hello.nonce)
        if not is_signed_by(signed, keys.from_device) or number in self._former[device]:
            return FORGED
        before = self._sessions.get(device)
        if before is not None and before.number != number:
            self._former[device].append(before.number)
        self._sessions[device] = _DeviceSession(number, keys)
        return ""
