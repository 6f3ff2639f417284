"""Worker processes: the same bits, and no process that outlives its replay."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from threadpoolctl import threadpool_limits

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.device_agent.errors import EngineError
from fairbed.device_agent.local_training import make_rule
from fairbed.testbed.replay.cohort import worker_pool
from fairbed.testbed.replay.cohort.base import CohortPart, CohortResult
from fairbed.testbed.replay.cohort.dense import DenseTrainer
from fairbed.testbed.replay.cohort.net import DenseNet, train_chunk
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.testbed.replay.cohort.worker_pool import SharedArrays, WorkerPool
from fairbed.wire import plugins
from fairbed.wire.messages import LOCAL_RULES_GROUP, Hyperparameters
from fairbed.wire.plugins import PluginError
from tests.processes import is_gone, is_long_lived, own_children
from tests.testbed.replay.cohort.fleets import (
    EVERYTHING,
    OPTIMISERS,
    PLAIN,
    RECIPES,
    SIZES,
    SplitDrift,
    fleet_data,
    jobs_of,
    one_by_one,
    propfair,
    shipped,
    split_drift,
    start_of,
)

MOST = 4
LOADING_S = 30.0
"""Time within which a worker has loaded its modules on a busy machine."""
MLP = "mlp-784-318-10"


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = set(own_children())
    yield
    assert set(own_children()) <= before


def shards_of(name: str = MLP, *, pixels: bool = False) -> Shards:
    return Shards(fleet_data(RECIPES[name], pixels=pixels), shipped(RECIPES[name]).spec.x_shape)


@contextmanager
def ready_pool(shards: Shards, name: str = MLP) -> Iterator[WorkerPool]:
    """Begin a pool of one worker, wait until it has loaded, and end it."""
    pool = WorkerPool(shipped(RECIPES[name]).spec, shards, MOST, 1)
    try:
        until = time.monotonic() + LOADING_S
        while not pool.is_ready():
            assert time.monotonic() < until, "no worker became ready"
            time.sleep(0.01)
        yield pool
    finally:
        pool.close()


def same(one: CohortResult, other: CohortResult) -> bool:
    """Return whether results agree in every bit."""
    return (
        one.at.tolist() == other.at.tolist()
        and one.vectors.tobytes() == other.vectors.tobytes()
        and one.steps.tolist() == other.steps.tolist()
        and one.loss_train.tobytes() == other.loss_train.tobytes()
        and one.problems == other.problems
        and bits(one.kept) == bits(other.kept)
        and bits(one.returned) == bits(other.returned)
        and bits({} if one.states is None else {"states": one.states})
        == bits({} if other.states is None else {"states": other.states})
    )


def bits(vectors: Mapping[str, Vector]) -> dict[str, bytes]:
    return {name: vector.tobytes() for name, vector in vectors.items()}


@pytest.mark.parametrize("hyperparameters", [PLAIN, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("pixels", [False, True])
@pytest.mark.parametrize("name", ["softmax-784-10", MLP])
def test_a_worker_gives_the_results_of_the_replay_process(
    name: str, pixels: bool, hyperparameters: Hyperparameters
) -> None:
    artifact, shards = shipped(RECIPES[name]), shards_of(name, pixels=pixels)
    jobs, net = jobs_of(len(SIZES)), DenseNet(artifact.spec)
    limit = threadpool_limits(1, "blas")  # as while a replay trains
    with limit, ready_pool(shards, name) as pool:
        for start in (start_of(artifact), start_of(artifact) + np.float32(0.01)):
            pool.begin_at(start)
            for chunk in ([4, 2], [5, 1, 3]):
                part = CohortPart(chunk, [jobs[at] for at in chunk], hyperparameters)
                here = train_chunk(net, shards, start, part)
                assert same(pool.train(part), here)
                own = replace(part, starts=here.vectors)
                here = train_chunk(net, shards, start, own)
                assert same(pool.train(own), here), "each device begins at a model of its own"


def test_a_worker_goes_on_at_the_state_of_an_optimiser() -> None:
    artifact, shards, h = shipped(RECIPES[MLP]), shards_of(), OPTIMISERS["adamw"]
    jobs, net, start = jobs_of(len(SIZES)), DenseNet(artifact.spec), start_of(artifact)
    part = CohortPart([4, 2], [jobs[4], replace(jobs[2], max_steps=2)], h)
    with threadpool_limits(1, "blas"), ready_pool(shards) as pool:
        pool.begin_at(start)
        for _ in range(2):
            here = train_chunk(net, shards, start, part)
            assert here.states is not None
            assert same(pool.train(part), here)
            part = replace(part, states=here.states)
    assert here.states is not None
    assert here.states[:, -1].tolist() == (2 * here.steps).tolist()


def test_a_worker_makes_the_local_rule_and_reports_its_faults() -> None:
    artifact, shards = shipped(RECIPES[MLP]), shards_of()
    jobs, net, start = jobs_of(len(SIZES)), DenseNet(artifact.spec), start_of(artifact)
    with threadpool_limits(1, "blas"), ready_pool(shards) as pool:
        pool.begin_at(start)
        for rule_of, chunk in ((split_drift, [4, 2]), (propfair, [5, 1]), (split_drift, [0])):
            cohort = CohortPart(range(len(jobs)), jobs, PLAIN, None, rule_of(start, len(jobs)))
            here = train_chunk(net, shards, start, cohort.take(chunk))
            assert same(pool.train(cohort.take(chunk)), here)
        broken = replace(split_drift(start, 1), options={"share": "half"})
        message = "SplitDrift: must be made from the options {'share': 'half'}, got "
        with pytest.raises(PluginError, match=message):
            pool.train(CohortPart([4], [jobs[4]], PLAIN, None, broken))
        one = CohortPart([4], [jobs[4]], PLAIN)
        assert pool.train(one).problems == ("",), "the worker goes on"


def test_a_worker_reports_devices_that_diverge() -> None:
    artifact = shipped(RECIPES["softmax-60-10"])
    data = fleet_data(RECIPES["softmax-60-10"])
    data.dataset.x[data.train_rows[2]] *= np.float32(1e30)
    shards, jobs = Shards(data, artifact.spec.x_shape), jobs_of(len(SIZES))
    with ready_pool(shards, "softmax-60-10") as pool:
        pool.begin_at(start_of(artifact))
        answer = pool.train(CohortPart([4, 2], [jobs[4], jobs[2]], PLAIN))
    assert answer.problems[0] == ""
    assert answer.problems[1].startswith("training: the loss must be finite, got ")


class Loading:
    """A worker that is loading; records whether two threads check it at the same time."""

    def __init__(self) -> None:
        self.has_overlap, self._both = False, threading.Barrier(2)

    def is_ready(self) -> bool:
        """Wait for a second thread for a short time."""
        with suppress(threading.BrokenBarrierError):
            self._both.wait(0.2)
            self.has_overlap = True
        return True

    def close(self) -> None:
        """Do nothing."""


def test_one_thread_at_a_time_reads_the_first_message_of_a_worker() -> None:
    """Two threads that see the same message would wait for a second one without end."""
    with ready_pool(shards_of()) as pool:
        loading = Loading()
        pool._workers.append(loading)  # type: ignore[arg-type]  # a fake without a process
        threads = [threading.Thread(target=pool.is_ready) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not loading.has_overlap


def test_workers_take_part_in_a_cohort_and_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    train, chunks = WorkerPool.train, list[Sequence[int]]()

    def noted(self: WorkerPool, part: CohortPart) -> CohortResult:
        chunks.append(part.at)
        return train(self, part)

    monkeypatch.setattr(WorkerPool, "train", noted)
    artifact, shards = shipped(RECIPES[MLP]), shards_of()
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


def test_a_rule_that_the_program_registered_trains_in_its_own_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers do not know its name."""
    monkeypatch.setitem(plugins._registered, LOCAL_RULES_GROUP, {})
    plugins.register(LOCAL_RULES_GROUP, "mine", SplitDrift)
    artifact, shards = shipped(RECIPES[MLP]), shards_of()
    start, jobs = start_of(artifact), jobs_of(len(SIZES))
    given = split_drift(start, len(jobs))
    rule = replace(given, rule=make_rule("mine", given.options))
    alone, helped = (DenseTrainer(artifact.spec, shards, threads) for threads in (1, 3))
    try:
        pool, until = helped._pool, time.monotonic() + LOADING_S
        assert pool is not None
        while not pool.is_ready():
            assert time.monotonic() < until, "no worker became ready"
            time.sleep(0.01)
        found = [
            [
                (a.at, a.vector.tobytes())
                for a in one_by_one(t.train(start, jobs, PLAIN, None, rule))
            ]
            for t in (alone, helped, helped)
        ]
        assert found[0] == found[1] == found[2]
    finally:
        helped.close()
        alone.close()


def test_a_fleet_of_one_chunk_starts_no_process() -> None:
    artifact = shipped(RECIPES["softmax-60-10"])
    before = set(own_children())
    trainer = DenseTrainer(artifact.spec, shards_of("softmax-60-10"), threads=2)
    assert set(own_children()) == before
    trainer.close()


def test_the_end_of_a_worker_is_a_one_line_error() -> None:
    before = set(own_children())
    with ready_pool(shards_of()) as pool:
        (process,) = set(own_children()) - before
        process.kill()
        with pytest.raises(
            EngineError,
            match=r"^replay: a process that trains ended with signal 9;"
            r" the same command resumes .*--threads 1 needs no other process$",
        ):
            pool.train(CohortPart([0], jobs_of(1), PLAIN))


def test_too_little_memory_for_workers_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(worker_pool, "_make_memory", refuse)
    with pytest.raises(EngineError, match=r"^replay: cannot start a process .*--threads 1 needs"):
        DenseTrainer(shipped(RECIPES[MLP]).spec, shards_of(), threads=2)


@pytest.mark.parametrize("is_anonymous", [True, False])
def test_processes_share_arrays(is_anonymous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_anonymous:
        monkeypatch.delattr(os, "memfd_create", raising=False)  # as on macOS
    layout = {"a": (np.float32, (3, 5)), "empty": (np.uint8, (0,)), "b": (np.int64, (7,))}
    one = SharedArrays(layout)
    other = SharedArrays(layout, os.dup(one.memory))
    one["a"][:], one["b"][:] = 1.5, np.arange(7)
    one.close()
    assert other["a"].tolist() == [[1.5] * 5] * 3
    assert other["b"].tolist() == list(range(7))
    assert other["empty"].shape == (0,)
    other.close()


OWNER = """
import os, sys, time
from fairbed.testbed.replay.cohort.dense import DenseTrainer
from fairbed.testbed.replay.cohort.shards import Shards
from tests.testbed.replay.cohort.fleets import *
artifact = shipped(RECIPES["mlp-784-318-10"])
trainer = DenseTrainer(artifact.spec, Shards(fleet_data(RECIPES["mlp-784-318-10"]), (784,)), 3)
if sys.argv[1] == "loaded":
    while not trainer._pool.is_ready():
        time.sleep(0.01)
print("begun", flush=True)
time.sleep(60.0)
"""


@contextmanager
def owner(when: str) -> Iterator[tuple[subprocess.Popen[bytes], list[psutil.Process]]]:
    """Start a process with a pool of two workers, in a session of its own; yield all of them."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, when],
        cwd=Path(__file__).parents[4],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        children = psutil.Process(process.pid).children()
        assert len([child for child in children if not is_long_lived(child)]) == 2
        yield process, children


@pytest.mark.parametrize("when", ["loading", "loaded"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_die_with_a_replay_that_is_killed(when: str, number: signal.Signals) -> None:
    with owner(when) as (process, children):
        process.send_signal(number)
        process.communicate()
        assert all(is_gone(child) for child in children)


@pytest.mark.parametrize("when", ["loading", "loaded"])
def test_ctrl_c_ends_a_replay_and_its_workers_with_one_message(when: str) -> None:
    with owner(when) as (process, children):
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr is not None
        lines = process.stderr.read().decode().splitlines()
    assert all(is_gone(child) for child in children)
    assert len([line for line in lines if line.startswith("KeyboardInterrupt")]) == 1
