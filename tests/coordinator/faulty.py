"""A broker with one fault at one step of the protocol."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from fairbed.wire.codec import decode
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import Message
from fairbed.wire.topics import Topics
from tests.wire.transport.memory import MemoryBroker

Fault: TypeAlias = Literal[
    "lost",
    "twice",
    "device cut before",
    "device cut after",
    "coordinator cut before",
    "coordinator cut after",
    "broker restarted before",
    "broker restarted after",
]

VICTIM = "pi-1"


class FaultyBroker(MemoryBroker):
    """Passes on all packets except one to or from `VICTIM`, to which the fault applies."""

    def __init__(self, fault: Fault | None, is_it: Callable[[str, bytes], bool]) -> None:
        super().__init__()
        self.has_struck = False
        self.on_strike: Callable[[], None] = lambda: None
        """Called when the fault happens; must not wait."""
        self._fault = fault
        self._is_it = is_it

    def route(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        if self._fault is None or self.has_struck or not self._is_it(topic, payload):
            super().route(topic, payload, qos, retain)
            return
        self.has_struck = True
        self.on_strike()
        fault, _, when = self._fault.rpartition(" ")
        if when in ("after", "twice"):
            super().route(topic, payload, qos, retain)
        match fault:
            case "device cut":
                self.disconnect(VICTIM)
            case "coordinator cut":
                self.disconnect("coordinator")
            case "broker restarted":
                self.restart()
        if when == "twice":
            super().route(topic, payload, qos, retain)


def message_of(kind: type[Message], round_id: int | None = None) -> Callable[[str, bytes], bool]:
    """Return a predicate for the victim's messages of a kind, of one round if they have one."""
    topics = Topics()
    mine = (topics.up(VICTIM), topics.control(VICTIM), topics.telemetry(VICTIM))

    def is_it(topic: str, payload: bytes) -> bool:
        if topic not in mine:
            return False
        try:
            message = decode(payload)
        except DecodeError:
            return False
        return isinstance(message, kind) and getattr(message, "round", round_id) == round_id

    return is_it


def update_chunk(topic: str, payload: bytes) -> bool:
    """Return whether a packet is a chunk of the victim's update."""
    return topic == Topics().upload(VICTIM)


def model_chunk(topic: str, payload: bytes) -> bool:
    """Return whether a packet is a chunk of a public blob that is published."""
    return "/c/" in topic and bool(payload)
