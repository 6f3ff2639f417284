"""The MQTT link over TLS, through a proxy that ends the encryption."""

import gc
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

import anyio
import pytest

from fairbed.testbed.run.broker import find_broker, start_broker
from fairbed.wire.errors import Refused
from fairbed.wire.transport.address import Client
from fairbed.wire.transport.client import MqttTransport
from tests import needs
from tests.brokers import KINDS, proxy_to
from tests.wire.transport.drivers import packets, up

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate"),
    pytest.mark.skipif(not any(map(find_broker, KINDS)), reason="no broker is installed"),
]

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key in the same file."""
    path = tmp_path_factory.mktemp("tls") / "cert.pem"
    subject = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    files = ["-keyout", str(path), "-out", str(path)]
    argv = ["openssl", "req", "-x509", "-nodes", *curve, *subject, *files]
    subprocess.run(argv, check=True, capture_output=True)
    return path


@asynccontextmanager
async def tls_broker(folder: Path, certificate: Path) -> AsyncIterator[str]:
    """Yield the URL of a broker behind a TLS proxy."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with start_broker(folder=folder) as broker:
        at = urlsplit(broker.url)
        assert at.port is not None
        async with proxy_to("127.0.0.1", at.port, context) as proxy:
            yield broker.url.replace("mqtt:", "mqtts:").replace(f":{at.port}", f":{proxy.port}")


@pytest.mark.parametrize("client", get_args(Client))
async def test_packets_arrive_over_tls(client: Client, tmp_path: Path, certificate: Path) -> None:
    body = bytes(range(256)) * 2_000
    with anyio.fail_after(TIMEOUT_S):
        async with (
            tls_broker(tmp_path, certificate) as url,
            MqttTransport(f"{url}?cafile={certificate}&client={client}", "me") as link,
        ):
            await up(link)
            await link.subscribe("t")
            await link.publish("t", body)
            await link.publish("t", body, qos=1)
            assert [packet.payload for packet in await packets(link, 2)] == [body, body]


@needs.localhost
async def test_a_certificate_is_checked_under_the_name_of_the_broker_behind_a_proxy(
    tmp_path: Path, certificate: Path
) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with tls_broker(tmp_path, certificate) as url:
            elsewhere = url.replace("127.0.0.1", "localhost")  # which the certificate does not name
            cafile = f"?cafile={certificate}"
            async with MqttTransport(f"{elsewhere}{cafile}&server_name=127.0.0.1", "me") as link:
                await up(link)
            async with MqttTransport(f"{elsewhere}{cafile}", "me") as link:
                with pytest.raises(Refused, match="localhost"):
                    await anext(link.events())


# paho does not close the socket of a failed handshake; the garbage collector does.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("client", get_args(Client))
async def test_an_unknown_certificate_is_refused(
    client: Client, tmp_path: Path, certificate: Path
) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with (
            tls_broker(tmp_path, certificate) as url,
            MqttTransport(f"{url}?client={client}", "me") as link,
        ):
            with pytest.raises(Refused, match=r"add \?cafile=FILE"):
                await anext(link.events())
    del link
    gc.collect()
