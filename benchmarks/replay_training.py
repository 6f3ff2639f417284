"""Training speed of replays, compared with bare matrix products and Flower's simulation.

    fairbed bench replay-training [--only common,large] [--threads N] [--flower PYTHON]
                                  [--flower-rounds 3] [--json]
    fairbed bench replay-training --cores 2 [--turns 5] [--rounds 6] [--json]

common: 20 clients x 20 rounds of an MLP 784-318-10, 320 examples each, batch 32. large: 1000
clients x 100 rounds of softmax regression on Synthetic(1,1), 10 local steps of batch 20. cnn: 4
clients x 20 rounds of the quickstart, its CNN for 8 x 8 pixels, 100 examples each, 12 epochs,
batch 25. All clients are in every round. A replay is complete: selection, training, merge, store;
only the last model is evaluated. The time of a round is the mean from the end of the first to the
end of the last one. Processor times, of all threads and workers, are also useful on a machine with
other load.

--cores measures the speedup of the devices' engine: the shipped CNN, 16 clients of 160 pictures, on
one thread and on N, in turns, each in a process that may use as many cores. `speedup` is the median
over the turns of the ratio of both rounds; `cpu_ratio` is that of their processor times.

PYTHON is an interpreter with `flwr[simulation]`; it runs the same job, with the same formulas in
numpy, right after ours. Without it, an earlier measurement with Flower 1.41 is shown.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fairbed.testbed.experiment.datasets import load
from fairbed.testbed.experiment.file import Experiment, parse_experiment
from fairbed.testbed.experiment.shards import FleetData
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.progress import tracked
from fairbed.testbed.replay.cohort.ordered import OrderedThreads, free_cores
from fairbed.testbed.replay.run import replay_experiment

FLOWER_APP = "benchmarks._flower_app"
"""Module of this folder that Flower's interpreter runs."""
FLOWER_STATED_S = {"common": 0.41}
"""Seconds per round of Flower 1.41's simulation on a similar machine with two cores."""
REPEATS = 3
"""Measurements of bare products; the result is the median."""


@dataclass(frozen=True, slots=True)
class Case:
    """One job."""

    clients: int
    rounds: int
    batch: int
    steps: int
    """Steps of each client in a round."""
    epochs: int
    widths: tuple[int, ...]
    """Features, hidden units, classes."""
    learning_rate: float
    dataset: Callable[[Path], dict[str, object]]
    """Writes its files into a folder and returns `[data]`."""
    convolutions: tuple[tuple[int, int, int], ...] = ()
    """Of each: positions, values below its kernel, channels; they come before the dense layers."""

    @property
    def model(self) -> str:
        """Name in the experiment file."""
        return "cnn" if self.convolutions else "softmax" if len(self.widths) == 2 else "mlp"

    @property
    def layers(self) -> list[tuple[int, int, int]]:
        """Of each layer: rows per example, inputs and outputs of its matrix product."""
        pairs = zip(self.widths, self.widths[1:], strict=False)
        return [*self.convolutions, *((1, inputs, outputs) for inputs, outputs in pairs)]

    @property
    def n_values(self) -> int:
        """Number of values of the model."""
        return sum((inputs + 1) * outputs for _, inputs, outputs in self.layers)

    def experiment(self, data: dict[str, object]) -> Experiment:
        """Return the experiment; all devices are always available and never late."""
        training = {
            "epochs": self.epochs,
            "batch_size": self.batch,
            "learning_rate": self.learning_rate,
            "max_steps": self.steps,
        }
        fleet = {"model": "linear", "theta": [1.0, 1.0, 0.2], "count": self.clients}
        return parse_experiment(
            {
                "name": "bench",
                "rounds": self.rounds,
                "data": data,
                "model": {"name": self.model},
                "training": training,
                "selection": {"policy": "uniform", "per_round": self.clients},
                "evaluation": {"every": 0},
                "round": {"deadline_s": 1e6},
                "fleet": [{**fleet, "availability": 1.0}],
            },
            "bench",
        )


def _noise(folder: Path) -> dict[str, object]:
    """Write 20 x 400 examples of 784 features, of which 80 are held out everywhere."""
    rng, n = np.random.default_rng(0), 20 * 400
    x = rng.normal(size=(n, 784)).astype(np.float32)
    y = np.argmax(x @ rng.normal(size=(784, 10)), axis=1)
    path = folder / "noise.npz"
    np.savez(path, x=x, y=y, device=np.repeat(np.arange(20), 400))
    return {"source": str(path)}


def _small_pictures(folder: Path) -> dict[str, object]:
    """Write 4 x 125 pictures of 8 x 8 pixels, of which 25 are held out everywhere."""
    rng, n = np.random.default_rng(0), 4 * 125
    x = rng.normal(size=(n, 1, 8, 8)).astype(np.float32)
    path = folder / "pictures.npz"
    np.savez(path, x=x, y=np.arange(n) % 10, device=np.repeat(np.arange(4), 125))
    return {"source": str(path)}


def _synthetic(folder: Path) -> dict[str, object]:
    return {"dataset": "synthetic", "synthetic": {"users": 1000}, "test_fraction": 0.2}


CASES = {
    "common": Case(20, 20, 32, 10, 1, (784, 318, 10), 0.05, _noise),
    "cnn": Case(
        *(4, 20, 25, 48, 12, (256, 128, 10), 0.05, _small_pictures),
        convolutions=((64, 25, 32), (16, 800, 64)),
    ),
    "large": Case(1000, 100, 20, 10, 5, (60, 10), 0.01, _synthetic),
}


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench replay-training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default=",".join(CASES), help=f"some of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, help="instead of 20, 20 and 100")
    parser.add_argument("--threads", type=int, default=free_cores(), help="(default: all cores)")
    parser.add_argument("--cores", type=int, metavar="N", help="measure the speedup on N cores")
    parser.add_argument("--turns", type=int, default=5, help="of --cores (default 5)")
    parser.add_argument("--flower", metavar="PYTHON", help="interpreter with flwr[simulation]")
    parser.add_argument("--flower-rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.cores is not None:
        return _print_speedup(options.cores, options.turns, options.rounds or 6, options.json)
    names = options.only.split(",")
    if unknown := sorted(set(names) - set(CASES)):
        raise SystemExit(f"replay-training: no job {unknown[0]!r}; there are {', '.join(CASES)}")
    result: dict[str, dict[str, float]] = {}
    for name in tracked(names, "jobs", "replay-training"):
        case = CASES[name]
        with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
            found = _replay(case, Path(folder), options.threads, options.rounds or case.rounds)
            found |= bare_products(case, options.threads)
            found["over_bare"] = found["round_s"] / found["bare_s"]
            found["cpu_over_bare"] = found["round_cpu_s"] / found["bare_cpu_s"]
            if options.flower:
                found |= _flower(case, Path(folder), options.flower, options.flower_rounds)
            elif name in FLOWER_STATED_S:
                found["flower_stated_round_s"] = FLOWER_STATED_S[name]
        flower_s = found.get("flower_round_s", found.get("flower_stated_round_s"))
        if flower_s is not None:
            found["times_flower"] = flower_s / found["round_s"]
        found["load_1min"] = os.getloadavg()[0]
        result[name] = found
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        for name, found in result.items():
            print(name)
            for key, value in found.items():
                print(f"    {key:<24}{value:10.4g}")
    return 0


def _replay(case: Case, folder: Path, threads: int, rounds: int) -> dict[str, float]:
    data = case.dataset(folder)
    experiment = msgspec.structs.replace(case.experiment(data), rounds=rounds)
    ends: list[tuple[float, float]] = []
    started = time.perf_counter()
    replay_experiment(
        experiment,
        folder / "run",
        "bench",
        lambda replayed: ends.append((time.perf_counter(), processor_s())),
        threads=threads,
    )
    first, last = ends[0], ends[-1]
    round_s, round_cpu_s = ((b - a) / (len(ends) - 1) for a, b in zip(first, last, strict=True))
    return {
        "rounds": len(ends),
        "threads": threads,
        "whole_s": time.perf_counter() - started,
        "round_s": round_s,
        "rounds_per_s": 1.0 / round_s,
        "round_cpu_s": round_cpu_s,
    }


def processor_s() -> float:
    """Return the processor time of this process and of its workers, seconds."""
    workers = (process.cpu_times() for process in psutil.Process().children())
    return time.process_time() + sum(spent.user + spent.system for spent in workers)


TURN = """
import os, sys, time
from pathlib import Path
from benchmarks.replay_training import of_devices
from fairbed.testbed.replay.run import replay_experiment
threads, folder = int(sys.argv[1]), Path(sys.argv[2])
cores = sorted(os.sched_getaffinity(0))[:threads]
os.sched_setaffinity(0, cores)
ends = []
replay_experiment(
    of_devices(int(sys.argv[3])),
    folder,
    "bench",
    lambda replayed: ends.append((time.perf_counter(), time.process_time())),
    threads=threads,
)
print(*((b - a) / (len(ends) - 1) for a, b in zip(ends[0], ends[-1])))
"""
"""Prints time and processor time of a round of the devices' engine, seconds."""


def pictures() -> dict[str, NDArray[Any]]:
    """Return 16 x 200 random pictures, of which 40 of each client are held out."""
    rng, n = np.random.default_rng(0), 16 * 200
    x = rng.integers(0, 256, (n, 1, 28, 28)).astype(np.uint8)
    return {"x": x, "y": rng.integers(0, 10, n), "device": np.repeat(np.arange(16), 200)}


def of_devices(rounds: int) -> Experiment:
    """Return the job of --cores."""
    fleet = {"model": "linear", "theta": [1.0, 1.0, 0.2], "count": 16, "availability": 1.0}
    return parse_experiment(
        {
            "name": "bench",
            "rounds": rounds,
            "data": {
                "source": "benchmarks.replay_training:pictures",
                "test_fraction": 0.2,
                "partition": {"kind": "natural"},
            },
            "model": {"name": "cnn"},
            "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.01},
            "selection": {"policy": "uniform", "per_round": 16},
            "evaluation": {"every": 0},
            "round": {"deadline_s": 1e6},
            "replay": {"engine": "device"},
            "fleet": [fleet],
        },
        "bench",
    )


def _turn(threads: int, rounds: int) -> tuple[float, float]:
    """Return time and processor time of a round on as many threads and cores, seconds."""
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        command = [sys.executable, "-c", TURN, str(threads), f"{folder}/run", str(rounds)]
        done = subprocess.run(
            guarded(command), check=True, stdout=subprocess.PIPE, encoding="utf-8"
        )
    wall_s, cpu_s = map(float, done.stdout.split())
    return wall_s, cpu_s


def _print_speedup(cores: int, turns: int, rounds: int, as_json: bool) -> int:
    """Print the speedup of the devices' engine on several cores; return the exit code."""
    if not 2 <= cores <= free_cores():
        raise SystemExit(
            f"replay-training: --cores must be 2 to the {free_cores()} free cores of this "
            f"machine, got {cores}; give fewer"
        )
    one, several = list[tuple[float, float]](), list[tuple[float, float]]()
    for _ in tracked(range(turns), "turns", "replay-training"):
        one.append(_turn(1, rounds))
        several.append(_turn(cores, rounds))
    ratios = [a[0] / b[0] for a, b in zip(one, several, strict=True)]
    found = {
        "cores": cores,
        "turns": turns,
        "round_s_on_one": statistics.median(wall_s for wall_s, _ in one),
        "round_s": statistics.median(wall_s for wall_s, _ in several),
        "speedup": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "cpu_ratio": statistics.median(b[1] / a[1] for a, b in zip(one, several, strict=True)),
        "load_1min": os.getloadavg()[0],
    }
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        for key, value in found.items():
            print(f"    {key:<24}{value:10.4g}")
    return 0


def bare_products(case: Case, threads: int) -> dict[str, float]:
    """Return the time of the matrix products of one round alone, on as many threads.

    The products of a client run one after the other on arrays that stay in the cache.
    """
    rng, b = np.random.default_rng(0), case.batch
    layers = [
        (
            rng.normal(size=(rows * b, i)).astype(np.float32),
            rng.normal(size=(o, i)).astype(np.float32),
            rng.normal(size=(o, rows * b)).astype(np.float32),
        )
        for rows, i, o in case.layers
    ]

    def client(_: int) -> None:
        outs = [(np.empty_like(d), np.empty_like(w)) for _, w, d in layers]
        backs = [np.empty(h.T.shape, np.float32) for h, _, _ in layers]
        for _step in range(case.steps):
            for (h, w, d), (z, g), back in zip(layers, outs, backs, strict=True):
                np.matmul(w, h.T, out=z)
                np.matmul(d, h, out=g)
                if h is not layers[0][0]:
                    np.matmul(w.T, d, out=back)

    workers, walls, cpus = OrderedThreads(threads), [], []
    with threadpool_limits(1, "blas"):
        for _repeat in range(REPEATS):
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            list(workers.run(client, range(case.clients)))
            walls.append(time.perf_counter() - wall_s)
            cpus.append(time.process_time() - cpu_s)
    workers.close()
    return {"bare_s": statistics.median(walls), "bare_cpu_s": statistics.median(cpus)}


def _flower(case: Case, folder: Path, python: str, rounds: int) -> dict[str, float]:
    """Run the same job in Flower's simulation and return its times."""
    config = case.experiment(case.dataset(folder)).data
    dataset = load(config, 0, os.environ)
    data = FleetData(dataset, config, devices=case.clients, seed=0)
    rows = np.concatenate(data.train_rows)
    np.save(folder / "x.npy", dataset.x[rows])
    np.save(folder / "y.npy", dataset.y[rows])
    job = {
        "folder": str(folder),
        "ends": np.cumsum([len(rows) for rows in data.train_rows]).tolist(),
        "widths": case.widths,
        "batch": case.batch,
        "steps": case.steps,
        "learning_rate": case.learning_rate,
        "rounds": rounds,
    }
    (folder / "job.json").write_bytes(msgspec.json.encode(job))
    done = subprocess.run(
        guarded([python, "-m", FLOWER_APP]),
        capture_output=True,
        env={
            **os.environ,
            "FLOWER_JOB": str(folder / "job.json"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": str(Path(__file__).parent.parent),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        },
        check=False,
    )
    if done.returncode:
        sys.stderr.buffer.write(done.stderr)
        raise SystemExit(f"replay-training: Flower failed with exit code {done.returncode}")
    times: dict[str, float] = msgspec.json.decode(done.stdout.splitlines()[-1])
    return {f"flower_{key}": value for key, value in times.items()}
