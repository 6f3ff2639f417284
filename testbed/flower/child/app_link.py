"""The connection of a ServerApp's process to the coordinator: what it knows, and its waits.

A thread reads the frames and notes them; the threads of the app wait for what they need. No wait
outlasts the connection: its end ends the process.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fairbed.device_agent.clients.child.frames import (
    Buffer,
    Closed,
    FrameError,
    Header,
    receive_frame,
    send_frame,
)

MAX_PAYLOAD = 1 << 33
"""Bytes of a frame from the coordinator, whose own bounds are lower."""

CHECK_S = 0.5
"""Interval at which a wait looks whether it has been stopped."""

T = TypeVar("T")


class StopApp(BaseException):
    """The run is over for the app; no `except Exception` of the app keeps it. One line."""


@dataclass(frozen=True)
class Start:
    """The frame `start`."""

    folder: str
    component: str
    run_config: dict[str, Any] = field(default_factory=dict)
    run: int = 1
    """Number of the run, as Flower has it."""
    policy: str = "app"
    """app: the strategy selects; ours: it gets a cohort."""
    merge: str = "strategy"
    """strategy, or ours: the arrays of a round come from the coordinator."""
    poll_s: float = 5.0
    """With a cohort, longest polling of the nodes without a message."""
    nodes: tuple[int, ...] = ()
    first_round: int = 1
    arrays: bytes = b""
    """Records with the global arrays of a resumed run."""

    @property
    def has_cohorts(self) -> bool:
        """The coordinator selects."""
        return self.policy != "app"


@dataclass(frozen=True)
class Reply:
    """A reply to a message of the app: records as bytes, or an error."""

    records: Buffer = b""
    code: int | None = None
    reason: str = ""


class AppLink:
    """Frames of one ServerApp; each method may be called from any thread."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._nodes: tuple[int, ...] | None = None
        self._cohorts: dict[int, tuple[int, ...]] = {}
        self._merged: dict[int, memoryview] = {}
        self._replies: dict[str, Reply] = {}
        self._expected: set[str] = set()
        self.failure: StopApp | None = None
        """Why the app is ended; each further call of it raises this again."""

    def start(self) -> Start:
        """Wait for the frame `start`, then read all others in a thread."""
        try:
            header, parts = receive_frame(self._link, MAX_PAYLOAD)
        except (Closed, FrameError, OSError):
            os._exit(1)
        header = {name: value for name, value in header.items() if name != "do"}
        nodes = tuple(header.pop("nodes", ()))
        self._nodes = nodes or None
        found = Start(**header, nodes=nodes, arrays=bytes(parts.get("arrays", b"")))
        threading.Thread(target=self._read, name="frames", daemon=True).start()
        return found

    # To the coordinator.

    def send(self, header: Mapping[str, Any], parts: Mapping[str, Buffer] | None = None) -> None:
        """Send a frame.

        Raises:
            StopApp: The run is over.
        """
        self.check()
        self._send(header, parts or {})

    def send_last(self, header: Mapping[str, Any]) -> None:
        """Send a frame although the app is ended."""
        self._send(header, {})

    def _send(self, header: Mapping[str, Any], parts: Mapping[str, Buffer]) -> None:
        with self._sending:
            try:
                send_frame(self._link, header, parts)
            except OSError:
                os._exit(1)  # the coordinator is gone

    def fail(self, error: str) -> StopApp:
        """Return the error that ends the app, which each later call raises, too."""
        with self._changed:
            self.failure = self.failure or StopApp(error)
            self._changed.notify_all()
            return self.failure

    def check(self) -> None:
        """Raise if the run is over.

        Raises:
            StopApp: The run is over.
        """
        if self.failure is not None:
            raise self.failure

    # What the coordinator has sent.

    @property
    def nodes(self) -> tuple[int, ...]:
        """Ids of the devices that are willing; waits until the fleet of the run is there."""
        if self._nodes is None:
            self.send({"is": "waits", "round": 0, "waited_s": 0.0, "offered": 0, "needed": 0})
            return self._wait(lambda: self._nodes)
        return self._nodes

    def cohort(self, round_number: int) -> tuple[int, ...]:
        """Ask for the cohort of a round and wait for it."""
        self.send({"is": "cohort", "round": round_number})
        return self._wait(lambda: self._cohorts.pop(round_number, None))

    def merged(self, round_number: int) -> memoryview:
        """Wait for the arrays that the coordinator has merged; records, empty if none."""
        return self._wait(lambda: self._merged.pop(round_number, None))

    def expect(self, ids: Sequence[str]) -> None:
        """Keep the replies to these messages; replies to others are dropped."""
        with self._changed:
            self._expected.update(ids)

    def forget(self, ids: Sequence[str]) -> None:
        """Drop the replies to these messages, also those to come, and notify the coordinator."""
        with self._changed:
            self._expected.difference_update(ids)
            for each in ids:
                self._replies.pop(each, None)
        if ids:
            self.send({"is": "ended", "ids": list(ids)})

    def take(self, ids: Sequence[str]) -> dict[str, Reply]:
        """Return the replies that are there, once, in the order of `ids`."""
        self.check()
        with self._changed:
            found = {each: self._replies.pop(each) for each in ids if each in self._replies}
            self._expected.difference_update(found)
        return found

    def wait_for_replies(self, ids: Sequence[str], until_s: float | None) -> None:
        """Wait until all replies are there, or the monotonic time is `until_s`."""

        def are_there() -> bool | None:
            return True if all(each in self._replies for each in ids) else None

        self._wait(are_there, until_s)

    def _wait(self, answer: Callable[[], T | None], until_s: float | None = None) -> T:
        with self._changed:
            while True:
                self.check()
                found = answer()
                if found is not None:
                    return found
                left_s = CHECK_S if until_s is None else until_s - time.monotonic()
                if left_s <= 0.0:
                    return found  # type: ignore[return-value]
                self._changed.wait(min(left_s, CHECK_S))

    def _read(self) -> None:
        try:
            while True:
                header, parts = receive_frame(self._link, MAX_PAYLOAD)
                if header.get("do") == "stop":
                    self.fail("the run has been stopped")
                    continue
                with self._changed:
                    self._note(header, parts)
                    self._changed.notify_all()
                del header, parts
        except (Closed, FrameError, OSError):
            os._exit(1)  # the coordinator is gone

    def _note(self, header: Header, parts: Mapping[str, memoryview]) -> None:
        match header.get("do"):
            case "nodes":
                self._nodes = tuple(header["nodes"])
            case "cohort":
                self._cohorts[header["round"]] = tuple(header["nodes"])
            case "merged":
                self._merged[header["round"]] = parts["arrays"]
            case "reply" if header["id"] in self._expected:
                self._replies[header["id"]] = Reply(
                    parts.get("records", memoryview(b"")),
                    header.get("code"),
                    header.get("reason", ""),
                )
