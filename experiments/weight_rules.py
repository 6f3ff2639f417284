"""Draw what each rule of weights makes of the same losses: the figure of docs/aggregation.md.

python -m experiments.weight_rules docs/images
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Updates
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.factories import make_rule
from fairbed.coordinator.report.figure_style import drawing, series_style

LOSSES = np.linspace(0.25, 2.5, 10)
"""F_k of ten devices with equal numbers of examples, nats; below M = 3 of corefed and propfair."""

ROUNDS = 20
"""Rounds with these losses, for rules with state."""

RULES: Mapping[str, AggregationConfig] = {
    "fedavg": AggregationConfig(rule="fedavg"),
    "q-fedavg, q = 1": AggregationConfig(rule="q-fedavg", q=1.0),
    "term, t = 1": AggregationConfig(rule="term", tilt=1.0),
    "propfair, corefed, M = 3": AggregationConfig(rule="corefed", M=3.0),
    f"afl, round {ROUNDS}": AggregationConfig(rule="afl", gamma=0.003),
    f"aaggff-s, round {ROUNDS}": AggregationConfig(rule="aaggff-s"),
    f"aaggff-d, round {ROUNDS}": AggregationConfig(rule="aaggff-d"),
}


def weights() -> dict[str, Floats]:
    """Return the shares a_k / sum a after `ROUNDS` rounds with `LOSSES`, each of shape (K,)."""
    k = len(LOSSES)
    updates = Updates(
        rows=np.arange(k),
        n_k=np.full(k, 100),
        steps=np.ones(k, dtype=np.int64),
        shares=np.ones(k),
        losses=LOSSES,
        squared_norms=np.full(k, 0.01),
        learning_rate=0.1,
        registered=k,
    )
    shares = {}
    for name, config in RULES.items():
        rule = make_rule(config, per_round=k)
        for _ in range(ROUNDS):
            a = rule.decide(updates)
        shares[name] = a / a.sum()
    return shares


def main(arguments: list[str] | None = None) -> int:
    """Write `weight-rules.svg` and `.png` into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(arguments).folder
    with drawing(folder / "weight-rules") as figure:
        axes = figure.subplots()
        for at, (name, shares) in enumerate(weights().items()):
            style = series_style(at)
            axes.plot(
                LOSSES,
                100 * shares,
                color=style.colour,
                marker=style.marker,
                linestyle=style.dash,
                label=name,
            )
        axes.set_xlabel("loss of the received model on the device, nats")
        axes.set_ylabel("share of the weights, %")
        axes.set_ylim(bottom=0)
        axes.legend()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
