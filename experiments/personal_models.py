"""Draw personal accuracy over lambda of Ditto: the figure of docs/personalisation.md.

fairbed compare examples/grids/ditto.toml --out FOLDER
python -m experiments.personal_models FOLDER docs/images
"""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from fairbed.coordinator.report.figure_style import GREY, drawing, series_style

METRICS = {"mean": "accuracy_mean", "worst tenth": "accuracy_worst10"}
"""Of a personal model with `personal_` before its key."""

LAMBDA = "ditto_lambda-"
"""Begins the name of an arm with a fixed lambda."""


def values_of(report: dict[str, Any], key: str) -> dict[str, tuple[float, float, float]]:
    """Return mean, low and high of a metric, by the name of the arm."""
    return {
        arm["name"]: tuple(arm["values"][key][part] for part in ("mean", "low", "high"))
        for arm in report["arms"]
    }


def main(arguments: list[str] | None = None) -> int:
    """Write `personal-models.svg` and `.png` into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("compared", type=Path, help="folder of the grid")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    report = msgspec.json.decode((options.compared / "compare.json").read_bytes())
    with drawing(options.folder / "personal-models") as figure:
        both = figure.subplots(1, 2)
        for axes, (title, key) in zip(both, METRICS.items(), strict=True):
            found = values_of(report, f"personal_{key}")
            fixed = sorted(
                (float(name.removeprefix(LAMBDA)), *values)
                for name, values in found.items()
                if name.startswith(LAMBDA)
            )
            lambdas, means, lows, highs = zip(*fixed, strict=True)
            style = series_style(0)
            axes.plot(lambdas, means, color=style.colour, marker=style.marker, label="Ditto")
            axes.fill_between(lambdas, lows, highs, color=style.colour, alpha=0.18, linewidth=0)
            lines = {
                "global model": values_of(report, key)["local-only"],
                "local-only": found["local-only"],
                "chosen in each round": found["chosen_lambda_choice-local"],
                "chosen in each step": found["chosen_lambda_choice-dynamic"],
            }
            for at, (name, (mean, _, _)) in enumerate(lines.items()):
                style = series_style(at)
                colour = GREY if at == 0 else style.colour
                axes.axhline(mean, color=colour, linestyle=style.dash, label=name)
            axes.set_xscale("log")
            axes.set_xlabel("lambda")
            axes.set_title(f"accuracy, {title} of devices")
        handles, labels = both[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
