"""Noise of the test sets: what the corrections recover, and how much the shipped files have of it.

python -m experiments.sampling_noise simulate
python -m experiments.sampling_noise shipped examples/*.toml examples/grids/*.toml
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.fairness import tenth
from fairbed.coordinator.algorithms.sampling_noise import SamplingNoise, sampling_noise
from fairbed.coordinator.report.summary import RunSummary, summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.compare.grid import load_grid
from fairbed.testbed.experiment.file import Experiment, load_experiment
from fairbed.testbed.replay.run import replay_experiment

FLEETS: dict[str, tuple[float, float] | float] = {
    "all 0.85": 0.85,
    "beta(85, 15)": (85.0, 15.0),
    "beta(17, 3)": (17.0, 3.0),
    "beta(6, 1.5)": (6.0, 1.5),
}
"""True accuracies: one for all devices, or alpha and beta of their distribution."""

TESTS: dict[str, tuple[int, int]] = {"12": (12, 12), "8 to 60": (8, 60)}
"""Fewest and most test examples of a device, uniform between them."""

FEW_DRAWS = 32
"""Of identical devices: the study is about the corrections, which do not use them."""


class Recovery(NamedTuple):
    """Errors of one sort of fleet: estimates minus the values of the true accuracies."""

    worst10: Floats
    """Raw and shrunken, shape (2, F)."""
    variance: Floats
    """Raw, corrected, and corrected without its floor, shape (3, F)."""


def recovery(
    fleet: tuple[float, float] | float, devices: int, tests: tuple[int, int], fleets: int, seed: int
) -> Recovery:
    """Return the errors of raw and corrected numbers over random fleets.

    Args:
        fleet: True accuracies, as in `FLEETS`.
        devices: Devices of each fleet.
        tests: Fewest and most test examples.
        fleets: Number of fleets, F.
        seed: Seed of the fleets and of their tests.
    """
    rng = np.random.default_rng(seed)
    worst10, variance = np.empty((2, fleets)), np.empty((3, fleets))
    for at in range(fleets):
        n: Ints = rng.integers(tests[0], tests[1] + 1, devices)
        theta = np.full(devices, fleet) if isinstance(fleet, float) else rng.beta(*fleet, devices)
        correct: Ints = rng.binomial(n, theta)
        noise = sampling_noise(n, correct, draws=FEW_DRAWS)
        assert noise is not None
        raw = correct / n
        estimates = (_worst10(raw), noise.worst10_shrunken)
        worst10[:, at] = np.array(estimates) - _worst10(theta)
        spreads = (raw.var(), noise.variance_corrected, raw.var() - noise.variance)
        variance[:, at] = np.array(spreads) - theta.var()
    return Recovery(worst10, variance)


def _worst10(values: Floats) -> float:
    return float(np.sort(values)[: tenth(values.size)].mean())


def rmse(errors: Floats) -> Floats:
    """Return the root mean squared error of each row."""
    roots: Floats = np.sqrt(np.square(errors).mean(axis=-1))
    return roots


def simulate(fleets: int, seed: int) -> Iterator[str]:
    """Yield a table: bias and root mean squared error before and after the corrections."""
    heads = ("true accuracies", "devices", "test examples", "worst 10 %: bias raw, shrunken")
    more = ("its RMSE", "variance x 10^4: bias raw, corrected", "its RMSE")
    yield f"| {' | '.join((*heads, *more))} |"
    yield f"|{'---|' * len((*heads, *more))}"
    for name, fleet in FLEETS.items():
        for devices in (10, 30, 100):
            for label, tests in TESTS.items():
                found = recovery(fleet, devices, tests, fleets, seed)
                bias, error = found.worst10.mean(axis=1), rmse(found.worst10)
                spread_bias, spread_error = found.variance.mean(axis=1), rmse(found.variance)
                yield (
                    f"| {name} | {devices} | {label} | {bias[0]:+.3f}, {bias[1]:+.3f} | "
                    f"{error[0]:.3f}, {error[1]:.3f} | {1e4 * spread_bias[0]:+.0f}, "
                    f"{1e4 * spread_bias[1]:+.0f} | {1e4 * spread_error[0]:.0f}, "
                    f"{1e4 * spread_error[1]:.0f} |"
                )


def last_evaluation(experiment: Experiment) -> RunSummary:
    """Replay an experiment with one evaluation, after its last round, and return its summary."""
    once = msgspec.structs.replace(experiment.evaluation, every=experiment.rounds)
    experiment = msgspec.structs.replace(experiment, evaluation=once)
    with tempfile.TemporaryDirectory() as folder:
        replay_experiment(experiment, Path(folder) / "run", "noise", lambda replayed: None)
        with RunReader(Path(folder) / "run") as reader:
            return summarise_run(reader)


def noises_of(summary: RunSummary) -> dict[str, SamplingNoise]:
    """Return the noise of the global model, on benign devices and of personal models."""
    found = {"global": summary.accuracy.noise}
    if summary.attackers is not None:
        found["benign"] = summary.attackers.noise
    if summary.personal is not None:
        found["personal"] = summary.personal.noise
    return {name: noise for name, noise in found.items() if noise is not None}


def experiments_of(path: Path, seeds: int, settings: Sequence[str]) -> list[Experiment]:
    """Return an experiment, or the one of the baseline of a grid, with its first seeds."""
    if path.parent.name == "grids":
        grid = load_grid(path, settings, seeds)
        return [cell.experiment for cell in grid.cells() if cell.arm.name == grid.baseline]
    experiment = load_experiment(path, settings)
    return [msgspec.structs.replace(experiment, seed=experiment.seed + at) for at in range(seeds)]


def shipped(paths: Sequence[Path], seeds: int, settings: Sequence[str]) -> Iterator[str]:
    """Yield a line for each model of each file: test examples, and mean shares of noise."""
    yield "| file | model | test examples: least, median, most | worst 10 %, best 10 %, variance |"
    yield "|---|---|---|---|"
    for path in paths:
        experiments = experiments_of(path, seeds, settings)
        if not all(x.trains_in_replay and x.evaluation.every for x in experiments):
            yield f"| `{path.name}` | | no evaluation | |"
            continue
        of_seeds = [noises_of(last_evaluation(experiment)) for experiment in experiments]
        if not of_seeds[0]:
            yield f"| `{path.name}` | | no accuracies | |"
        for name in of_seeds[0]:
            found = [noises[name] for noises in of_seeds]
            sizes = (
                min(noise.examples_min for noise in found),
                np.median([noise.examples_median for noise in found]),
                max(noise.examples_max for noise in found),
            )
            shares = ", ".join(
                _percent([x for noise in found if (x := noise.shares[key]) is not None])
                for key in found[0].shares
            )
            yield f"| `{path.name}` | {name} | {', '.join(f'{n:g}' for n in sizes)} | {shares} |"


def _percent(shares: Sequence[float]) -> str:
    return f"{100.0 * np.mean(shares):.0f} %" if shares else "unknown"


def main(arguments: list[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    simulation = commands.add_parser("simulate", help="errors before and after the corrections")
    simulation.add_argument("--fleets", type=int, default=2_000)
    files = commands.add_parser("shipped", help="shares of noise in experiments and grids")
    files.add_argument("paths", type=Path, nargs="+")
    files.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    files.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    lines = (
        simulate(options.fleets, 0)
        if options.command == "simulate"
        else shipped(options.paths, options.seeds, options.set)
    )
    for line in lines:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
