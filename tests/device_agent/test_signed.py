"""A device with a task key carries out signed messages only (issue #20, C2)."""

import anyio
import numpy as np
import pytest

from fairbed.device_agent.state.lifecycle import Phase
from fairbed.wire.codec import encode
from fairbed.wire.messages import Goodbye, Hello, Offer, Ping, Pong, Refuse
from fairbed.wire.shard import encode_shard
from fairbed.wire.signature import session_key, task_key
from tests.device_agent.conftest import NAME, AgentSetup
from tests.device_agent.coordinator import FakeCoordinator
from tests.device_agent.softmax import N_VALUES, examples, softmax_task

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

TASK = softmax_task()
SHARD = encode_shard(examples(40))
ZEROS = np.zeros(N_VALUES, np.float32)
KEY = task_key("secret of the lab", NAME)


@pytest.fixture(autouse=True)
def demands_signatures(setup: AgentSetup) -> None:
    setup.task_key = KEY


async def sign_for(coordinator: FakeCoordinator, key: str = KEY, later: int = 0) -> None:
    """Let a coordinator sign as one that has the key, for this agent process or another one."""
    hello = await coordinator.expect(Hello)
    assert "signed" in hello.capabilities.skills
    coordinator.session_key = session_key(key, hello.boot + later)


async def test_a_forged_task_is_refused_in_one_line_and_the_device_serves_its_own_coordinator(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    async with setup.running() as (agent, coordinator):
        for _ in range(3):
            await coordinator.welcome(TASK, SHARD)
        await coordinator.send(Refuse(reason="forged", is_final=True))
        await coordinator.expect(Hello)
        assert agent.phase is Phase.JOINING
        assert not list(setup.folder.rglob("*-*"))
        lines = [line for line in caplog.messages if "must be signed" in line]
        assert lines == [
            f"{NAME}: ignored, now and later: a message to this device must be signed, got {kind}; "
            "if it is of your own coordinator, enrol this device again: fairbed enroll --upgrade"
            for kind in ("Welcome", "Refuse")
        ]
        await sign_for(coordinator)
        await coordinator.join(TASK, SHARD)
        _, update = await coordinator.run_round(1, ZEROS)
        assert update.any()
    assert setup.fault is None


@pytest.mark.parametrize(
    ("key", "later"),
    [(KEY, 1), (task_key("secret of the lab", "nano"), 0), (task_key("another lab", NAME), 0)],
    ids=["an earlier process", "another device", "another lab"],
)
async def test_a_signature_for_another_is_refused(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture, key: str, later: int
) -> None:
    async with setup.running() as (agent, coordinator):
        await sign_for(coordinator, key, later)
        await coordinator.welcome(TASK, SHARD)
        await coordinator.expect(Hello)
        assert agent.phase is Phase.JOINING
        assert "signature: must be made with the task key of this device, got Signed" in caplog.text


async def test_a_forged_request_trains_nothing(setup: AgentSetup) -> None:
    async with setup.running() as (agent, coordinator):
        await sign_for(coordinator)
        await coordinator.join(TASK, SHARD)
        signing, coordinator.session_key = coordinator.session_key, None
        await coordinator.request_training(1, ZEROS)
        await coordinator.send(Ping(seq=1))
        coordinator.session_key = signing
        await coordinator.send(Ping(seq=2))
        assert (await coordinator.expect(Pong)).seq == 2
        assert agent.phase is Phase.IDLE
        assert not coordinator.seen[Offer]


async def test_a_forged_goodbye_ends_no_agent(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    """`--once` ends the agent for good; only its own coordinator may do that."""
    setup.once = True
    async with setup.running() as (agent, coordinator):
        await sign_for(coordinator)
        await coordinator.join(TASK, SHARD)
        everyone = coordinator.topics.control_all
        await coordinator.transport.publish(everyone, encode(Goodbye(reason="forged")), qos=1)
        await coordinator.send(Ping(seq=1))
        assert (await coordinator.expect(Pong)).seq == 1
        assert agent.phase is Phase.IDLE
        assert "must be signed" not in caplog.text, "each run ends with an unsigned one, too"
        await coordinator.send(Goodbye(reason="the run is over"))
        with anyio.fail_after(30.0):
            await setup.ended.wait()
    assert setup.fault is None


async def test_a_device_without_a_key_ignores_signed_messages(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.task_key = None
    async with setup.running() as (agent, coordinator):
        coordinator.session_key = b"?" * 32
        await coordinator.welcome(TASK, SHARD)
        with anyio.fail_after(30.0):
            await coordinator.expect(Hello)
        assert agent.phase is Phase.JOINING
        assert "this device has no task_key to check a signature" in caplog.text
