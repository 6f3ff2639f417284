"""Draw how far malicious updates move the pseudo-gradient: the figure of docs/robustness.md.

python -m experiments.defences docs/images
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Report
from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.factories import make_aggregator
from fairbed.coordinator.report.figure_style import GREY, drawing, series_style

DEVICES = 10
VALUES = 1000
"""Values of an update. A benign one is a common part and noise, both of length 1."""

SIZES = np.geomspace(0.1, 100.0, 13)
"""Length of a malicious update, which is in the opposite direction of the common part."""
MALICIOUS = 2
"""Malicious devices where the size varies."""
SIZE = 10.0
"""Size where the number of malicious devices varies."""
SHARE = 0.2
"""`aggregation.malicious_share`."""

DEFENCES: Mapping[str, AggregationConfig] = {
    "none": AggregationConfig(),
    "clip": AggregationConfig(defence="clip"),
    "k-norm": AggregationConfig(defence="k-norm", malicious_share=SHARE),
    "krum": AggregationConfig(defence="krum", malicious_share=SHARE),
    "multi-krum": AggregationConfig(defence="multi-krum", malicious_share=SHARE),
    "median": AggregationConfig(pseudo_gradient="median"),
    "trimmed-mean": AggregationConfig(pseudo_gradient="trimmed-mean", malicious_share=SHARE),
    "geometric-median": AggregationConfig(pseudo_gradient="geometric-median"),
}


def distance(config: AggregationConfig, malicious: int, size: float) -> float:
    """Return |d - common part|: 0 is perfect, 1 is as good as no training."""
    rng = np.random.default_rng(0)
    scale = 1.0 / np.sqrt(VALUES)
    common = rng.standard_normal(VALUES)
    common /= np.sqrt(np.square(common).sum())
    models = (common + scale * rng.standard_normal((DEVICES, VALUES))).astype(np.float32)
    models[:malicious] = -size * common
    sent: Vector = np.zeros(VALUES, dtype=np.float32)
    merge = make_aggregator(config, per_round=DEVICES).begin(sent, VALUES, 0.1, _Stored, DEVICES)
    for row, model in enumerate(models):
        merge.add(Report(row=row, n_k=1, model=model, loss_before=None))
    difference = merge.finish().vector - common
    return float(np.sqrt(np.square(difference).sum()))


class _Stored(list[Vector]):
    """Models in memory."""

    def all(self) -> Sequence[Vector]:
        """Return the models."""
        return self


def main(arguments: list[str] | None = None) -> int:
    """Write `defences.svg` and `.png` into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(arguments).folder
    numbers = range(DEVICES)
    with drawing(folder / "defences") as figure:
        by_size, by_number = figure.subplots(1, 2, sharey=True)
        for at, (name, config) in enumerate(DEFENCES.items()):
            style = series_style(at)
            colour = GREY if name == "none" else style.colour
            for axes, x, found in (
                (by_size, SIZES, [distance(config, MALICIOUS, size) for size in SIZES]),
                (by_number, numbers, [distance(config, number, SIZE) for number in numbers]),
            ):
                axes.plot(
                    x,
                    found,
                    color=colour,
                    marker=style.marker,
                    linestyle=style.dash,
                    label=name,
                )
        by_size.set_xscale("log")
        by_size.set_yscale("log")
        by_size.set_xlabel(f"size of {MALICIOUS} malicious updates of {DEVICES}")
        by_number.set_xlabel(f"malicious updates of size {SIZE:g}, of {DEVICES}")
        by_size.set_ylabel("distance from the benign part")
        handles, labels = by_size.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
