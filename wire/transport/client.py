"""A transport over MQTT 3.1.1: a link that reconnects by itself, with jitter.

Every connection has a clean session, so no state of an old one remains. `make_connection` chooses
the MQTT client. `Filters` are the subscriptions, restored after each reconnect.
"""

import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Iterable

import anyio
from anyio.abc import TaskGroup

from fairbed.wire.errors import Disconnected, Refused
from fairbed.wire.transport.address import parse_url, redact
from fairbed.wire.transport.base import (
    KEEPALIVE_S,
    Incoming,
    LinkDown,
    LinkUp,
    Packet,
    Settled,
    Transport,
    Will,
)
from fairbed.wire.transport.inbox import ReceiveQueue
from fairbed.wire.transport.link import LEAVE_S, Connection, Dial, Take
from fairbed.wire.transport.own_client import OwnConnection


def full_jitter(
    rng: random.Random, base_s: float = 0.1, cap_s: float = 5.0
) -> Callable[[int], float]:
    """Return a backoff: seconds to wait before the n-th retry in a row, n from 0.

    The wait is uniform between half of `base_s` and `base_s` x 2^(n + 1), at most `cap_s`, so a
    fleet that lost its broker comes back spread out, and a single hiccup costs 50 to 200 ms.

    Source:
        Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015 ("full jitter").
    """

    def backoff(retry: int) -> float:
        return rng.uniform(base_s / 2, min(cap_s, base_s * 2.0 ** min(retry + 1, 30)))

    return backoff


class Filters:
    """The filters of one client and their QoS; quick for many plain topics and few patterns."""

    def __init__(self) -> None:
        self.qos: dict[str, int] = {}
        """QoS by filter, oldest first."""
        self._patterns: list[str] = []

    def add(self, filters: Iterable[str], qos: int) -> None:
        """Subscribe, or change the QoS."""
        self.qos.update(dict.fromkeys(filters, qos))
        self._sort_out()

    def discard(self, filters: Iterable[str]) -> None:
        """Unsubscribe; what is not subscribed is passed over."""
        for name in filters:
            self.qos.pop(name, None)
        self._sort_out()

    def qos_of(self, topic: str) -> int | None:
        """Return the highest QoS at which `topic` is subscribed; None when it is not."""
        found = [self.qos[p] for p in self._patterns if matches(p, topic)]
        if topic in self.qos:
            found.append(self.qos[topic])
        return max(found, default=None)

    def _sort_out(self) -> None:
        self._patterns = [name for name in self.qos if "+" in name or "#" in name]


def matches(pattern: str, topic: str) -> bool:
    """Tell whether a topic filter covers `topic` (MQTT 3.1.1, section 4.7)."""
    wanted, given = pattern.split("/"), topic.split("/")
    if given[0].startswith("$") and wanted[0] in ("+", "#"):
        return False
    for i, level in enumerate(wanted):
        if level == "#":
            return True
        if i >= len(given) or level not in ("+", given[i]):
            return False
    return len(wanted) == len(given)


STABLE_S = 5.0
"""A link that lasted this long starts the backoff afresh."""

_log = logging.getLogger(__name__)


def make_connection(dial: Dial, take: Take, tasks: TaskGroup) -> Connection:
    """Return a link of the kind that the address names: our own, or aiomqtt's.

    `tasks` run what a link does in the background.
    """
    if dial.address.client == "direct":
        return OwnConnection(dial, take)
    from fairbed.wire.transport.aiomqtt_client import AiomqttConnection

    return AiomqttConnection(dial, take, tasks)


class MqttTransport(Transport):
    """One client's link to an MQTT broker.

    Args:
        url: `mqtt://user:password@host:port`, or `mqtts://...?cafile=FILE`; with
            `?client=aiomqtt` that library speaks MQTT for us.
        client_id: Unique at the broker; a second client of the same id throws the first one out.
        will: Published, retained, by the broker if this client vanishes.
        keepalive_s: The broker misses a silent client after 1.5 times this.
        connect_timeout_s: For the connection, and as long again for the broker's answer.
        publish_timeout_s: For one operation, beside the time that its bytes and those before it
            take at 100 kbit/s; then the link is given up and made anew. A dead link is noticed
            sooner, by the keepalive.
        backoff: Seconds before the n-th retry in a row.

    Raises:
        ValueError: The URL is not a broker's address, or its certificates cannot be read.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        *,
        will: Will | None = None,
        keepalive_s: int = KEEPALIVE_S,
        connect_timeout_s: float = 10.0,
        publish_timeout_s: float = 60.0,
        backoff: Callable[[int], float] | None = None,
    ) -> None:
        self.url, self.client_id = redact(url), client_id
        self.trouble: str | None = "not connected yet"
        """Why the link is down; None while it is up."""
        self.strays = 0
        """Packets on topics that we have not subscribed to, or not any more; ignored."""
        address = parse_url(url)
        self._dial = Dial(
            address=address,
            url=self.url,
            client_id=client_id,
            will=will,
            tls=address.tls_context(),
            keepalive_s=keepalive_s,
            connect_timeout_s=connect_timeout_s,
            publish_timeout_s=publish_timeout_s,
        )
        self._backoff = backoff or full_jitter(random.Random())
        self._inbox, self._filters = ReceiveQueue(), Filters()
        self._link: Connection | None = None
        self._early: list[tuple[Packet, int]] = []
        """What came before the link counted as up, and its QoS: `LinkUp` goes first."""
        self._ups = 0
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> "MqttTransport":
        """Start connecting; return at once."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run, self._tasks, name=f"mqtt[{self.client_id}].link")
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Say goodbye, in bounded time; the broker does not publish the will."""
        assert self._tasks is not None, "leaving a transport that was not entered"
        self._tasks.cancel_scope.cancel()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._inbox.close()

    def events(self) -> AsyncIterator[Incoming]:
        """Yield packets and link changes in order, to a single consumer; waits may be cancelled.

        Raises:
            Refused: The broker said no; there is no point in trying again.
        """
        return self._inbox

    @property
    def dropped(self) -> int:
        """Packets of QoS 0 that found the incoming queue full."""
        return self._inbox.dropped

    def post(
        self,
        topic: str,
        payload: bytes | memoryview,
        *,
        qos: int = 0,
        retain: bool = False,
        settled: Settled,
    ) -> None:
        """Send without waiting; `settled` is called once.

        Raises:
            Disconnected: The link is down; `settled` is not called.
        """
        self._up("publish").post(topic, payload, qos, retain, settled)

    async def publish(
        self, topic: str, payload: bytes | memoryview, *, qos: int = 0, retain: bool = False
    ) -> None:
        """Send; at QoS 1 return when the broker has it, at QoS 0 when it is on its way.

        Raises:
            Disconnected: The link is down, or went down before that.
        """
        await self._up("publish").publish(topic, payload, qos, retain)

    async def subscribe(self, *filters: str, qos: int = 0) -> None:
        """Subscribe, now and after each reconnect.

        Raises:
            Disconnected: The link is down; the filters are remembered all the same.
            Refused: The broker does not allow it.
        """
        self._filters.add(filters, qos)
        await self._up("subscribe").subscribe(dict.fromkeys(filters, qos))

    async def unsubscribe(self, *filters: str) -> None:
        """Unsubscribe and forget.

        Raises:
            Disconnected: The link is down; the filters are forgotten all the same.
        """
        self._filters.discard(filters)
        await self._up("unsubscribe").unsubscribe(filters)

    def _up(self, action: str) -> Connection:
        if self._link is None:
            raise Disconnected(f"{self.url}: cannot {action} while down ({self.trouble})")
        return self._link

    async def _run(self, tasks: TaskGroup) -> None:
        """Keep the link up until cancelled or refused."""
        retry = 0
        while True:
            up_since = math.inf
            link = make_connection(self._dial, self._take, tasks)
            try:
                await link.connect()
                up_since = anyio.current_time()
                await self._serve(link)
            except Refused as exc:
                self.trouble = str(exc)
                _log.error("%s", self.trouble)
                self._inbox.fail(exc)
                return
            except Disconnected as exc:
                self._say(f"cannot connect: {exc}")
            finally:
                link.abandon()
            retry = 0 if anyio.current_time() - up_since > STABLE_S else retry + 1
            await anyio.sleep(self._backoff(retry - 1 if retry else 0))

    async def _serve(self, link: Connection) -> None:
        """Announce the link, wait until it is lost, and say so; leave it cleanly otherwise."""
        self._early = []
        is_lost = False
        try:
            reason = await self._restore(link)
            if reason is None:
                self._announce(link)
                reason = await link.lost()
                self._inbox.put(LinkDown(reason))
            is_lost = True
            self._say(reason)
        finally:
            self._link = None
            if not is_lost:
                with anyio.move_on_after(LEAVE_S, shield=True):
                    await link.leave()

    def _announce(self, link: Connection) -> None:
        self._ups += 1
        self.trouble = None
        self._link = link
        self._inbox.put(LinkUp(self._ups))
        for packet, qos in self._early:
            self._take(packet, qos)
        self._early = []
        _log.info("%s: %s is up (%d)", self.url, self.client_id, self._ups)

    async def _restore(self, link: Connection) -> str | None:
        """Subscribe to all remembered filters, also those that come and go meanwhile.

        Returns:
            Why the link is lost instead; None when it is not.
        """
        done: dict[str, int] = {}
        try:
            with anyio.fail_after(self._dial.connect_timeout_s):
                while done != (wanted := self._filters.qos):
                    todo = {name: q for name, q in wanted.items() if done.get(name) != q}
                    gone = [name for name in done if name not in wanted]
                    await link.subscribe(todo)
                    if gone:
                        await link.unsubscribe(gone)
                    done = {name: q for name, q in (done | todo).items() if name not in gone}
        except TimeoutError:
            return "no answer to subscribe"
        except Disconnected:
            return await link.lost()
        return None

    def _take(self, packet: Packet, qos: int) -> bool:
        """Queue a packet, as the link reads it."""
        if self._link is None:
            self._early.append((packet, qos))
            return True
        if self._filters.qos_of(packet.topic) is None:
            self.strays += 1  # too late, or never asked for, as amqtt 0.12 may send it
            return True
        if self._inbox.put(packet, qos):
            return True
        self._link.cut("the incoming queue is full of unread control messages")
        self._link = None
        return False

    def _say(self, reason: str) -> None:
        if reason != self.trouble:
            _log.warning("%s: %s is down: %s", self.url, self.client_id, reason)
        self.trouble = reason
