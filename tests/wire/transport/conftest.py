"""The worlds of the transport suite: memory, and each client of ours through each real broker."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairbed.testbed.run.broker import start_broker
from tests.brokers import CLIENTS_AND_BROKERS
from tests.wire.transport.worlds import BrokerWorld, MemoryWorld, World


@pytest.fixture(scope="module", params=["memory", *CLIENTS_AND_BROKERS])
async def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """A broker for all tests that leave it alive."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    client, kind = request.param
    async with start_broker(kind, folder=tmp_path_factory.mktemp("broker")) as broker:
        yield BrokerWorld(broker, client)


@pytest.fixture(params=["memory", *CLIENTS_AND_BROKERS])
async def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A broker that a test may kill."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    client, kind = request.param
    async with start_broker(kind, folder=tmp_path) as broker:
        yield BrokerWorld(broker, client)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of this test's own."""
    return f"suite/{request.node.originalname}"
