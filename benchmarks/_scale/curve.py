"""Costs over the size of something, as a table with fitted exponents. Pure."""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct


class Row(Struct, frozen=True, kw_only=True):
    """One cost, at each size."""

    text: str
    """With its unit."""
    values: list[float]
    has_exponent: bool = True


class Curve(Struct, frozen=True, kw_only=True):
    """Costs over a size."""

    title: str
    """What the sizes are, with their unit."""
    sizes: list[float]
    rows: list[Row]

    def table(self) -> str:
        """Return the costs as a table in Markdown; e is the exponent of cost ~ size^e."""
        lines = [
            f"| {self.title} | " + " | ".join(map(_number, self.sizes)) + " | e |",
            "|---|" + "---:|" * (len(self.sizes) + 1),
        ]
        for row in self.rows:
            cells = " | ".join(map(_number, row.values))
            e = f"{exponent(self.sizes, row.values):.2f}" if row.has_exponent else ""
            lines.append(f"| {row.text} | {cells} | {e} |")
        return "\n".join(lines)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return e of value ~ size^e, by least squares over the logarithms; NaN for one size."""
    if len(sizes) < 2:
        return math.nan
    least = [max(value, 1e-9) for value in values]
    return float(np.polyfit(np.log(sizes), np.log(least), 1)[0])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.3g}"
