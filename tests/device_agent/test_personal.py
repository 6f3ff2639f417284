"""The personal model of a device: kept on it, trained beside the global one, and scored."""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from fairbed.device_agent import trainer
from fairbed.device_agent.ditto import train_personal
from fairbed.device_agent.engines.base import Examples
from fairbed.device_agent.host import Section
from fairbed.device_agent.stored_vector import PERSONAL, StoredVector, VectorStore, file_of
from fairbed.wire.artifact import initial_vector
from fairbed.wire.evaluation import Targets
from fairbed.wire.messages import Hyperparameters, LambdaChoice, Offer, Personal, PersonalScore
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

Vector = NDArray[np.float32]

TASK = softmax_task()
TASK_SHA256 = hashlib.sha256(TASK).digest()
TRAINING, HELD_OUT = examples(40), examples(16, seed=1)
FILE = file_of(PERSONAL)
SHARD = encode_shard(msgspec.structs.replace(TRAINING, held_out=HELD_OUT))
GLOBAL = Hyperparameters(epochs=1, batch_size=10, learning_rate=0.5)
"""As in `FakeCoordinator.request_training`."""
DITTO = Personal(run="run-a", hyperparameters=msgspec.structs.replace(GLOBAL, proximal=0.5))


def w(round_id: int) -> Vector:
    """Return the global model of a round."""
    return np.random.default_rng(round_id).normal(size=N_VALUES).astype(np.float32)


def trained(start: Vector, anchor: Vector, seed: int, personal: Personal = DITTO) -> Vector:
    """Return the personal model after a round, by the trainer alone."""
    engine, (x, y) = SoftmaxEngine(softmax_artifact().spec), TRAINING.arrays()
    h = personal.hyperparameters
    return trainer.train(engine, start, x, y, h, seed, Meter(), lambda: False, anchor).vector


def kept(setup: AgentSetup) -> StoredVector:
    """Return the personal model on the device's disk."""
    content = (setup.folder / "state" / FILE).read_bytes()
    copy = setup.folder / "copy"
    copy.mkdir(exist_ok=True)
    (copy / FILE).write_bytes(content)
    model = VectorStore(copy, PERSONAL).load(TASK_SHA256, "run-a", N_VALUES)
    assert model is not None
    return model


def a_model(round_id: int = 3, run: str = "run-a") -> StoredVector:
    return StoredVector(TASK_SHA256, run, round_id, w(9))


# --- the file ------------------------------------------------------------------------------------


def test_a_model_outlasts_a_restart_with_its_bits(tmp_path: Path) -> None:
    assert VectorStore(tmp_path / "new", PERSONAL).save(a_model())
    found = VectorStore(tmp_path / "new", PERSONAL).load(TASK_SHA256, "run-a", N_VALUES)
    assert found is not None
    assert found.round == 3
    assert found.vector.tobytes() == w(9).tobytes()
    assert [path.name for path in (tmp_path / "new").iterdir()] == [FILE]


def test_without_a_file_there_is_no_model(tmp_path: Path) -> None:
    assert VectorStore(tmp_path, PERSONAL).load(TASK_SHA256, "run-a", N_VALUES) is None


OTHER_RUN = "belongs to run run-a; this run begins a new one"
OTHER_SIZE = (
    f"must have {4 * N_VALUES + 4} bytes for this model and its settings, got {4 * N_VALUES} of "
    "another vector; it begins again"
)


@pytest.mark.parametrize(
    ("task", "run", "values", "why"),
    [
        (b"?" * 32, "run-a", N_VALUES, OTHER_RUN),
        (None, "run-b", N_VALUES, OTHER_RUN),
        (None, "run-a", N_VALUES + 1, OTHER_SIZE),
    ],
    ids=["task", "run", "size"],
)
def test_a_model_of_another_run_or_task_is_not_used(
    task: bytes | None,
    run: str,
    values: int,
    why: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    store = VectorStore(tmp_path, PERSONAL)
    store.save(a_model())
    assert store.load(task or TASK_SHA256, run, values) is None
    (line,) = caplog.messages
    assert line == f"personal model: {why}"


@pytest.mark.parametrize("at", [0, 40, 60, -1], ids=["checksum", "header", "run", "value"])
def test_a_corrupt_file_is_not_used(
    at: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    VectorStore(tmp_path, PERSONAL).save(a_model())
    content = bytearray((tmp_path / FILE).read_bytes())
    content[at] ^= 1
    (tmp_path / FILE).write_bytes(content)
    assert VectorStore(tmp_path, PERSONAL).load(TASK_SHA256, "run-a", N_VALUES) is None
    (line,) = caplog.messages
    assert line.startswith("personal model: its checksum must match")
    assert line.endswith("it begins again")


@pytest.mark.parametrize("size", [0, 10, 35, 100])
def test_a_truncated_file_is_not_used(size: int, tmp_path: Path) -> None:
    VectorStore(tmp_path, PERSONAL).save(a_model())
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:size])
    assert VectorStore(tmp_path, PERSONAL).load(TASK_SHA256, "run-a", N_VALUES) is None


def full_disk(file: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_keeps_the_old_file_and_the_new_model_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = VectorStore(tmp_path, PERSONAL)
    store.save(a_model())
    newer = StoredVector(TASK_SHA256, "run-a", 4, w(10))
    monkeypatch.setattr(os, "fsync", full_disk)
    assert not store.save(newer)
    (line,) = caplog.messages
    assert "No space left on device; training goes on" in line
    kept = store.load(TASK_SHA256, "run-a", N_VALUES)
    assert kept is not None
    assert kept.round == 4
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    found = VectorStore(tmp_path, PERSONAL).load(TASK_SHA256, "run-a", N_VALUES)
    assert found is not None
    assert found.round == 3
    monkeypatch.undo()
    assert store.save(newer)
    found = VectorStore(tmp_path, PERSONAL).load(TASK_SHA256, "run-a", N_VALUES)
    assert found is not None
    assert found.round == 4


class RecordedPace:
    """Records the section and the size of each unit of work."""

    def __init__(self) -> None:
        self.work: list[tuple[Section, int]] = []

    @contextmanager
    def section(self, name: Section) -> Iterator[Meter]:
        work = self.work

        class Recorded(Meter):
            def step(self, n_examples: int, length: int | None = None) -> None:
                work.append((name, n_examples))

        yield Recorded()


# --- the rounds ----------------------------------------------------------------------------------

agent_test = [pytest.mark.anyio, pytest.mark.idle_time_skipped]


async def a_round(
    coordinator: FakeCoordinator, round_id: int, personal: Personal | None = DITTO
) -> tuple[Offer, Vector, PersonalScore | None]:
    offer, update = await coordinator.run_round(round_id, w(round_id), personal=personal)
    score = None if personal is None else await coordinator.expect(PersonalScore)
    return offer, update, score


class TestRounds:
    """An agent that trains a personal model."""

    pytestmark = agent_test

    async def test_trains_it_on_the_same_mini_batches_and_keeps_it(self, setup: AgentSetup) -> None:
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            offer, update, _ = await a_round(coordinator, 1)
            first = trained(w(1), w(1), 1)
            assert kept(setup).vector.tobytes() == first.tobytes()
            assert offer.phases.personal_s > 0.0
            await a_round(coordinator, 2)
            assert kept(setup).vector.tobytes() == trained(first, w(2), 2).tobytes()
        global_model = Personal(run="", hyperparameters=GLOBAL)
        assert update.tobytes() == trained(w(1), w(1), 1, global_model).tobytes()

    @pytest.mark.parametrize(("choice", "validations"), [("local", 3), ("dynamic", 12)])
    async def test_chooses_lambda_and_counts_validations_apart(
        self, setup: AgentSetup, choice: LambdaChoice, validations: int
    ) -> None:
        pace = RecordedPace()
        setup.host = replace(setup.host, pace=pace)
        personal = msgspec.structs.replace(DITTO, choice=choice, candidates=(0.1, 1.0, 2.0))
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            pace.work.clear()
            await a_round(coordinator, 1, personal)
        engine, (x, y) = SoftmaxEngine(softmax_artifact().spec), TRAINING.arrays()
        expected = train_personal(
            engine,
            w(1),
            w(1),
            x,
            y,
            personal,
            1,
            Meter(),
            lambda: nullcontext(Meter()),
            lambda: False,
        )
        assert kept(setup).vector.tobytes() == expected.tobytes()
        train_s = [n for name, n in pace.work if name == "train"]
        assert [n for name, n in pace.work if name == "evaluate"] == [*validations * [4], 16]
        sections = 3 if choice == "local" else 1
        assert train_s == 4 * [10] + sections * [10, 10, 10, 6]

    async def test_it_is_never_sent(self, setup: AgentSetup) -> None:
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            plain, update, _ = await a_round(coordinator, 1, None)
            offer, same, _ = await a_round(coordinator, 2)
            assert offer.manifest.size_bytes == plain.manifest.size_bytes == 4 * N_VALUES
            assert len(coordinator.chunks) == 2
            assert update.size == same.size

    async def test_reports_its_score_on_held_out_examples(self, setup: AgentSetup) -> None:
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            _, _, score = await a_round(coordinator, 1)
        assert score is not None
        engine = SoftmaxEngine(softmax_artifact().spec)
        loss, quality = trainer.evaluate(
            engine, trained(w(1), w(1), 1), *HELD_OUT.arrays(), Meter()
        )
        assert (score.round, score.n, score.correct) == (1, 16, quality.correct)
        assert score.loss == pytest.approx(loss, rel=1e-6)

    async def test_reports_no_score_without_held_out_examples(self, setup: AgentSetup) -> None:
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, encode_shard(TRAINING))
            _, _, score = await a_round(coordinator, 1)
            assert score == PersonalScore(round=1, n=0)

    async def test_scores_own_data(self, setup: AgentSetup) -> None:
        setup.data = setup.folder / "own.npz"
        (x, y), (x_test, y_test) = TRAINING.arrays(), HELD_OUT.arrays()
        np.savez(setup.data, x=x, y=y, x_test=x_test, y_test=y_test)
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, None)
            _, _, score = await a_round(coordinator, 1)
        assert score is not None
        assert score.n == 16

    async def test_continues_after_a_restart(self, setup: AgentSetup) -> None:
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            await a_round(coordinator, 1)
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            await a_round(coordinator, 2)
        assert kept(setup).vector.tobytes() == trained(trained(w(1), w(1), 1), w(2), 2).tobytes()

    async def test_begins_at_the_model_before_round_1(self, setup: AgentSetup) -> None:
        first = initial_vector(softmax_artifact().spec, 7)
        personal = msgspec.structs.replace(DITTO, init_seed=7)
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            await a_round(coordinator, 20, personal)
            assert kept(setup).vector.tobytes() == trained(first, w(20), 20).tobytes()
            before = kept(setup).vector
            await a_round(coordinator, 21, personal)
        assert kept(setup).vector.tobytes() == trained(before, w(21), 21).tobytes()

    async def test_begins_again_at_the_global_model_after_a_loss(
        self, setup: AgentSetup, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            await a_round(coordinator, 1)
            path = setup.folder / "state" / FILE
            path.write_bytes(path.read_bytes()[:-1] + b"?")
            await a_round(coordinator, 2)
        assert kept(setup).vector.tobytes() == trained(w(2), w(2), 2).tobytes()
        assert "personal model: begins at the global model of round 2" in caplog.messages

    async def test_a_repeated_round_trains_it_once(self, setup: AgentSetup) -> None:
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            await coordinator.request_training(1, w(1), personal=DITTO)
            await coordinator.expect(Offer)
            await coordinator.request_training(1, w(1), personal=DITTO, attempt=1)
            offer = await coordinator.expect(Offer)
            await coordinator.grant(offer)
            await coordinator.receive(offer)
        assert kept(setup).vector.tobytes() == trained(w(1), w(1), 1).tobytes()

    async def test_a_diverging_personal_model_is_kept_and_the_update_is_sent(
        self, setup: AgentSetup, caplog: pytest.LogCaptureFixture
    ) -> None:
        wild = msgspec.structs.replace(GLOBAL, learning_rate=1e15, weight_decay=1e3)
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            await a_round(coordinator, 1)
            before = kept(setup).vector.tobytes()
            personal = msgspec.structs.replace(DITTO, hyperparameters=wild)
            await a_round(coordinator, 2, personal)
        assert kept(setup).vector.tobytes() == before
        (line,) = [r for r in caplog.messages if r.startswith("personal model: kept as it was")]
        assert "must be finite" in line

    async def test_a_full_disk_does_not_stop_the_global_training(
        self, setup: AgentSetup, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            (setup.folder / "state").write_text("a file where the folder should be")
            await a_round(coordinator, 1)
            await a_round(coordinator, 2)
        assert sum("training goes on" in line for line in caplog.messages) == 2


# --- the method ----------------------------------------------------------------------------------


class Quadratic(SoftmaxEngine):
    """F(v) = |X v - y|^2 / 2n on the examples of a mini-batch, one output."""

    def gradient(
        self,
        vector: Vector,
        x: Examples,
        y: Targets,
        micro_batch: int | None = None,
        factor: float = 1.0,
    ) -> tuple[float, Vector]:
        rest = x.astype(np.float64) @ vector.astype(np.float64)[: x.shape[1]] - y
        slope = np.zeros(len(vector), dtype=np.float32)
        slope[: x.shape[1]] = factor * (x.T @ rest) / len(y)
        return float(rest @ rest) / (2 * len(y)), slope


@pytest.mark.parametrize("lam", [0.0, 0.1, 1.0, 10.0])
def test_ditto_of_a_linear_regression_has_the_closed_form(lam: float) -> None:
    """v* = (X'X / n + lambda I)^-1 (X'y / n + lambda w): the minimiser of h_k."""
    engine, (x, y) = Quadratic(softmax_artifact().spec), TRAINING.arrays()
    a = x.astype(np.float64).T @ x / len(y) + lam * np.eye(x.shape[1])
    b = x.astype(np.float64).T @ y / len(y) + lam * w(1)[: x.shape[1]].astype(np.float64)
    h = Hyperparameters(epochs=4_000, batch_size=40, learning_rate=0.05, proximal=lam)
    v = trainer.train(engine, w(2), x, y, h, 0, Meter(), lambda: False, w(1)).vector
    np.testing.assert_allclose(v[: x.shape[1]], np.linalg.solve(a, b), atol=2e-6)


def test_lambda_0_is_local_training_and_a_large_one_the_global_model() -> None:
    engine, (x, y) = SoftmaxEngine(softmax_artifact().spec), TRAINING.arrays()

    def v(lam: float, rate: float, anchor: Vector) -> Vector:
        h = Hyperparameters(epochs=20, batch_size=10, learning_rate=rate, proximal=lam)
        return trainer.train(engine, w(2), x, y, h, 0, Meter(), lambda: False, anchor).vector

    assert v(0.0, 0.1, w(1)).tobytes() == v(0.0, 0.1, w(3)).tobytes()
    far, near = (np.linalg.norm(v(lam, 0.5 / lam, w(1)) - w(1)) for lam in (1.0, 1e3))
    assert near < 1e-2 < far
