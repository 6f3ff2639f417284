"""The grid of a Flower app whose nodes are the devices of a run."""

import hashlib
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

from fairbed.device_agent.clients.child.flower_records import (
    ABOUT,
    decode,
    encode,
    from_records,
    split_message,
    to_records,
)
from fairbed.device_agent.clients.child.kinds import ClientError
from fairbed.testbed.flower.child.app_link import AppLink, Reply, Start, StopApp
from fairbed.wire.records import Record

if TYPE_CHECKING:
    from fairbed.testbed.flower.child.strategies import Strategies

NODE_ID = 1
"""Id of the server among the nodes, as in Flower."""

MESSAGE_UNAVAILABLE, NODE_UNAVAILABLE = 3, 5
"""Codes of `flwr.common.constant.ErrorCode`."""

KINDS = ("train", "evaluate", "query")
"""First parts of the types of messages; the older API has others, which are queries here."""

LINGER_S = 0.2
"""Time that a group of messages waits for more of them, if they are pushed one by one."""

MAX_ID = 1 << 63


def identify(run: int) -> None:
    """Give this process the identity that messages have from flwr 1.40 on."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    TaskIdentity.task_id = TaskIdentity.node_id = NODE_ID
    TaskIdentity.run_id = run


@dataclass
class _Pushed:
    """A message that has no reply yet, without its content."""

    message: Any
    ends_s: float
    """Monotonic time at which its TTL ends."""


@dataclass
class _Group:
    """Messages that are sent together."""

    type: str
    group: str
    round: int
    messages: list[Any] = field(default_factory=list)
    payloads: dict[int, bytes] = field(default_factory=dict)
    last_s: float = 0.0


class AppGrid(Grid):  # type: ignore[misc]  # Flower is not in the environment of the checks
    """A grid; its methods may be called from any thread of the app."""

    def __init__(self, link: AppLink, start: Start, strategies: "Strategies") -> None:
        self._link, self._start, self._strategies = link, start, strategies
        self._lock = threading.RLock()
        self._pushed: dict[str, _Pushed] = {}
        self._groups: dict[tuple[str, str], _Group] = {}
        self._payloads = _Payloads(link)
        self._is_watching = False

    # The run.

    def set_run(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the process has one run."""

    @property
    def run(self) -> Any:
        """The run, as Flower describes it."""
        try:
            from flwr.supercore.run import Run
        except ImportError:
            from flwr.common.typing import Run
        if hasattr(Run, "create_empty"):
            return Run.create_empty(self._start.run)
        return Run(self._start.run, "", "", "", {}, "", "", "", "", None, "", "")

    def create_message(
        self,
        content: Any,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Any:
        """Return a message, as its constructor does."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    # The nodes.

    def get_node_ids(self) -> Iterable[int]:
        """Return the willing devices; the cohort, while a strategy configures training."""
        return self._strategies.nodes()

    # Messages.

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        """Send messages; return their ids.

        Those of one type and group, pushed one by one, are sent together.
        """
        return self._push(messages, timeout_s=None, is_whole=False)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        """Return the replies that are there; each is returned once."""
        ids = list(message_ids)
        self._flush_idle()
        taken = self._link.take(ids)
        now_s = time.monotonic()
        found = []
        for each in ids:
            pushed = self._pushed.get(each)
            if pushed is None:
                continue
            if each in taken:
                found.append(self._reply(pushed, taken[each]))
            elif now_s >= pushed.ends_s:
                found.append(_error(pushed, MESSAGE_UNAVAILABLE, "its time to live has ended"))
                self._link.forget([each])
            else:
                continue
            del self._pushed[each]
        return found

    def send_and_receive(
        self, messages: Iterable[Any], *, timeout: float | None = None
    ) -> Iterable[Any]:
        """Send messages, wait for their replies and return them in the order of the nodes.

        Strategies sample in a random order, and sums of floats depend on it. A message without a
        reply after `timeout` seconds has none in the result.
        """
        begun_s = time.monotonic()
        # The proxies of the older strategies call this in threads, each for one message of a round.
        is_whole = threading.current_thread() is threading.main_thread()
        ids = self._push(messages, timeout_s=timeout, is_whole=is_whole)
        if not ids:
            return []
        until_s = max(self._pushed[each].ends_s for each in ids)
        if timeout is not None:
            until_s = min(until_s, begun_s + timeout)
        self._link.wait_for_replies(ids, until_s)
        order = {node: at for at, node in enumerate(self._link.nodes)}
        last = len(order)
        found = sorted(
            self.pull_messages(ids), key=lambda each: order.get(each.metadata.src_node_id, last)
        )
        late = [each for each in ids if each in self._pushed]
        for each in late:
            del self._pushed[each]
        self._link.forget(late)
        return found

    def flush(self) -> None:
        """Send what still waits for more messages of its group."""
        with self._lock:
            for group in list(self._groups.values()):
                self._send(group, timeout_s=None, is_whole=False)

    def _push(self, messages: Iterable[Any], timeout_s: float | None, is_whole: bool) -> list[str]:
        self._link.check()
        ids: list[str] = []
        groups: dict[tuple[str, str], _Group] = {}
        with self._lock:
            for message in messages:  # a generator may change a record after it has yielded it
                group = self._group(groups if is_whole else self._groups, message)
                ids.append(self._add(group, message))
            if is_whole:
                for group in groups.values():
                    self._send(group, timeout_s, is_whole)
            if self._groups and not self._is_watching:
                self._is_watching = True
                self._flush_later()
        return ids

    def _group(self, groups: dict[tuple[str, str], _Group], message: Any) -> _Group:
        about = message.metadata
        key = about.message_type, about.group_id
        if key not in groups:
            groups[key] = _Group(*key, round=self._strategies.round)
        groups[key].last_s = time.monotonic()
        return groups[key]

    def _add(self, group: _Group, message: Any) -> str:
        about = message.metadata
        if about.reply_to_message_id:
            raise ValueError("a message to a node must not be a reply")
        if not message.has_content():
            raise ValueError("a message to a node must have content")
        each = uuid.uuid4().hex
        for name, value in (
            ("_message_id", each),
            ("_run_id", self._start.run),
            ("_src_node_id", NODE_ID),
        ):
            about.__dict__[name] = value
        self._strategies.check_node(about.message_type, about.dst_node_id)
        self._link.expect([each])
        number, config = self._payloads.add(group, message)
        sent = {
            "id": each,
            "node": about.dst_node_id,
            "ttl_s": float(about.ttl),
            "payload": number,
        }
        group.messages.append((sent, config))
        self._pushed[each] = _Pushed(_bare(message), time.monotonic() + float(about.ttl))
        return each

    def _send(self, group: _Group, timeout_s: float | None, is_whole: bool) -> None:
        self._groups.pop((group.type, group.group), None)
        configs: dict[bytes, int] = {}
        messages = []
        for sent, config in group.messages:
            messages.append({**sent, "config": configs.setdefault(config, len(configs))})
        kind = group.type
        is_known = kind.partition(".")[0] in KINDS
        self._strategies.check_push(kind, [each["node"] for each in messages])
        header = {
            "is": "push",
            "round": group.round,
            "type": kind if is_known else f"query.{group.type}",
            "group": group.group,
            "is_whole": is_whole,
            "timeout_s": timeout_s or 0.0,
            "messages": messages,
            "configs": [len(config) for config in configs],
        }
        self._payloads.send(group, self._groups.values())
        self._link.send(header, {"configs": b"".join(configs)})

    def _flush_idle(self) -> None:
        with self._lock:
            idle_s = time.monotonic() - LINGER_S
            for group in [each for each in self._groups.values() if each.last_s <= idle_s]:
                self._send(group, timeout_s=None, is_whole=False)

    def _flush_later(self) -> None:
        timer = threading.Timer(LINGER_S, self._flush_late)
        timer.daemon = True
        timer.start()

    def _flush_late(self) -> None:
        with self._lock:
            try:
                self._flush_idle()
            except StopApp:
                return  # the thread of the app raises it, too
            self._is_watching = bool(self._groups)
            if self._is_watching:
                self._flush_later()

    def _reply(self, pushed: _Pushed, reply: Reply) -> Any:
        if reply.code is not None:
            return _error(pushed, reply.code, reply.reason)
        try:
            content = from_records(decode(reply.records))
        except ClientError as exc:
            return _error(pushed, MESSAGE_UNAVAILABLE, str(exc))
        return _named(Message(content, reply_to=pushed.message))


class _Payloads:
    """Gives equal arrays one number, and sends the payload of a number once.

    The coordinator keeps the payloads of the last push, and so does this.
    """

    def __init__(self, link: AppLink) -> None:
        self._link = link
        self._next = 0
        self._last: dict[int, bytes] = {}
        self._numbers: dict[bytes, int] = {}
        """By the hash of a payload."""
        self._known: dict[Any, tuple[int, list[bytes]]] = {}
        """By what the arrays are: their data, which are immutable and kept here."""

    def add(self, group: _Group, message: Any) -> tuple[int, bytes]:
        """Return the number of a message's payload, and its configuration."""
        content = message.content
        if ABOUT in content:
            raise ValueError(f"a record must not have the name {ABOUT}, which Fairbed uses")
        arrays = content.array_records
        small = to_records({name: each for name, each in content.items() if name not in arrays})
        raw, rest = split_message(small)
        key = tuple(
            (name, item, array.dtype, tuple(array.shape), array.stype, id(array.data))
            for name, record in arrays.items()
            for item, array in record.items()
        )
        number, held = self._known.get(key, (-1, []))
        payload = group.payloads.get(number, self._last.get(number))
        if payload is None or raw:
            payload = encode({**to_records(arrays), **raw})
            digest = hashlib.sha256(payload).digest()
            number = self._numbers.setdefault(digest, self._next)
            self._next = max(self._next, number + 1)
            held = [each.data for record in arrays.values() for each in record.values()]
            if not raw:
                self._known[key] = number, held
        group.payloads.setdefault(number, payload)
        about = message.metadata
        stated = {
            "type": about.message_type,
            "group": about.group_id,
            "ttl": float(about.ttl),
        }
        ordered = {name: rest.get(name, Record("arrays")) for name in content}
        return number, encode({ABOUT: Record("config", stated), **ordered})

    def send(self, group: _Group, others: Iterable[_Group]) -> None:
        """Send the payloads of a group that the coordinator has not, before its messages."""
        for number, payload in group.payloads.items():
            if number not in self._last:
                self._link.send({"is": "payload", "index": number}, {"raw": payload})
        self._last = group.payloads
        kept = set(self._last).union(*(each.payloads for each in others))
        self._numbers = {key: x for key, x in self._numbers.items() if x in kept}
        self._known = {key: x for key, x in self._known.items() if x[0] in kept}


def _bare(message: Any) -> Any:
    """Return a message with the metadata of another one: replies need no more of it."""
    return Message(content=type(message.content)(), metadata=message.metadata)


def _error(pushed: _Pushed, code: int, reason: str) -> Any:
    return _named(Message(Error(code, reason), reply_to=pushed.message))


def _named(reply: Any) -> Any:
    reply.metadata.__dict__["_message_id"] = uuid.uuid4().hex
    return reply
