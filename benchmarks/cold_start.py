"""Processor time of opening a session, with and without the optimised graph on the disk.

    fairbed bench cold-start [--repeats 7] [--json]

Four networks: the shipped CNN, and narrow forms of MobileNetV2, ResNet-18 and DenseNet-121 for 32 x
32 pixels; the number of nodes counts, not their width. Three ways, one after the other in one
process: with onnxruntime's own plan of the reuse of memory, which Fairbed leaves out; optimised
each time; from the kept graph. Each opening includes the check of the graph; medians. Steps of 16
examples follow: their ratio to those of a session with that plan, and whether loss and gradient
have the same bits in all three.

Needs torch and onnx. Linux and macOS.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import torch
from torch import nn

from benchmarks._meter import median
from fairbed.coordinator.task.catalogue import load_task
from fairbed.coordinator.task.export import export_task
from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.engines import onnx
from fairbed.device_agent.engines.onnx import OnnxEngine, load_runtime
from fairbed.device_agent.engines.optimised import OptimisedGraphs
from fairbed.testbed.progress import tracked
from fairbed.wire.artifact import Artifact
from fairbed.wire.selfcheck import selfcheck_inputs
from tests.coordinator.task.convolutional_networks import basic, head, mobilenet_v2, normed

BATCH, STEPS = 16, 5
PLANNED, EACH_TIME, KEPT = "planned reuse", "each time", "kept"


class Dense(nn.Module):
    """Each layer reads the outputs of all before it."""

    def __init__(self, inputs: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(inputs + k * growth),
                nn.ReLU(),
                nn.Conv2d(inputs + k * growth, growth, 3, padding=1, bias=False),
            )
            for k in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the inputs and all outputs, joined as channels."""
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def densenet(blocks: tuple[int, ...] = (6, 12, 24, 16), growth: int = 8) -> nn.Module:
    """Return the blocks of DenseNet-121, narrow and without bottlenecks."""
    channels, layers = 16, list[nn.Module]([nn.Conv2d(3, 16, 3, 2, 1)])
    for number, size in enumerate(blocks):
        if number:
            half = channels // 2
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, half, 1)]
            layers.append(nn.AvgPool2d(2))
            channels = half
        layers.append(Dense(channels, growth, size))
        channels += size * growth
    return nn.Sequential(*layers, *head(channels))


def resnet() -> nn.Module:
    """Return the blocks of ResNet-18, narrow."""
    layers, channels = list[nn.Module]([normed(3, 16)]), 16
    for width in (16, 32, 64, 128):
        layers += [basic(channels, width, 1 if width == 16 else 2), basic(width, width)]
        channels = width
    return nn.Sequential(*layers, *head(channels))


def _tasks() -> dict[str, Callable[[], Artifact]]:
    def exported(make: Callable[[], nn.Module]) -> Artifact:
        return export_task(make(), "bench", "bench", (3, 32, 32), 10)

    return {
        "cnn": lambda: load_task("cnn", (1, 28, 28), 10),
        "mobilenet-v2": lambda: exported(mobilenet_v2),
        "resnet-18": lambda: exported(resnet),
        "densenet-121": lambda: exported(densenet),
    }


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench cold-start", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--models", nargs="+", choices=list(_tasks()), default=list(_tasks()))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = [
        measure(name, _tasks()[name](), options.repeats)
        for name in tracked(options.models, "models", "cold-start")
    ]
    if options.json:
        print(msgspec.json.encode(rows).decode())
        return 0
    print(
        f"{'model':<14}{'graph kB':>10}{'file kB':>10}{PLANNED + ' s':>18}{EACH_TIME + ' s':>13}"
        f"{KEPT + ' s':>9}{'step ratio':>12}{'same bits':>11}"
    )
    for row in rows:
        print(
            f"{row['model']:<14}{row['graph_kb']:>10.0f}{row['file_kb']:>10.0f}"
            f"{row['planned_s']:>18.3f}{row['each_time_s']:>13.3f}{row['kept_s']:>9.3f}"
            f"{row['step_ratio']:>12.2f}{row['has_same_bits']!s:>11}"
        )
    return 0


def measure(name: str, artifact: Artifact, repeats: int) -> Mapping[str, Any]:
    """Return the results of one network."""
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        kept = OptimisedGraphs(BlobCache(Path(folder), 1 << 30), min_bytes=0)
        OnnxEngine(artifact, optimised=kept)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())

        @contextmanager
        def planned() -> Iterator[None]:
            runtime = _PlannedReuse(load_runtime())
            with mock.patch.object(onnx, "load_runtime", return_value=runtime):
                yield

        def opened(way: str) -> tuple[float, OnnxEngine]:
            began = time.process_time()
            engine = OnnxEngine(artifact, optimised=kept if way == KEPT else None)
            return time.process_time() - began, engine

        times: dict[str, list[float]] = {PLANNED: [], EACH_TIME: [], KEPT: []}
        engines = dict[str, OnnxEngine]()
        for _ in range(repeats):
            with planned():
                spent_s, engines[PLANNED] = opened(PLANNED)
            times[PLANNED].append(spent_s)
            for way in (EACH_TIME, KEPT):
                spent_s, engines[way] = opened(way)
                times[way].append(spent_s)
    steps: dict[str, list[float]] = {PLANNED: [], EACH_TIME: [], KEPT: []}
    bits = dict[str, bytes]()
    vector, x, y = selfcheck_inputs(artifact.spec, seed=0, batch=BATCH)
    for _ in range(STEPS):
        for way, engine in engines.items():
            began = time.process_time()
            loss, gradient = engine.gradient(vector.copy(), x, y)
            steps[way].append(time.process_time() - began)
            bits[way] = np.float64(loss).tobytes() + gradient.tobytes()
    return {
        "model": name,
        "graph_kb": len(artifact.train) / 1e3,
        "file_kb": size / 1e3,
        "planned_s": median(times[PLANNED]),
        "each_time_s": median(times[EACH_TIME]),
        "kept_s": median(times[KEPT]),
        "step_ratio": median(steps[KEPT]) / median(steps[PLANNED]),
        "has_same_bits": len(set(bits.values())) == 1,
    }


class _PlannedReuse:
    """onnxruntime, whose sessions plan the reuse of memory, as they do by default."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def InferenceSession(self, graph: bytes, options: Any, providers: list[str]) -> Any:  # its name
        """Open a session with the plan."""
        options.enable_mem_reuse = True
        return self._runtime.InferenceSession(graph, options, providers=providers)
