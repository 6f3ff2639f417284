"""An agent and a coordinator: joining, rounds, and what goes wrong between them."""

import numpy as np
import pytest

from device_agent.lifecycle import Phase
from tests.device_agent.conftest import Stage
from tests.device_agent.softmax import N_VALUES, examples, softmax_task
from wire.messages import Hello
from wire.shard import encode_shard

pytestmark = pytest.mark.anyio

TASK = softmax_task()
SHARD = encode_shard(examples(40))
ZEROS = np.zeros(N_VALUES, np.float32)


async def test_joins_and_reports_what_it_is(stage: Stage) -> None:
    async with stage.playing() as (agent, coordinator):
        context = await coordinator.join(TASK, SHARD)
        hello = coordinator.seen[Hello][0]
        assert isinstance(hello, Hello)
        assert hello.n_k is None
        assert hello.capabilities.engine.startswith("onnxruntime ")
        assert context.boot == hello.boot
        assert context.n_k == 40
        assert context.mu_cores > 0.0
        assert agent.phase is Phase.IDLE


async def test_plays_a_round_and_is_warm_in_the_next(stage: Stage) -> None:
    async with stage.playing() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        first, vector = await coordinator.play(1, ZEROS, needs_loss=True)
        second, _ = await coordinator.play(2, vector)
    assert (first.was_cold, second.was_cold) == (True, False)
    assert first.loss_before == pytest.approx(np.log(3.0))
    assert second.loss_before is None
    assert first.steps == 4
    assert first.n_k == 40
    assert np.linalg.norm(vector) > 0.1
