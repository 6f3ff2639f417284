"""A cluster of three NATS servers of which one is killed, in mid-round and under messages."""

import math
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import anyio
import psutil
import pytest

from fairbed.coordinator.policy.config import RoundConfig, SelectionConfig
from fairbed.coordinator.state import registry
from fairbed.testbed.broker.configuration import Cluster, Listener, nats_conf
from fairbed.testbed.host.broker_process import BrokerProcess, find_nats
from fairbed.wire.codec import decode
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import Grant
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkDown, LinkUp, OnComplete, Packet, Transport, Will
from fairbed.wire.transport.client import MqttTransport
from tests.coordinator.lab import NAMES, Lab, Links, lab, make_config
from tests.ledger import Ledger
from tests.wire.transport.memory import MemoryBroker

NODES = 3
ROUNDS = 4
GIVE_UP_S = 90.0

CONFIG = make_config(
    rounds=ROUNDS,
    selection=SelectionConfig(policy="uniform", per_round=len(NAMES)),
    round=RoundConfig(min_devices=len(NAMES), deadline_s=60.0, join_timeout_s=60.0),
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.broker,
    pytest.mark.full,
    pytest.mark.timeout(2 * GIVE_UP_S + 30.0),
    pytest.mark.skipif(find_nats() is None, reason="the NATS server is not installed"),
]


class WatchedLink(MqttTransport):
    """A link that shows what it publishes."""

    on_publish: Callable[[str, bytes], None] | None = None

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | memoryview,
        *,
        qos: int = 0,
        retain: bool = False,
        on_complete: OnComplete,
    ) -> None:
        if self.on_publish is not None:
            self.on_publish(topic, bytes(payload))
        super().publish_nowait(topic, payload, qos=qos, retain=retain, on_complete=on_complete)


class ClusterLinks:
    """Links to a cluster; each knows all nodes."""

    def __init__(self, ports: list[int], nodes: list[BrokerProcess]) -> None:
        self._ports, self._nodes = ports, nodes
        self._url = "mqtt://u:p@" + ",".join(f"127.0.0.1:{port}" for port in ports)
        self._links: dict[str, WatchedLink] = {}

    def transport(self, client_id: str, will: Will | None = None) -> Transport:
        """Return a client's link."""
        self._links[client_id] = WatchedLink(self._url, client_id, will=will)
        return self._links[client_id]

    def disconnect(self, client_id: str, *, reconnects: bool = True) -> None:
        """Not used."""
        raise NotImplementedError

    def first_node(self, client_id: str) -> int:
        """Return the index of the node that a client of this name tries first."""
        return self._index(WatchedLink(self._url, client_id).node)

    def node_of(self, client_id: str) -> int:
        """Return the index of a client's node."""
        return self._index(self._links[client_id].node)

    def watch(self, client_id: str, on_publish: Callable[[str, bytes], None]) -> None:
        """Show what a client publishes."""
        self._links[client_id].on_publish = on_publish

    async def kill(self, node: int) -> None:
        """Kill a node as `kill -9` does."""
        await self._nodes[node].kill()

    async def freeze(self, node: int) -> None:
        """Stop a node without closing its connections, as when its machine vanishes."""
        guard = psutil.Process(self._nodes[node].pid)
        for process in [guard, *guard.children()]:
            process.suspend()

    def _index(self, url: str) -> int:
        return next(i for i, port in enumerate(self._ports) if url.endswith(f":{port}"))


@asynccontextmanager
async def nats_cluster(folder: Path) -> AsyncIterator[ClusterLinks]:
    """Yield links to three NATS servers on loopback."""
    command = find_nats()
    assert command is not None
    ports = free_ports(2 * NODES)
    routes = [f"127.0.0.1:{port}" for port in ports[NODES:]]
    nodes, secret = list[BrokerProcess](), secrets.token_hex(16)
    async with anyio.create_task_group() as starting:  # a node waits for the majority
        for own, port in enumerate(ports[:NODES]):
            config = folder / f"node-{own}.json"
            config.write_text(
                nats_conf(
                    Listener(port=port, host="127.0.0.1"),
                    [{"user": "u", "password": "p", "allowed_connection_types": ["MQTT"]}],
                    server_name=f"node-{own}",
                    data_folder=str(folder / f"node-{own}"),
                    cluster=Cluster(routes=routes, own=own, secret=secret),
                )
            )
            address, log = ("127.0.0.1", port), folder / f"node-{own}.log"
            url = f"mqtt://u:p@127.0.0.1:{port}"
            node = BrokerProcess("nats", command, address, url, log)
            nodes.append(node)
            starting.start_soon(node.start, ["-c", str(config)])
    try:
        yield ClusterLinks(ports[:NODES], nodes)
    finally:
        with anyio.CancelScope(shield=True):
            for node in nodes:
                await node.kill()


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


@asynccontextmanager
async def fleet(folder: Path, links: Links) -> AsyncIterator[Lab]:
    """Devices whose rows and data do not depend on the order of joining."""
    async with lab(folder, agents=0, limit_s=GIVE_UP_S, broker=links) as place:
        place.device_names = NAMES
        for name in NAMES:
            place.shards.shard(name)
        for name in NAMES:
            place.start_agent(name)
        yield place


Loss: TypeAlias = Literal["kill", "freeze"]


async def lose_in_round(place: Lab, links: ClusterLinks, client: str, loss: Loss) -> None:
    """Lose a client's node when the coordinator grants the first upload of the second round."""
    granted = anyio.Event()

    def on_publish(topic: str, payload: bytes) -> None:
        is_control = topic in map(Topics().control, NAMES)
        if is_control and isinstance(decode(payload), Grant):
            granted.set()

    place.on_progress = lambda progress: links.watch("coordinator", on_publish)
    await granted.wait()
    node = links.node_of(client)
    await (links.kill(node) if loss == "kill" else links.freeze(node))


async def models_without_a_loss(folder: Path) -> list[str]:
    """Return the hashes of the models of a run of `CONFIG` over one broker."""
    async with fleet(folder, MemoryBroker()) as place:
        assert await place.run(CONFIG) == "done"
    with place.reader() as reader:
        return [row.model_sha256 for row in reader.rounds()]


@pytest.mark.parametrize("loss", get_args(Loss))
@pytest.mark.parametrize("client", ["coordinator", "pi-0"])
async def test_a_lost_node_costs_time_but_no_update(
    client: str, loss: Loss, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The nodes that are left may elect for longer than a device that left is awaited.
    monkeypatch.setattr(registry, "OFF_GRACE_S", GIVE_UP_S)
    expected = await models_without_a_loss(tmp_path / "memory")
    async with (
        nats_cluster(tmp_path) as links,
        fleet(tmp_path / "cluster", links) as place,
        anyio.create_task_group() as group,
    ):
        group.start_soon(lose_in_round, place, links, client, loss)
        started_s = anyio.current_time()
        assert await place.run(CONFIG) == "done"
        took_s = anyio.current_time() - started_s
    with place.reader() as reader:
        rounds, exchanges = list(reader.rounds()), list(reader.exchanges(0))
    assert [row.status for row in rounds] == ["done"] * ROUNDS
    struck = [row.model_sha256 for row in rounds[:2]]  # later ones may miss a device: it is away
    assert struck == expected[:2]
    assert {x.outcome for x in exchanges} == {"done"}
    counts = Counter((x.round, x.device) for x in exchanges)
    assert max(counts.values()) == 1
    for row in rounds:
        assert row.aggregated == row.selected == sum(x.round == row.round for x in exchanges)
    ledger.note("nats", f"node of {client}, of three: {loss}", lost_s=took_s)


BEFORE, AFTER = 300, 300
"""Messages that are acknowledged in each direction before a node is killed, and after its client
has moved."""

SENDERS = 8
"""Messages that wait for their acknowledgement at the same time."""

DELIVERY_S = 45.0
"""Longest wait for a message that was acknowledged: its subscription elects a new leader for up to
9 s, and a leader repeats after 30 s what was not acknowledged to the lost one."""


class NumberedMessages:
    """Numbered messages of QoS 1 from one client to another; each is sent until acknowledged."""

    def __init__(self, source: Transport, topic: str) -> None:
        self.acknowledged: dict[int, float] = {}
        """Instant of each acknowledgement, by number."""
        self.received: Counter[int] = Counter()
        self._source, self.topic = source, topic
        self._sent = 0
        self._changed = anyio.Event()

    @property
    def lost(self) -> set[int]:
        """Numbers that were acknowledged and did not arrive."""
        return self.acknowledged.keys() - self.received.keys()

    @property
    def doubled(self) -> set[int]:
        """Numbers that arrived more than once."""
        return {number for number, count in self.received.items() if count > 1}

    async def send(self) -> None:
        """Send one message after the other until cancelled."""
        while True:
            number, self._sent = self._sent, self._sent + 1
            while number not in self.acknowledged:
                try:
                    await self._source.publish(self.topic, number.to_bytes(4, "big"), qos=1)
                except Disconnected:
                    await anyio.sleep(0.02)
                    continue
                self.acknowledged[number] = anyio.current_time()
            self._notify()

    def on_message(self, payload: bytes | memoryview) -> None:
        """A message has arrived."""
        self.received[int.from_bytes(payload, "big")] += 1
        self._notify()

    async def wait_acknowledged(self, count: int) -> None:
        """Wait until so many messages are acknowledged."""
        while len(self.acknowledged) < count:
            await self._changed.wait()

    def owed(self, receiver: "Client") -> list[int]:
        """Return what has not arrived although the receiver stayed connected since then."""
        now = anyio.current_time()
        return [n for n in self.lost if receiver.was_connected(self.acknowledged[n], now)]

    async def wait_received(self, receiver: "Client") -> None:
        """Wait until nothing is owed, or for `DELIVERY_S`."""
        with anyio.move_on_after(DELIVERY_S):
            owed = self.owed(receiver)
            while owed := [n for n in owed if n not in self.received]:
                await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class Client:
    """One of two clients that send each other messages."""

    def __init__(self, links: ClusterLinks, name: str) -> None:
        self.name, self.link = name, links.transport(name)
        self.up_at: list[float] = []
        """Instant of each connection."""
        self.down_at: list[float] = []
        """Instant of each loss of it."""
        self._connected = anyio.Event()

    async def receive(self, messages: NumberedMessages) -> None:
        """Pass on what arrives until cancelled."""
        with suppress(Disconnected):
            await self.link.subscribe(messages.topic, qos=1)
        async for event in self.link.events():
            match event:
                case LinkUp():
                    self.up_at.append(anyio.current_time())
                    self._connected.set()
                    self._connected = anyio.Event()
                case LinkDown():
                    self.down_at.append(anyio.current_time())
                case Packet(payload=payload):
                    messages.on_message(payload)

    def was_connected(self, since: float, until: float) -> bool:
        """Return whether the client had one connection all this time."""
        down_at = [*self.down_at, math.inf]
        return any(
            up <= since and until <= down for up, down in zip(self.up_at, down_at, strict=False)
        )

    async def wait_up(self, count: int) -> None:
        """Wait for the n-th connection."""
        while len(self.up_at) < count:
            await self._connected.wait()


def names_on_nodes(links: ClusterLinks, *nodes: int) -> list[str]:
    """Return a name of a client for each node; its checksum selects that node."""
    names = (f"client-{i}" for i in range(1_000))
    return [next(x for x in names if links.first_node(x) == node) for node in nodes]


@pytest.mark.parametrize("killed", [1, 2], ids=["of-a-client", "of-no-client"])
async def test_messages_of_qos_1_under_way_when_a_node_is_killed(
    killed: int, tmp_path: Path, ledger: Ledger
) -> None:
    with anyio.fail_after(2 * GIVE_UP_S):
        async with nats_cluster(tmp_path) as links:
            stays, moves = (Client(links, name) for name in names_on_nodes(links, 0, 1))
            async with stays.link, moves.link, anyio.create_task_group() as group:
                to_moving = NumberedMessages(stays.link, "qos/to-moving")
                to_staying = NumberedMessages(moves.link, "qos/to-staying")
                group.start_soon(stays.receive, to_staying)
                group.start_soon(moves.receive, to_moving)
                await stays.wait_up(1)
                await moves.wait_up(1)
                async with anyio.create_task_group() as sending:
                    for messages in (to_moving, to_staying):
                        for _ in range(SENDERS):
                            sending.start_soon(messages.send)
                    for messages in (to_moving, to_staying):
                        await messages.wait_acknowledged(BEFORE)
                    await links.kill(killed)
                    if killed == 1:
                        await moves.wait_up(2)
                    for messages in (to_moving, to_staying):
                        await messages.wait_acknowledged(len(messages.acknowledged) + AFTER)
                    sending.cancel_scope.cancel()
                await to_moving.wait_received(moves)
                await to_staying.wait_received(stays)
                owed = to_moving.owed(moves), to_staying.owed(stays)
                group.cancel_scope.cancel()
    for title, messages, receiver in (("to", to_moving, moves), ("from", to_staying, stays)):
        ledger.lines.append(
            f"nats      node {killed} killed, QoS 1 {title} the client of node 1: "
            f"{len(messages.acknowledged)} acknowledged, {len(messages.lost)} lost, "
            f"{len(messages.doubled)} doubled, {len(receiver.up_at)} connections of the receiver"
        )
    assert owed == ([], []), "an acknowledged message reaches a receiver that stays connected"
