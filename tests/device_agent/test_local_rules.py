"""A device that trains by a local rule: vectors received, kept and returned; faults."""

import hashlib
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from fairbed.device_agent import local_training, trainer
from fairbed.device_agent.jobs import Stopwatch
from fairbed.device_agent.local_training import GuardedRule, allowed_rule, make_rule
from fairbed.device_agent.stored_vector import KEPT, VectorStore
from fairbed.wire.augment import source_sha256
from fairbed.wire.messages import (
    DEVICE_PHASES,
    Augment,
    Coding,
    Failed,
    Hello,
    Hyperparameters,
    LocalTraining,
)
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
from tests.local_rules import DRIFT, HERE
from tests.testbed.replay.cohort.fleets import Meter

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

Vector = NDArray[np.float32]

TASK, TRAINING = softmax_task(), examples(40)
TASK_SHA256 = hashlib.sha256(TASK).digest()
SHARD = encode_shard(TRAINING)
N_PARAMS = softmax_artifact().spec.layout.n_params
SGD = Hyperparameters(epochs=1, batch_size=10, learning_rate=0.5)
"""As in `FakeCoordinator.request_training`."""
WITH_VECTORS = Coding(sent=1, returned=1)
LOCAL = LocalTraining(rule=DRIFT, run="run-a")
ZERO = np.zeros(N_PARAMS, np.float32)


def w(round_id: int) -> Vector:
    """Return the global model of a round, and the vector that is sent with it."""
    rng = np.random.default_rng(round_id)
    return rng.normal(size=N_VALUES + N_PARAMS).astype(np.float32)


def expected(sent: Vector, c_k: Vector, seed: int) -> tuple[Vector, Vector]:
    """Return the update with its vector, and the kept vector after the round."""
    engine, (x, y) = SoftmaxEngine(softmax_artifact().spec), TRAINING.arrays()
    vectors = {"c": sent[N_VALUES:], "c_k": c_k}
    result = trainer.train(
        engine,
        sent[:N_VALUES],
        x,
        y,
        SGD,
        seed,
        Meter(),
        lambda: False,
        rule=make_rule(DRIFT, {}),
        vectors=vectors,
    )
    return np.concatenate([result.vector, result.returned["change"]]), result.kept["c_k"]


async def a_round(coordinator: FakeCoordinator, round_id: int, merged: int | None) -> Vector:
    local = msgspec.structs.replace(LOCAL, merged=merged)
    _, update = await coordinator.run_round(round_id, w(round_id), local=local, coding=WITH_VECTORS)
    return update


async def test_trains_by_the_rule_and_returns_its_vector(setup: AgentSetup) -> None:
    setup.local_rules = (DRIFT,)
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        hello = coordinator.seen[Hello][0]
        assert isinstance(hello, Hello)
        assert hello.capabilities.local_rules == ("propfair", DRIFT)
        update = await a_round(coordinator, 1, merged=None)
    assert update.tobytes() == expected(w(1), ZERO, 1)[0].tobytes()


async def test_the_time_to_import_the_rule_is_loading_time(
    setup: AgentSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, lap = list[str](), Stopwatch.lap

    def noted_lap(watch: Stopwatch, name: str) -> float:
        if name in DEVICE_PHASES:
            order.append(name)
        return lap(watch, name)

    def noted_rule(*arguments: Any) -> GuardedRule:
        order.append("rule")
        return allowed_rule(*arguments)

    monkeypatch.setattr(Stopwatch, "lap", noted_lap)
    monkeypatch.setattr(local_training, "allowed_rule", noted_rule)
    setup.local_rules = (DRIFT,)
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await a_round(coordinator, 1, merged=None)
        await a_round(coordinator, 2, merged=1)
    before_load = DEVICE_PHASES.index("load")
    first = [*DEVICE_PHASES[:before_load], "rule", *DEVICE_PHASES[before_load:]]
    assert order == [*first, *DEVICE_PHASES]


async def test_a_kept_vector_counts_only_if_the_update_was_merged(setup: AgentSetup) -> None:
    setup.local_rules = (DRIFT,)
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await a_round(coordinator, 1, merged=None)
        lost = await a_round(coordinator, 2, merged=None)
        assert lost.tobytes() == expected(w(2), ZERO, 2)[0].tobytes(), "round 1 was not merged"
        after_2 = expected(w(2), ZERO, 2)[1]
        third = await a_round(coordinator, 3, merged=2)
        assert third.tobytes() == expected(w(3), after_2, 3)[0].tobytes()
        repeated = await a_round(coordinator, 4, merged=2)
        assert repeated.tobytes() == expected(w(4), after_2, 4)[0].tobytes()
    async with setup.running() as (_, coordinator):  # the agent was restarted
        await coordinator.join(TASK, SHARD)
        update = await a_round(coordinator, 5, merged=2)
        assert update.tobytes() == expected(w(5), after_2, 5)[0].tobytes()
    stored = VectorStore(setup.folder / "state", KEPT).load(TASK_SHA256, "run-a", 2 * N_PARAMS)
    assert stored is not None
    assert stored.round == 5


async def failure_of(setup: AgentSetup, local: LocalTraining, coding: Coding) -> str:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        model = w(1) if coding.sent else w(1)[:N_VALUES]
        await coordinator.request_training(1, model, local=local, coding=coding)
        failed = await coordinator.expect(Failed)
        _, update = await coordinator.run_round(2, w(2)[:N_VALUES])
        assert update.size == N_VALUES, "the device goes on"
    return failed.reason


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Raising", "gradient() must not raise, got RuntimeError: no gradient of this rule"),
        ("Reshaping", f"gradient() must leave float32 of shape ({N_PARAMS},), got float32 of "),
        ("Forgetful", "end() must return change, may return c_k, and no other, got none"),
        ("Missing", "must be importable as package.module:Name, got AttributeError"),
    ],
)
async def test_a_fault_fails_the_round_with_one_line(
    name: str, line: str, setup: AgentSetup
) -> None:
    rule = f"{HERE}:{name}"
    setup.local_rules = (rule,)
    local = msgspec.structs.replace(LOCAL, rule=rule)
    reason = await failure_of(setup, local, WITH_VECTORS)
    assert reason.startswith(f"local rule {rule}: {line}")
    assert "\n" not in reason


async def test_loads_no_path_that_its_owner_does_not_allow(setup: AgentSetup) -> None:
    reason = await failure_of(setup, LOCAL, WITH_VECTORS)
    assert reason == (
        f"local rule {DRIFT}: must be allowed by this device, got a path that is not; start the "
        f"agent with --local-training {DRIFT}"
    )


async def test_refuses_another_version_of_the_rule(setup: AgentSetup) -> None:
    setup.local_rules = (DRIFT,)
    reason = await failure_of(setup, LOCAL, Coding())
    assert reason.endswith("0 and 0, got 1 and 1; install the same version on both")


@pytest.mark.parametrize(
    ("options", "fault"),
    [((("base", 0.1),), "base must be above 0.2"), ((("other", 1),), "unexpected keyword")],
)
async def test_refuses_options_that_the_rule_does_not_take(
    options: tuple[Any, ...], fault: str, setup: AgentSetup
) -> None:
    local = LocalTraining(rule="propfair", options=options, run="run-a")
    assert fault in await failure_of(setup, local, Coding())


async def test_augments_by_a_function_only_if_its_owner_allows_it(setup: AgentSetup) -> None:
    path = "tests.wire.test_augment:shifted"
    own = Augment(kind=path, options=(("by", 0.25),), sha256=source_sha256(path))
    h = msgspec.structs.replace(SGD, augment=(own, Augment(kind="mixup")))
    model = w(1)[:N_VALUES]
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, model, hyperparameters=h)
        failed = await coordinator.expect(Failed)
    assert failed.reason == (
        f"augmentation {path}: must be allowed by this device, got a path that is not; start the "
        f"agent with --local-training {path}"
    )
    setup.local_rules = (path,)
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        _, update = await coordinator.run_round(1, model, hyperparameters=h)
    engine, (x, y) = SoftmaxEngine(softmax_artifact().spec), TRAINING.arrays()
    truth = trainer.train(engine, model, x, y, h, 1, Meter(), lambda: False)
    assert update.tobytes() == truth.vector.tobytes()
