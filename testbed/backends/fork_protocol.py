"""Messages between a backend and its fork server: one line of JSON each.

The reply to `Start` is `Started` or `NotStarted`. For each started process exactly one `Exited`
follows, whatever ended the process.
"""

from typing import TypeAlias

from msgspec import Struct

from fairbed.testbed.backends.launcher import Launch


class Start(Struct, frozen=True, kw_only=True, tag="start"):
    """Start an agent."""

    launch: Launch


class Signal(Struct, frozen=True, kw_only=True, tag="signal"):
    """Send a signal to an agent; ignored if the agent has ended."""

    name: str
    number: int


class Started(Struct, frozen=True, kw_only=True, tag="started"):
    """The process of an agent exists."""

    name: str
    pid: int


class NotStarted(Struct, frozen=True, kw_only=True, tag="not-started"):
    """The process of an agent cannot be created."""

    name: str
    reason: str


class Exited(Struct, frozen=True, kw_only=True, tag="exited"):
    """The process of an agent has ended."""

    name: str
    pid: int
    status: int
    """Exit status, or minus the number of the signal that ended it."""


Request: TypeAlias = Start | Signal
Reply: TypeAlias = Started | NotStarted | Exited
