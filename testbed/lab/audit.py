"""The audit log of a lab: one JSON object per line, only ever appended to.

It names the action, the identity and the requester, never a password, a token or a key.
"""

import os
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from msgspec import Struct

from fairbed.testbed.errors import LabError
from fairbed.wire.printable import one_line

MAX_TEXT = 200
"""Longest text of a field, characters; texts of devices are cut to it."""


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
        row = AuditRow(
            at=datetime.fromtimestamp(at_s, timezone.utc).isoformat(timespec="milliseconds"),
            action=str(one_line(action, MAX_TEXT)),
            name=str(one_line(name, MAX_TEXT)),
            role=str(one_line(role, MAX_TEXT)),
            by=str(one_line(by, MAX_TEXT)),
            address=str(one_line(address, MAX_TEXT)),
            detail=str(one_line(detail, MAX_TEXT)),
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
