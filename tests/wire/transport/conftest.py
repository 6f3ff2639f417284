"""Brokers of the transport tests: in memory, and each real broker with each MQTT client."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairbed.testbed.run.broker import start_broker
from tests.brokers import CLIENTS_AND_BROKERS
from tests.wire.transport.broker_control import (
    BrokerControl,
    MemoryBrokerControl,
    RealBrokerControl,
)


@pytest.fixture(scope="module", params=["memory", *CLIENTS_AND_BROKERS])
async def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[BrokerControl]:
    """A broker shared by tests that do not kill it."""
    if request.param == "memory":
        yield MemoryBrokerControl()
        return
    client, kind = request.param
    async with start_broker(kind, folder=tmp_path_factory.mktemp("broker")) as broker:
        yield RealBrokerControl(broker, client)


@pytest.fixture(params=["memory", *CLIENTS_AND_BROKERS])
async def killable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerControl]:
    """A broker that a test may kill."""
    if request.param == "memory":
        yield MemoryBrokerControl()
        return
    client, kind = request.param
    async with start_broker(kind, folder=tmp_path) as broker:
        yield RealBrokerControl(broker, client)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic used by one test only."""
    return f"suite/{request.node.originalname}"
