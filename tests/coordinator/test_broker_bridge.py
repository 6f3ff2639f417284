"""Runs over two mosquittos that are joined by the bridge of docs/brokers.md."""

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.testbed.broker.configuration import Listener, mosquitto_conf, mosquitto_hash
from fairbed.testbed.host.broker_process import BrokerProcess, find_mosquitto
from fairbed.wire.transport.base import Transport, Will
from fairbed.wire.transport.client import MqttTransport
from tests import needs
from tests.coordinator.test_broker_cluster import (
    CONFIG,
    GIVE_UP_S,
    ROUNDS,
    fleet,
    free_ports,
    models_without_a_loss,
)
from tests.ledger import Ledger

PAGE = Path(__file__).parents[2] / "docs/brokers.md"
PASSWORDS = {user: secrets.token_hex(8) for user in ("coordinator", "site-1", "device")}
HUB_RIGHTS = "".join(
    f"user {user}\ntopic readwrite fairbed/main/#\n" for user in ("coordinator", "site-1")
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.broker,
    pytest.mark.full,
    pytest.mark.timeout(2 * GIVE_UP_S + 30.0),
    needs.mosquitto,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate"),
]


def recipe(port: int, certificate: Path) -> str:
    """Return the configuration of the page, with the names of this test."""
    found = re.search(r"^```\n(connection .*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    text = found[1]
    for shown, ours in {
        "coordinator.example.org:8883": f"127.0.0.1:{port}",
        "remote_password ...": f"remote_password {PASSWORDS['site-1']}",
        "/etc/mosquitto/ca.pem": str(certificate),
    }.items():
        assert text.count(shown) == 1
        text = text.replace(shown, ours)
    return text


@dataclass
class BridgedLinks:
    """Links of the coordinator to the hub, and of devices to the broker of their site."""

    hub: BrokerProcess
    hub_conf: Path
    hub_url: str
    site_url: str

    def transport(self, client_id: str, will: Will | None = None) -> Transport:
        """Return a client's link."""
        url = self.hub_url if client_id == "coordinator" else self.site_url
        return MqttTransport(url, client_id, will=will)

    def disconnect(self, client_id: str, *, reconnects: bool = True) -> None:
        """Not used."""
        raise NotImplementedError

    async def restart_hub(self) -> None:
        """Kill the coordinator's broker as `kill -9` does, and start it again."""
        await self.hub.kill()
        await self.hub.start(["-c", str(self.hub_conf)])


@asynccontextmanager
async def bridged(folder: Path) -> AsyncIterator[BridgedLinks]:
    """Yield links to two mosquittos; that of the site has the bridge."""
    command = find_mosquitto()
    assert command is not None
    hub_port, site_port = free_ports(2)
    certificate = self_signed(folder / "ca.pem")
    user = "root" if os.geteuid() == 0 else None  # another one cannot read these files
    rights, hub_conf, site_conf = folder / "rights", folder / "hub.conf", folder / "site.conf"
    rights.write_text(HUB_RIGHTS)
    hub_conf.write_text(
        mosquitto_conf(
            [
                Listener(
                    port=hub_port,
                    host="127.0.0.1",
                    certificate=str(certificate),
                    key=str(certificate),
                )
            ],
            password_file=passwords(folder, "coordinator", "site-1"),
            acl_file=str(rights),
            user=user,
        )
    )
    own = [f"listener {site_port} 127.0.0.1", "allow_anonymous false"]
    own += [
        f"password_file {passwords(folder, 'device')}",
        *([] if user is None else [f"user {user}"]),
    ]
    site_conf.write_text("\n".join([*own, recipe(hub_port, certificate)]))
    hub_url = f"mqtts://{login('coordinator')}@127.0.0.1:{hub_port}?cafile={certificate}"
    site_url = f"mqtt://{login('device')}@127.0.0.1:{site_port}"
    hub, site = (
        BrokerProcess("mosquitto", command, ("127.0.0.1", port), url, folder / f"{port}.log")
        for port, url in ((hub_port, hub_url), (site_port, site_url))
    )
    try:
        await hub.start(["-c", str(hub_conf)])
        await site.start(["-c", str(site_conf)])
        yield BridgedLinks(hub, hub_conf, hub_url, site_url)
    finally:
        with anyio.CancelScope(shield=True):
            await site.kill()
            await hub.kill()


def self_signed(path: Path) -> Path:
    """Write a certificate for 127.0.0.1, and its key, into one file; return its path."""
    names = ["-subj", "/CN=hub", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    files = ["-keyout", str(path), "-out", str(path)]
    argv = ["openssl", "req", "-x509", "-nodes", *curve, *names, *files]
    subprocess.run(argv, check=True, capture_output=True)
    return path


def passwords(folder: Path, *users: str) -> str:
    """Write a password file of these users; return its path."""
    path = folder / f"passwords-{users[0]}"
    salt = secrets.token_bytes(12)
    path.write_text("".join(f"{x}:{mosquitto_hash(PASSWORDS[x], salt)}\n" for x in users))
    return str(path)


def login(user: str) -> str:
    return f"{user}:{PASSWORDS[user]}"


async def test_the_bridge_of_the_page_gives_the_models_of_one_broker(tmp_path: Path) -> None:
    expected = await models_without_a_loss(tmp_path / "memory")
    async with bridged(tmp_path) as links, fleet(tmp_path / "bridge", links) as place:
        assert await place.run(CONFIG) == "done"
    with place.reader() as reader:
        rounds, exchanges = reader.rounds(), reader.exchanges(0)
    assert [row.model_sha256 for row in rounds] == expected
    assert {x.outcome for x in exchanges} == {"done"}


async def test_a_bridge_whose_far_end_is_restarted_loses_no_round(
    tmp_path: Path, ledger: Ledger
) -> None:
    async with (
        bridged(tmp_path) as links,
        fleet(tmp_path / "bridge", links) as place,
        anyio.create_task_group() as group,
    ):

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 1:
                group.start_soon(links.restart_hub)

        place.on_progress = on_progress
        started_s = anyio.current_time()
        assert await place.run(CONFIG) == "done"
        took_s = anyio.current_time() - started_s
    with place.reader() as reader:
        rounds, exchanges = reader.rounds(), reader.exchanges(0)
    assert [row.status for row in rounds] == ["done"] * ROUNDS
    assert {x.outcome for x in exchanges} == {"done"}
    ledger.note("mosquitto", "far end of a bridge restarted", lost_s=took_s)
