"""Networks that train without torch: exactness, size, speed beside torch, and memory.

    fairbed bench models [--networks NAME,...] [--small] [--batch 16] [--seconds 4]
        [--write docs/models.md] [--json]

Each network is exported, and its gradient compared with torch in float64: `float64` is the error of
its graph in float64, `float32` that of onnxruntime (median of several steps). `ratio` is the
processor time of a step with onnxruntime over that with torch eager, on one thread, in turns in one
process: median over windows, and first and third quartile in brackets, which are the noise of the
machine. `products` is the part of the ratio that matrix products and convolutions take, measured
without all other operations. `peak` is the memory of three steps above that of a process that has
imported onnxruntime and read the task. `--small` adds the networks of the tests, in sizes where the
cost of a call dominates. `--write` replaces the tables of the page, after each network.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks._meter import MEGABYTE
from benchmarks._pages import page
from fairbed.coordinator.task.errors import TaskError
from fairbed.testbed.host.speed import cpu_model
from fairbed.testbed.progress import tracked
from fairbed.wire.artifact import Artifact, encode_artifact

if TYPE_CHECKING:
    from tests.coordinator.task.architectures import Architecture

MEMORY = """
import os, sys
import numpy as np
from benchmarks._meter import peak_rss_bytes
from fairbed.device_agent.engines.onnx import OnnxEngine, load_runtime
from fairbed.wire.artifact import decode_artifact, initial_vector
load_runtime()
artifact = decode_artifact(sys.stdin.buffer.read())
vector = initial_vector(artifact.spec, 0)
spec, batch = artifact.spec, int(sys.argv[1])
x = np.zeros((batch, *spec.x_shape), spec.x_dtype)
y = np.zeros((batch, *spec.y_shape), spec.y_dtype)
base = peak_rss_bytes(os.getpid())
engine = OnnxEngine(artifact)
for _ in range(3):
    engine.gradient(vector, x, y)
print(peak_rss_bytes(os.getpid()) - base)
"""
"""Prints the peak of a process with the task above the peak before it opens a session, bytes."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A network; all numbers are None if it is refused."""

    network: str
    is_small: bool
    engine: str
    """onnx, or why the network is refused."""
    values: int | None = None
    nodes: int | None = None
    graph_bytes: int | None = None
    """Of both graphs."""
    export_s: float | None = None
    """Without the comparison."""
    in_float64: float | None = None
    in_float32: float | None = None
    torch_s: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    products: float | None = None
    """Part of the ratio that products and convolutions take."""
    peak_bytes: int | None = None


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--networks", metavar="NAME,...", help="only those that begin so")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--write", type=page, metavar="PAGE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    chosen = _chosen(options.networks, is_small=options.small)
    if not chosen:
        parser.error(f"--networks: must begin a name of a network, got {options.networks!r}")
    rows, text = list[Row](), ""
    for name, network, is_small in tracked(chosen, "networks", "models"):
        rows.append(measured(name, network, is_small, options.batch, options.seconds))
        text = _page(rows, options.batch)
        if options.write is not None:  # an interrupted benchmark leaves what it has measured
            write(options.write, text)
    print(msgspec.json.encode(rows).decode() if options.json else text)
    return 0


def _chosen(names: str | None, *, is_small: bool) -> list[tuple[str, "Architecture", bool]]:
    """Return name and network, and whether it is one of the tests."""
    from benchmarks._device_networks import NETWORKS
    from tests.coordinator.task.architectures import ARCHITECTURES

    found = [(name, network, False) for name, network in NETWORKS.items()]
    if is_small:
        found += [(name, network, True) for name, network in ARCHITECTURES.items()]
    begins = None if names is None else tuple(names.split(","))
    return [entry for entry in found if begins is None or entry[0].startswith(begins)]


def measured(name: str, network: "Architecture", is_small: bool, batch: int, seconds: float) -> Row:
    """Export a network, and measure it."""
    import onnx
    import torch

    from benchmarks._products import product_share
    from fairbed.coordinator.task.selfcheck import ExportFigures
    from fairbed.testbed.host.model_steps import step_times

    torch.manual_seed(0)
    module, found = network.make(), list[ExportFigures]()
    try:
        artifact = network.export(module, found.append)
    except TaskError as exc:
        return Row(network=name, is_small=is_small, engine=f"refused: {exc}")
    times = step_times(artifact, module, batch, seconds)
    return Row(
        network=name,
        is_small=is_small,
        engine="onnx",
        values=artifact.spec.layout.n_values,
        nodes=len(onnx.load_model_from_string(artifact.train).graph.node),
        graph_bytes=len(artifact.train) + len(artifact.evaluate),
        export_s=found[0].export_s,
        in_float64=found[0].errors.in_float64,
        in_float32=found[0].errors.in_float32,
        torch_s=times.torch_s,
        ratio=times.ratio,
        low=times.low,
        high=times.high,
        products=None if is_small else times.ratio * product_share(artifact, batch, seconds),
        peak_bytes=None if is_small else _peak_bytes(artifact, batch),
    )


def _peak_bytes(artifact: Artifact, batch: int) -> int:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(batch)],
        input=encode_artifact(artifact),
        check=True,
        stdout=subprocess.PIPE,
    )
    return int(done.stdout)


def _page(rows: Sequence[Row], batch: int) -> str:
    load = os.getloadavg()[0]
    words = [
        f"{time.strftime('%d %B %Y').lstrip('0')}, {cpu_model()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, torch {version('torch')}, "
        f"onnxruntime {version('onnxruntime')}; mini-batches of {batch}.",
        f"Load of the machine at the end: {load:.1f}.",
    ]
    if load > 1.0:
        words.append(
            "Other programs ran beside it: times and ratios are noisy by the spread that is shown."
        )
    tables = [_table([row for row in rows if row.is_small == small]) for small in (False, True)]
    return "\n\n".join(["\n".join(words), *(table for table in tables if table)])


COLUMNS = (
    *("network", "engine", "values", "nodes", "kB", "export s", "float64", "float32"),
    *("torch ms", "ratio", "products", "peak MB"),
)


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(row))} |" for row in rows)])


def _cells(row: Row) -> list[str]:
    peak = "" if row.peak_bytes is None else f"{row.peak_bytes / MEGABYTE:.0f}"
    if row.values is None or row.graph_bytes is None or row.torch_s is None:
        return [row.network, row.engine.replace("|", "/"), *[""] * (len(COLUMNS) - 2)]
    return [
        row.network,
        row.engine,
        f"{row.values:,}",
        f"{row.nodes:,}",
        f"{row.graph_bytes / 1e3:.0f}",
        f"{row.export_s:.1f}",
        f"{row.in_float64:.0e}",
        f"{row.in_float32:.0e}",
        f"{row.torch_s * 1e3:.3g}",
        f"{row.ratio:.2f} ({row.low:.2f} to {row.high:.2f})",
        "" if row.products is None else f"{row.products:.2f}",
        peak,
    ]


BEGIN, END = "<!-- bench models -->", "<!-- end of bench models -->"


def write(page: Path, text: str) -> None:
    """Replace the tables of the page.

    Raises:
        SystemExit: The page has no place for it.
    """
    changed, count = re.subn(
        f"(?<={BEGIN}\n).*?(?={END})",
        lambda _: f"\n{text}\n\n",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(f"{page}: must have one line {BEGIN!r} before {END!r}")
    page.write_text(changed, encoding="utf-8")
