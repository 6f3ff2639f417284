"""Savings of each codec in bytes and time, and its cost in accuracy, on whole runs.

    fairbed bench codecs [--rounds 20] [--seeds 1,2,3] [--devices 6] [--per-round 6]
                         [--link lte-steady] [--only UP/DOWN,...] [--json]

Digits and the CNN of 86,282 parameters on emulated Raspberry Pi 4 behind one slow link each. All
numbers are from the store of the runs: bytes are means and times medians over the exchanges of
all seeds, accuracy is that after the last round. The size of lossless changes is measured on the
last two models of each float32 run. The table also has the coding speed of this machine.
"""

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.model_files import FOLDER, TENSOR
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.progress import tracked
from fairbed.wire.codecs import codec_named

EXPERIMENT = """
name = "codecs"
rounds = {rounds}
[data]
dataset = "digits"
partition = {{ kind = "by-class", classes_per_device = 6 }}
[model]
name = "cnn"
[training]
epochs = 4
learning_rate = 0.05
[selection]
policy = "uniform"
per_round = {per_round}
[evaluation]
every = {rounds}
[[fleet]]
name = "pi"
profile = "raspberry-pi-4b"
link = "{link}"
count = {devices}
"""

RAW = "float32/float32"
CASES = (
    RAW,
    "float16/float32",
    "int8/float32",
    "top-k=0.1/float32",
    "top-k=0.01/float32",
    "float32/float16",
    "float32/int8",
    "float32/delta",
    "int8/delta",
    "top-k=0.1/delta",
)
"""Codec up / codec down."""

HEADINGS = (
    ("up / down", 20),
    ("kB down", 8),
    ("kB up", 8),
    ("tau s", 7),
    ("wire s", 8),
    ("encode ms", 10),
    ("decode ms", 10),
    ("coord. decode", 14),
    ("coord. encode", 14),
    ("accuracy", 20),
)


SPEED_VALUES = 2_500_000
"""10 MB of float32."""


@dataclass(slots=True)
class _Case:
    """All seeds of one pair of codecs."""

    exchanges: list[ExchangeRow] = field(default_factory=list)
    encode_s: list[float] = field(default_factory=list)
    """Encoding times of the versions at the coordinator, seconds."""
    accuracy: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Lossless:
    """Lossless changes from one version to the next."""

    ratio: list[float] = field(default_factory=list)
    """Size relative to that of the version."""
    decode_s_per_mb: list[float] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench codecs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", default="1,2,3", help="one run each")
    parser.add_argument("--devices", type=int, default=6)
    parser.add_argument("--per-round", type=int, default=6)
    parser.add_argument("--link", default="lte-steady")
    parser.add_argument("--only", default=",".join(CASES), help=f"some of {', '.join(CASES)}")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    experiment = EXPERIMENT.format(
        rounds=options.rounds,
        per_round=options.per_round,
        devices=options.devices,
        link=options.link,
    )
    names = options.only.split(",")
    cases = {name: _Case() for name in names}
    lossless = _Lossless()
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        path = Path(folder) / "experiment.toml"
        path.write_text(experiment, encoding="utf-8")
        runs = [(seed, name) for seed in options.seeds.split(",") for name in names]
        for seed, name in tracked(runs, "runs", "codecs"):
            out = Path(folder) / f"{name.replace('/', '-')}-{seed}"
            _run(path, out, name, seed)
            _read(out, cases[name])
            if name == RAW:
                _compress(out, lossless)
    result = {name: _numbers(case) for name, case in cases.items()}
    result |= _speeds()
    if lossless.ratio:
        result["lossless changes"] = {
            "ratio": statistics.median(lossless.ratio),
            "decode_ms_per_mb": 1e3 * statistics.median(lossless.decode_s_per_mb),
        }
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        _print(result)
    return 0


def _run(experiment: Path, out: Path, name: str, seed: str) -> None:
    up, _, down = name.partition("/")
    up, _, share = up.partition("=")
    command = [
        sys.executable,
        "-m",
        "fairbed.testbed.cli.main",
        "run",
        str(experiment),
        "--out",
        str(out),
    ]
    command += ["--headless", "--json", "--seed", seed]
    command += ["--set", f"exchange.up={up}", "--set", f"exchange.down={down}"]
    if share:
        command += ["--set", f"exchange.top_k={share}"]
    done = subprocess.run(
        guarded(command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    if done.returncode:
        sys.stderr.buffer.write(done.stderr)
        raise SystemExit(f"codecs: {name} failed with exit code {done.returncode}")


def _read(out: Path, case: _Case) -> None:
    with RunReader(out) as reader:
        case.exchanges += [x for x in reader.exchanges(0) if x.outcome == "done"]
        spent = [row.coordinator_encode_s for row in reader.rounds()]
        case.encode_s += [value for value in spent if value is not None]
        accuracy = reader.metrics()[-1].accuracy_mean
        assert accuracy is not None, "a classifier"
        case.accuracy.append(accuracy)


def _compress(out: Path, lossless: _Lossless) -> None:
    """Measure the best simple way without loss: bits that differ, byte by byte, deflated."""
    from safetensors.numpy import load_file

    before, after = (
        load_file(path)[TENSOR] for path in sorted((out / FOLDER).glob("round-*"))[-2:]
    )
    planes = (before.view(np.uint32) ^ after.view(np.uint32)).view(np.uint8).reshape(-1, 4).T
    blob = zlib.compress(planes.tobytes(), 6)
    started = time.perf_counter()
    restored: Vector = _restore(before, blob)
    took_s = time.perf_counter() - started
    assert np.array_equal(restored, after), "without loss"
    lossless.ratio.append(len(blob) / after.nbytes)
    lossless.decode_s_per_mb.append(took_s / (after.nbytes / 1e6))


def _restore(before: Vector, blob: bytes) -> Vector:
    planes = np.frombuffer(zlib.decompress(blob), np.uint8).reshape(4, -1)
    bits = np.ascontiguousarray(planes.T).view(np.uint32)[:, 0]
    vector: Vector = (before.view(np.uint32) ^ bits).view(np.float32)
    return vector


def _speeds() -> dict[str, dict[str, float | int | None]]:
    """Return the time of each codec for normal noise, ms per MB of float32, best of five."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(SPEED_VALUES).astype(np.float32)
    speeds: dict[str, dict[str, float | int | None]] = {}
    for name, k in (("float16", None), ("int8", None), ("top-k", SPEED_VALUES // 100)):
        codec = codec_named(name, k)
        assert codec is not None
        best = [math.inf, math.inf]
        for _ in range(5):
            instants = [time.perf_counter()]
            data = codec.encode(values, rng)
            instants.append(time.perf_counter())
            codec.decode(memoryview(data), SPEED_VALUES)
            instants.append(time.perf_counter())
            best = [min(pair) for pair in zip(best, np.diff(instants).tolist(), strict=True)]
        per_mb = 1e9 / (4 * SPEED_VALUES)
        speeds[f"speed {name}"] = {
            "encode_ms_per_mb": best[0] * per_mb,
            "decode_ms_per_mb": best[1] * per_mb,
        }
    return speeds


def _numbers(case: _Case) -> dict[str, float | int | None]:
    def median_ms(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return 1e3 * statistics.median(known) if known else None

    rows = case.exchanges
    return {
        "exchanges": len(rows),
        "down_kb": statistics.mean(x.bytes_down for x in rows) / 1e3,
        "up_kb": statistics.mean(x.bytes_up for x in rows) / 1e3,
        "tau_s": statistics.median(x.tau_s for x in rows if x.tau_s is not None),
        "wire_s": statistics.median((x.download_s or 0.0) + (x.upload_s or 0.0) for x in rows),
        "unaccounted_ratio": statistics.median(
            x.unaccounted_s / x.tau_s for x in rows if x.tau_s and x.unaccounted_s is not None
        ),
        "encode_ms": median_ms([x.encode_s for x in rows]),
        "decode_ms": median_ms([x.decode_s for x in rows]),
        "coordinator_decode_ms": median_ms([x.coordinator_decode_s for x in rows]),
        "coordinator_encode_ms": median_ms(case.encode_s),
        "accuracy": statistics.mean(case.accuracy),
        "accuracy_min": min(case.accuracy),
        "accuracy_max": max(case.accuracy),
    }


def _print(result: dict[str, dict[str, float | int | None]]) -> None:
    print("".join(f"{text:>{width}}" for text, width in HEADINGS))
    for name, n in result.items():
        if "tau_s" not in n:
            print(f"{name}:", ", ".join(f"{key} {value:.2f}" for key, value in n.items()))
            continue
        cells = [
            name,
            f"{n['down_kb']:.1f}",
            f"{n['up_kb']:.1f}",
            f"{n['tau_s']:.2f}",
            f"{n['wire_s']:.2f}",
            *(
                "–" if n[key] is None else f"{n[key]:.1f}"
                for key in ("encode_ms", "decode_ms", "coordinator_decode_ms")
            ),
            "–" if n["coordinator_encode_ms"] is None else f"{n['coordinator_encode_ms']:.1f}",
            f"{n['accuracy']:.3f} ({n['accuracy_min']:.2f}-{n['accuracy_max']:.2f})",
        ]
        print("".join(f"{c:>{width}}" for c, (_, width) in zip(cells, HEADINGS, strict=True)))
