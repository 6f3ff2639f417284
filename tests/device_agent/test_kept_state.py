"""A device that keeps the state of its optimiser, through losses and restarts."""

import logging

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from fairbed.device_agent import trainer
from fairbed.device_agent.optimiser import count_of, state_size
from fairbed.wire.messages import Hello, Hyperparameters, Optimiser
from fairbed.wire.shard import encode_shard
from tests.device_agent.conftest import AgentSetup
from tests.device_agent.coordinator import FakeCoordinator
from tests.device_agent.softmax import (
    N_VALUES,
    SoftmaxEngine,
    examples,
    softmax_artifact,
    softmax_task,
)
from tests.testbed.replay.cohort.fleets import Meter

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

Vector = NDArray[np.float32]

TASK, TRAINING = softmax_task(), examples(40)
SHARD = encode_shard(TRAINING)
ADAM = Hyperparameters(
    epochs=1,
    batch_size=10,
    learning_rate=0.1,
    optimiser=Optimiser(name="adam", keeps_state=True, run="run-a"),
)
SIZE = state_size(ADAM, softmax_artifact().spec.layout.n_params)


def w(round_id: int) -> Vector:
    return np.random.default_rng(round_id).normal(size=N_VALUES).astype(np.float32)


def expected(
    round_id: int, state: Vector | None, h: Hyperparameters = ADAM
) -> tuple[Vector, Vector]:
    """Return the update of a round and the state after it."""
    x, y = TRAINING.arrays()
    engine = SoftmaxEngine(softmax_artifact().spec)
    result = trainer.train(
        engine, w(round_id), x, y, h, round_id, Meter(), lambda: False, state=state
    )
    assert result.state is not None
    return result.vector, result.state


async def a_round(
    coordinator: FakeCoordinator,
    round_id: int,
    merged: int | None,
    h: Hyperparameters = ADAM,
    run: str = "run-a",
) -> Vector:
    assert h.optimiser is not None
    own = replace(h, optimiser=replace(h.optimiser, merged=merged, run=run))
    _, update = await coordinator.run_round(round_id, w(round_id), hyperparameters=own)
    return update


async def test_a_state_counts_only_if_the_update_was_merged(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        hello = coordinator.seen[Hello][0]
        assert isinstance(hello, Hello)
        assert "optimisers" in hello.capabilities.skills
        first = await a_round(coordinator, 1, merged=None)
        assert first.tobytes() == expected(1, None)[0].tobytes()
        second = await a_round(coordinator, 2, merged=1)
        after_1, after_2 = expected(1, None)[1], expected(2, expected(1, None)[1])[1]
        assert second.tobytes() == expected(2, after_1)[0].tobytes()
        third = await a_round(coordinator, 3, merged=1)
        assert third.tobytes() == expected(3, after_1)[0].tobytes(), "round 2 was not merged"
    assert count_of(after_2).tolist() == [8]
    async with setup.running() as (_, coordinator):  # the agent was restarted
        await coordinator.join(TASK, SHARD)
        fourth = await a_round(coordinator, 4, merged=3)
    after_3 = expected(3, after_1)[1]
    assert fourth.tobytes() == expected(4, after_3)[0].tobytes()
    file = setup.folder / "state" / "optimiser-state"
    assert file.stat().st_size < 2 * SIZE * 4 + 200, "one file, whatever the number of rounds"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("cut", "optimiser state: its checksum must match, got another"),
        ("run", "optimiser state: belongs to run run-a; this run begins a new one"),
        ("optimiser", "optimiser state: must have"),
        ("lost", "optimiser state: lost; it begins at zero"),
    ],
)
async def test_another_state_is_not_used_with_one_line(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture, change: str, line: str
) -> None:
    file, h, run = setup.folder / "state" / "optimiser-state", ADAM, "run-a"
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await a_round(coordinator, 1, merged=None)
        if change == "cut":
            file.write_bytes(file.read_bytes()[:-4])
        elif change == "lost":
            file.unlink()
        elif change == "run":
            run = "run-b"
        else:
            own = Optimiser(keeps_state=True)
            h = replace(ADAM, momentum=0.9, optimiser=own)
        with caplog.at_level(logging.INFO):
            update = await a_round(coordinator, 2, merged=1, h=h, run=run)
    assert update.tobytes() == expected(2, None, h)[0].tobytes()
    found = [record.getMessage() for record in caplog.records]
    assert any(message.startswith(line) for message in found), found
