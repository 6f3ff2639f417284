"""Messages between a backend and the fork server of its agents: one line of JSON each.

A start is answered by `Started` or `NotStarted`; every process that was started ends with
exactly one `Exited`, whatever ended it.
"""

from typing import TypeAlias

from msgspec import Struct

from fairbed.testbed.backends.launcher import Launch


class Start(Struct, frozen=True, kw_only=True, tag="start"):
    """Start an agent."""

    launch: Launch


class Signal(Struct, frozen=True, kw_only=True, tag="signal"):
    """Send a signal to an agent; nothing happens if it has ended."""

    name: str
    number: int


class Started(Struct, frozen=True, kw_only=True, tag="started"):
    """An agent's process exists."""

    name: str
    pid: int


class NotStarted(Struct, frozen=True, kw_only=True, tag="not-started"):
    """The machine refused a process."""

    name: str
    reason: str


class Exited(Struct, frozen=True, kw_only=True, tag="exited"):
    """An agent's process has ended."""

    name: str
    pid: int
    status: int
    """Exit status, or minus the number of the signal that ended it."""


Request: TypeAlias = Start | Signal
Reply: TypeAlias = Started | NotStarted | Exited
