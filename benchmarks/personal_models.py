"""Cost of personal models in a replay: time of a round, and memory of all models.

    fairbed bench personal-models [--only common,large] [--rounds N] [--repeats 3] [--threads 1]
                                  [--devices 10000] [--values 10000] [--json]

The jobs are those of `replay-training`, without and with Ditto (lambda 1), in turns; `ratio` is
that of their fastest rounds, `cpu_ratio` that of the least processor times. The first round, and
the last one with its evaluation, are left out. Memory is the growth of this process while
DEVICES devices store a model of VALUES float32 values.
"""

import argparse
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil

from benchmarks.replay_training import CASES, processor_s
from fairbed.coordinator.policy.config import PersonalisationConfig
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.replay.device_vectors import DeviceVectors
from fairbed.testbed.replay.run import replay_experiment

METHODS = {"fedavg": PersonalisationConfig(), "ditto": PersonalisationConfig(method="ditto")}


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench personal-models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default=",".join(CASES), help=f"some of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=12, help="of each replay, at least 3")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--values", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if unknown := sorted(set(names) - set(CASES)):
        raise SystemExit(f"personal-models: no job {unknown[0]!r}; there are {', '.join(CASES)}")
    if options.rounds < 3 or options.repeats < 1:
        raise SystemExit("personal-models: at least 3 rounds and one repeat are needed")
    result = {"memory": _memory(options.devices, options.values)}
    for name in names:
        result[name] = _rounds(name, options.rounds, options.repeats, options.threads)
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        for name, found in result.items():
            print(name)
            for key, value in found.items():
                print(f"    {key:<24}{value:10.4g}")
    return 0


def _memory(devices: int, values: int) -> dict[str, float]:
    process, rng = psutil.Process(), np.random.default_rng(0)
    models = DeviceVectors(np.zeros(values, dtype=np.float32))
    before = process.memory_info().rss
    for row in range(devices):
        models.keep(row, rng.random(values, dtype=np.float32))
    grown = process.memory_info().rss - before
    return {"devices": len(models), "values": values, "gigabytes": grown / 1e9}


def _rounds(name: str, rounds: int, repeats: int, threads: int) -> dict[str, float]:
    """Return the times of a round without and with personal models, and their ratios."""
    case = CASES[name]
    walls: dict[str, float] = dict.fromkeys(METHODS, np.inf)
    cpus = dict(walls)
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        plain = case.experiment(case.dataset(Path(folder)))
        for repeat in range(repeats):
            for method, settings in METHODS.items():
                experiment = msgspec.structs.replace(plain, rounds=rounds, personalisation=settings)
                wall_s, cpu_s = _round(experiment, Path(folder) / f"{method}-{repeat}", threads)
                walls[method] = min(walls[method], wall_s)
                cpus[method] = min(cpus[method], cpu_s)
    return {
        "fedavg_round_s": walls["fedavg"],
        "ditto_round_s": walls["ditto"],
        "ratio": walls["ditto"] / walls["fedavg"],
        "cpu_ratio": cpus["ditto"] / cpus["fedavg"],
    }


def _round(experiment: Experiment, folder: Path, threads: int) -> tuple[float, float]:
    """Return the duration and the processor time of a round, seconds."""
    ends: list[tuple[float, float]] = []
    replay_experiment(
        experiment,
        folder,
        "bench",
        lambda replayed: ends.append((time.perf_counter(), processor_s())),
        threads=threads,
    )
    first, last = ends[0], ends[-2]
    wall_s, cpu_s = ((b - a) / (len(ends) - 2) for a, b in zip(first, last, strict=True))
    return wall_s, cpu_s
