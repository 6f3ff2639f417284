"""Optimised graphs that a device keeps: the same numbers, and no trust in the file."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.task.catalogue import load_task
from fairbed.device_agent import training_work
from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.engines import optimised
from fairbed.device_agent.engines.base import self_check
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.device_agent.engines.optimised import MIN_GRAPH_BYTES, OptimisedGraphs
from fairbed.device_agent.examples import CachedShard
from fairbed.device_agent.host import Host, UnlimitedPace
from fairbed.device_agent.sensors import RealSensors
from fairbed.device_agent.training_work import TrainingWork
from fairbed.wire.artifact import Artifact, encode_artifact
from fairbed.wire.chunks import manifest_of
from fairbed.wire.selfcheck import selfcheck_inputs
from fairbed.wire.shard import encode_shard, make_shard
from tests.device_agent.clock import ManualClock


@pytest.fixture(scope="module")
def cnn() -> Artifact:
    return load_task("cnn", (1, 8, 8), 10)


@pytest.fixture
def graphs(tmp_path: Path) -> OptimisedGraphs:
    return OptimisedGraphs(BlobCache(tmp_path / "cache", 1 << 24), min_bytes=0)


def bits(engine: OnnxEngine) -> tuple[bytes, ...]:
    """Return the bits of two steps and an evaluation."""
    vector, x, y = selfcheck_inputs(engine.spec, seed=3, batch=7)
    found = []
    for _ in range(2):
        loss, gradient = engine.gradient(vector, x, y)
        found += [np.float64(loss).tobytes(), gradient.tobytes()]
        vector = vector.copy()
        vector[: len(gradient)] -= np.float32(0.1) * gradient
    evaluation = engine.evaluate(vector, x, y)
    return (*found, np.float64(evaluation.loss_sum).tobytes(), vector.tobytes())


def counted(
    graphs: OptimisedGraphs, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Artifact], list[bool]]:
    """Return a function that opens an engine: whether each of its sessions was optimised before."""

    def opened(artifact: Artifact) -> list[bool]:
        found: list[bool] = []
        real = OptimisedGraphs.session

        def session(self: OptimisedGraphs, graph: bytes, open_session: Any) -> Any:
            def noted(given: bytes, path: Path | None, is_optimised: bool) -> Any:
                found.append(is_optimised)
                return open_session(given, path, is_optimised)

            return real(self, graph, noted)

        with monkeypatch.context() as patch:
            patch.setattr(OptimisedGraphs, "session", session)
            self_check(OnnxEngine(artifact, optimised=graphs))
        return found

    return opened


def test_the_numbers_have_the_same_bits_with_and_without_the_file(
    cnn: Artifact, graphs: OptimisedGraphs
) -> None:
    without = bits(OnnxEngine(cnn))
    assert bits(OnnxEngine(cnn, optimised=graphs)) == without
    assert len(list(graphs.cache.folder.iterdir())) == 2
    assert bits(OnnxEngine(cnn, optimised=graphs)) == without


def test_a_graph_is_optimised_once(
    cnn: Artifact, graphs: OptimisedGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = counted(graphs, monkeypatch)
    assert opened(cnn) == [False, True]
    assert opened(cnn) == [True]


def test_a_small_graph_is_not_kept(cnn: Artifact, graphs: OptimisedGraphs) -> None:
    assert len(cnn.train) < MIN_GRAPH_BYTES
    self_check(OnnxEngine(cnn, optimised=OptimisedGraphs(graphs.cache)))
    assert not graphs.cache.folder.exists()


@pytest.mark.parametrize("damage", ["a bit", "cut off", "empty"])
def test_a_damaged_file_is_made_again_with_a_line(
    damage: str,
    cnn: Artifact,
    graphs: OptimisedGraphs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = counted(graphs, monkeypatch)
    opened(cnn)
    [path] = graphs.cache.folder.iterdir()
    whole = path.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    path.write_bytes({"a bit": flipped, "cut off": whole[:500], "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        assert opened(cnn) == [False, True]
    [line] = caplog.messages
    assert line.startswith("cache: graph-")
    assert "must match its checksum" in line
    assert opened(cnn) == [True]


def test_a_foreign_file_with_a_right_checksum_is_not_used(
    cnn: Artifact,
    graphs: OptimisedGraphs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = counted(graphs, monkeypatch)
    opened(cnn)
    [path] = graphs.cache.folder.iterdir()
    graphs.cache.put_made(path.name, b"no graph at all")
    with caplog.at_level(logging.WARNING):
        assert opened(cnn) == [True, False]
    assert "the optimised graph must load" in caplog.messages[0]
    assert opened(cnn) == [False, True]


def test_another_processor_or_runtime_makes_its_own_file(
    cnn: Artifact, graphs: OptimisedGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = counted(graphs, monkeypatch)
    opened(cnn)
    monkeypatch.setattr(optimised, "_processor", lambda: b"another")
    assert opened(cnn) == [False, True]
    monkeypatch.setattr(optimised, "engine_version", lambda: "onnxruntime 0.0")
    assert opened(cnn) == [False, True]
    assert len(list(graphs.cache.folder.iterdir())) == 3


def test_a_disk_that_takes_no_file_costs_a_line_alone(
    cnn: Artifact, graphs: OptimisedGraphs, caplog: pytest.LogCaptureFixture
) -> None:
    graphs.cache.folder.write_bytes(b"a file in place of the folder")
    with caplog.at_level(logging.WARNING):
        self_check(OnnxEngine(cnn, optimised=graphs))
    [line] = caplog.messages
    assert line.startswith("engine: the optimised graph cannot be kept: ")


def test_an_optimised_graph_of_another_task_is_found_by_the_self_check(
    cnn: Artifact,
    graphs: OptimisedGraphs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = graphs.cache
    monkeypatch.setattr(training_work, "OptimisedGraphs", lambda cache: graphs)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 1, 8, 8)).astype(np.float32), np.arange(4)
    task, shard = encode_artifact(cnn), encode_shard(make_shard(x, y))
    manifests = manifest_of(task, "task"), manifest_of(shard, "shard")
    for manifest, blob in zip(manifests, (task, shard), strict=True):
        cache.put(manifest, blob)
    host = Host(clock=ManualClock(), pace=UnlimitedPace(), sensors=RealSensors())
    work = TrainingWork(host, cache, cache.folder / "state", None, 1, (), 0.0, ())

    def prepare() -> None:
        work.prepare(manifests[0], lambda _: CachedShard(cache, manifests[1]))

    prepare()
    other = load_task("softmax", (1, 8, 8), 10)
    OnnxEngine(other, optimised=graphs)
    right, wrong = (cache.folder / graphs.name_of(one.train) for one in (cnn, other))
    right.write_bytes(wrong.read_bytes())
    with caplog.at_level(logging.WARNING):
        prepare()
    assert work.task is not None
    assert "engine: the optimised graph is made again" in caplog.text
    assert right.read_bytes() != wrong.read_bytes()
