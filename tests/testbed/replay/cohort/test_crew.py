"""Processes that help to train: the same bits, and none that outlives its replay."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from threadpoolctl import threadpool_limits

from fairbed.device_agent.engines.base import EngineError
from fairbed.testbed.replay.cohort import crew
from fairbed.testbed.replay.cohort.base import Job, Trained
from fairbed.testbed.replay.cohort.chunk import train_chunk
from fairbed.testbed.replay.cohort.crew import Crew, Helper
from fairbed.testbed.replay.cohort.dense import DenseTrainer
from fairbed.testbed.replay.cohort.net import DenseNet
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.testbed.replay.cohort.shared import lay_out, make_memory, see
from fairbed.wire.messages import Hyperparameters
from tests.processes import is_gone, own_children
from tests.testbed.replay.cohort.fleets import (
    EVERYTHING,
    PLAIN,
    RECIPES,
    SIZES,
    fleet_data,
    jobs_of,
    one_by_one,
    shipped,
    start_of,
)

MOST = 4
LOADING_S = 30.0
"""Within which a helper has loaded what it needs on a busy machine."""


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    before = set(own_children())
    yield
    assert set(own_children()) <= before


@contextmanager
def crew_of(shards: Shards, name: str, size: int = 1) -> Iterator[Crew]:
    """Begin and end a crew."""
    crew = Crew(shipped(RECIPES[name]).spec, shards, MOST, size)
    try:
        yield crew
    finally:
        crew.close()


@contextmanager
def ready(crew: Crew) -> Iterator[Helper]:
    """Borrow a helper as soon as there is one."""
    until = time.monotonic() + LOADING_S
    while time.monotonic() < until:
        with crew.helper() as helper:
            if helper is not None:
                yield helper
                return
        time.sleep(0.01)
    raise AssertionError("no helper became ready")


def same(one: Trained, other: Trained) -> bool:
    """Tell whether answers agree in every bit."""
    return (
        one.at.tolist() == other.at.tolist()
        and one.vectors.tobytes() == other.vectors.tobytes()
        and one.steps.tolist() == other.steps.tolist()
        and one.loss_train.tobytes() == other.loss_train.tobytes()
        and one.problems == other.problems
    )


@pytest.mark.parametrize("hyperparameters", [PLAIN, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("pixels", [False, True])
@pytest.mark.parametrize("name", ["softmax-784-10", "mlp-784-318-10"])
def test_a_helper_answers_as_the_replay_itself_would(
    name: str, pixels: bool, hyperparameters: Hyperparameters
) -> None:
    artifact = shipped(RECIPES[name])
    shards = Shards(fleet_data(RECIPES[name], pixels=pixels), artifact.spec.x_shape)
    jobs, net = jobs_of(len(SIZES)), DenseNet(artifact.spec)
    limit = threadpool_limits(1, "blas")  # as while a replay trains
    with limit, crew_of(shards, name) as crew, ready(crew) as helper:
        for start in (start_of(artifact), start_of(artifact) + np.float32(0.01)):
            crew.begin_at(start)
            for chunk in ([4, 2], [5, 1, 3]):
                mine = [jobs[at] for at in chunk]
                params = np.repeat(start[np.newaxis], len(chunk), axis=0)
                here = train_chunk(net, shards, params, chunk, mine, hyperparameters)
                assert same(helper.train(chunk, mine, hyperparameters), here)


def test_a_helper_tells_of_devices_that_diverge() -> None:
    artifact = shipped(RECIPES["softmax-60-10"])
    data = fleet_data(RECIPES["softmax-60-10"])
    data.dataset.x[data.train_rows[2]] *= np.float32(1e30)
    shards, jobs = Shards(data, artifact.spec.x_shape), jobs_of(len(SIZES))
    with crew_of(shards, "softmax-60-10") as crew, ready(crew) as helper:
        crew.begin_at(start_of(artifact))
        told = helper.train([4, 2], [jobs[4], jobs[2]], PLAIN)
    assert told.problems[0] == ""
    assert told.problems[1].startswith("training: the loss must be finite, got ")


def test_helpers_take_part_in_a_cohort_and_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    train, chunks = Helper.train, list[Sequence[int]]()

    def noted(self: Helper, at: Sequence[int], jobs: Sequence[Job], h: Hyperparameters) -> Trained:
        chunks.append(at)
        return train(self, at, jobs, h)

    monkeypatch.setattr(Helper, "train", noted)
    artifact = shipped(RECIPES["mlp-784-318-10"])
    shards = Shards(fleet_data(RECIPES["mlp-784-318-10"]), artifact.spec.x_shape)
    start, jobs = start_of(artifact), jobs_of(len(SIZES))
    alone, helped = (DenseTrainer(artifact.spec, shards, threads) for threads in (1, 3))
    truth = [(a.at, a.vector.tobytes()) for a in one_by_one(alone.train(start, jobs, PLAIN))]
    try:
        until = time.monotonic() + LOADING_S
        while not chunks and time.monotonic() < until:
            got = [(a.at, a.vector.tobytes()) for a in one_by_one(helped.train(start, jobs, PLAIN))]
            assert got == truth
        assert chunks
    finally:
        helped.close()
        alone.close()


def test_a_fleet_of_one_chunk_needs_nobody() -> None:
    artifact = shipped(RECIPES["softmax-60-10"])
    shards = Shards(fleet_data(RECIPES["softmax-60-10"]), artifact.spec.x_shape)
    before = set(own_children())
    trainer = DenseTrainer(artifact.spec, shards, threads=2)
    assert set(own_children()) == before
    trainer.close()


def test_the_death_of_a_helper_is_told_in_one_line() -> None:
    artifact = shipped(RECIPES["mlp-784-318-10"])
    shards = Shards(fleet_data(RECIPES["mlp-784-318-10"]), artifact.spec.x_shape)
    before = set(own_children())
    with crew_of(shards, "mlp-784-318-10") as crew, ready(crew) as helper:
        (process,) = set(own_children()) - before
        process.kill()
        with pytest.raises(
            EngineError,
            match=r"^replay: a process that trains ended with signal 9;"
            r" the same command goes on .*--threads 1 needs no other process$",
        ):
            helper.train([0], jobs_of(1), PLAIN)


def test_a_machine_that_refuses_helpers_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(crew, "make_memory", refuse)
    artifact = shipped(RECIPES["mlp-784-318-10"])
    shards = Shards(fleet_data(RECIPES["mlp-784-318-10"]), artifact.spec.x_shape)
    with pytest.raises(EngineError, match=r"^replay: cannot start a process .*--threads 1 needs"):
        DenseTrainer(artifact.spec, shards, threads=2)


@pytest.mark.parametrize("is_anonymous", [True, False])
def test_arrays_are_seen_by_whoever_has_the_memory(
    is_anonymous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_anonymous:
        monkeypatch.delattr(os, "memfd_create", raising=False)  # as on macOS
    sheets = lay_out({"a": (np.float32, (3, 5)), "empty": (np.uint8, (0,)), "b": (np.int64, (7,))})
    memory = make_memory(sheets)
    one, other = see(memory, sheets), see(memory, sheets)
    os.close(memory)
    one["a"][:], one["b"][:] = 1.5, np.arange(7)
    assert other["a"].tolist() == [[1.5] * 5] * 3
    assert other["b"].tolist() == list(range(7))
    assert other["empty"].shape == (0,)


OWNER = """
import sys, time
from fairbed.testbed.replay.cohort.dense import DenseTrainer
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.testbed.replay.cohort.shared import lay_out, make_memory, see
from tests.testbed.replay.cohort.fleets import *
artifact = shipped(RECIPES["mlp-784-318-10"])
trainer = DenseTrainer(artifact.spec, Shards(fleet_data(RECIPES["mlp-784-318-10"]), (784,)), 3)
print("begun", flush=True)
time.sleep(60.0)
"""


def test_helpers_die_with_a_replay_that_is_killed() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=Path(__file__).parents[4], stdout=subprocess.PIPE
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"begun\n"
        helpers = psutil.Process(owner.pid).children()
        assert len(helpers) == 2
        owner.send_signal(signal.SIGKILL)
    assert all(is_gone(helper) for helper in helpers)
