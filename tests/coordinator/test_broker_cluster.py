"""A run over a cluster of three NATS servers of which one is killed in mid-round."""

import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from fairbed.coordinator.policy.config import RoundConfig, SelectionConfig
from fairbed.testbed.host.broker_process import BrokerProcess, find_nats
from fairbed.testbed.lab.brokers import Cluster, Listener, nats_conf
from fairbed.wire.codec import decode
from fairbed.wire.messages import Grant
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import OnComplete, Transport, Will
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
        self._links: dict[str, WatchedLink] = {}

    def transport(self, client_id: str, will: Will | None = None) -> Transport:
        """Return a client's link."""
        url = "mqtt://u:p@" + ",".join(f"127.0.0.1:{port}" for port in self._ports)
        self._links[client_id] = WatchedLink(url, client_id, will=will)
        return self._links[client_id]

    def disconnect(self, client_id: str, *, reconnects: bool = True) -> None:
        """Not used."""
        raise NotImplementedError

    def clients(self, node: int) -> set[str]:
        """Return the clients of a node."""
        port = str(self._ports[node])
        return {name for name, link in self._links.items() if link.node.endswith(port)}

    def node_of(self, client_id: str) -> int:
        """Return the index of a client's node."""
        return next(i for i in range(NODES) if client_id in self.clients(i))

    def watch(self, client_id: str, on_publish: Callable[[str, bytes], None]) -> None:
        """Show what a client publishes."""
        self._links[client_id].on_publish = on_publish

    async def kill(self, node: int) -> None:
        """Kill a node as `kill -9` does."""
        await self._nodes[node].kill()


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


async def kill_in_round(place: Lab, links: ClusterLinks, client: str) -> None:
    """Kill a client's node when the coordinator grants the first upload of the second round."""
    granted = anyio.Event()

    def on_publish(topic: str, payload: bytes) -> None:
        is_control = topic in map(Topics().control, NAMES)
        if is_control and isinstance(decode(payload), Grant):
            granted.set()

    place.on_progress = lambda progress: links.watch("coordinator", on_publish)
    await granted.wait()
    await links.kill(links.node_of(client))


@pytest.mark.parametrize("client", ["coordinator", "pi-0"])
async def test_a_lost_node_costs_time_but_no_update(
    client: str, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 15 s: the election of new leaders takes up to 9 s, on a busy machine longer
    monkeypatch.setattr("fairbed.coordinator.state.registry.SILENT_S", GIVE_UP_S)
    async with fleet(tmp_path / "memory", MemoryBroker()) as place:
        assert await place.run(CONFIG) == "done"
    with place.reader() as reader:
        expected = [row.model_sha256 for row in reader.rounds()]
    async with (
        nats_cluster(tmp_path) as links,
        fleet(tmp_path / "cluster", links) as place,
        anyio.create_task_group() as group,
    ):
        group.start_soon(kill_in_round, place, links, client)
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
    ledger.note("nats", f"node of {client} killed, of three", lost_s=took_s)
