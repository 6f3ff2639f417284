"""The audit log of a lab: one JSON object per line, only ever appended to.

It names the action, the identity and the requester, never a password, a token or a key. What the
lab refuses is bounded, because any host on the network can cause it: `REFUSED_PER_HOUR` lines, none
in a log of `MAX_BYTES`, and a line `left-out` with the number of the others.
"""

import os
import threading
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from msgspec import Struct

from fairbed.testbed.errors import LabError
from fairbed.wire.printable import one_line

MAX_TEXT = 200
"""Longest text of a field, characters; texts of devices are cut to it."""


REFUSED_PER_HOUR = 100
"""Most refused requests of all addresses that are written in an hour, about 20 kB."""

HOUR_S = 3600.0

MAX_BYTES = 16 << 20
"""Size of the log from which refused requests are counted only."""


class AuditRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the audit log."""

    at: str
    """UTC, ISO 8601."""
    action: str
    """What was done, as in `enrol`, `revoke`, `rename`, `command`."""
    name: str = ""
    """Name of the identity that it was done to; empty if there is none."""
    role: str = ""
    by: str = ""
    """Requester: a user of this machine, an operator, or a device."""
    address: str = ""
    """Address that a request came from."""
    detail: str = ""
    """What else a reader needs; never a secret."""


class Audit:
    """Appends to the audit log of a lab; several processes may do so at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._hour_s, self._refused, self._left_out = float("-inf"), 0, 0

    def refuse(self, action: str, *, at_s: float, name: str, address: str, detail: str) -> None:
        """Append the row of a refused request, or count it.

        Args:
            action: What was refused.
            at_s: Unix time.
            name: Name that the request gave.
            address: Where it came from.
            detail: Why.

        Raises:
            LabError: The file cannot be written.
        """
        with self._lock:
            is_new_hour = not 0.0 <= at_s - self._hour_s < HOUR_S
            if is_new_hour:
                self._hour_s, self._refused = at_s, 0
            is_left_out = self._refused >= REFUSED_PER_HOUR or self._size() >= MAX_BYTES
            self._refused += 1
            self._left_out += is_left_out
        if not is_left_out:
            self.write(action, at_s=at_s, name=name, address=address, detail=detail)
        elif is_new_hour:  # of a log that is full
            self.write_left_out(at_s)

    def write_left_out(self, at_s: float) -> None:
        """Append the number of refused requests that no row has, if there are any.

        Raises:
            LabError: The file cannot be written.
        """
        with self._lock:
            left_out, self._left_out = self._left_out, 0
        if left_out:
            detail = f"{left_out} refused requests; the log has {REFUSED_PER_HOUR} an hour, and "
            self._append("left-out", at_s, detail=f"{detail}none above {MAX_BYTES >> 20} MiB")

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def write(
        self,
        action: str,
        *,
        at_s: float,
        name: str = "",
        role: str = "",
        by: str = "",
        address: str = "",
        detail: str = "",
    ) -> None:
        """Append one row.

        Args:
            action: What was done.
            at_s: Unix time.
            name: Identity that it was done to.
            role: Its role.
            by: Requester.
            address: Where the request came from.
            detail: What else a reader needs; never a secret.

        Raises:
            LabError: The file cannot be written.
        """
        self.write_left_out(at_s)
        self._append(action, at_s, name=name, role=role, by=by, address=address, detail=detail)

    def _append(self, action: str, at_s: float, **texts: str) -> None:
        cut = {field: str(one_line(text, MAX_TEXT)) for field, text in texts.items()}
        row = AuditRow(
            at=datetime.fromtimestamp(at_s, timezone.utc).isoformat(timespec="milliseconds"),
            action=str(one_line(action, MAX_TEXT)),
            **cut,
        )
        line = msgspec.json.encode(row) + b"\n"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                written = os.write(descriptor, line)  # one call: lines of two processes do not mix
            finally:
                os.close(descriptor)
        except OSError as exc:
            raise LabError(
                f"{self._path}: the audit log must be writable, got {exc.strerror}; free space, "
                "or correct the rights of the folder"
            ) from exc
        if written != len(line):
            raise LabError(f"{self._path}: the audit log must be writable, got a full disk")

    def rows(self) -> list[AuditRow]:
        """Return all rows, oldest first; a line that was cut by a full disk is left out."""
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        rows = []
        for line in lines:
            try:
                rows.append(msgspec.json.decode(line, type=AuditRow))
            except msgspec.DecodeError:
                continue
        return rows
