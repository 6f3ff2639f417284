"""The reference simulation of the experiment of the RBCS-F paper's figures (docs/selection.md).

It is our own simulation, written independently of the tested code, with T = 500 and five seeds:
the paper's figures give no numbers. Group rates are fast to slow; None is a cell without a number,
such as queues that grow without bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass

ROUNDS = 500
"""Rounds of the reference; it is comparable with runs of this length only."""
SEEDS = 5
"""Seeds of the reference; its own standard errors were not stored."""


@dataclass(frozen=True, slots=True)
class Printed:
    """A number as printed."""

    text: str

    @property
    def value(self) -> float:
        """The number."""
        return float(self.text)

    @property
    def half_unit(self) -> float:
        """Greatest rounding error of the printed number."""
        return 0.5 * 10.0 ** -len(self.text.partition(".")[2])


def printed(*texts: str) -> tuple[Printed | None, ...]:
    """Return numbers as printed; an empty text is no number."""
    return tuple(Printed(text) if text else None for text in texts)


METRICS = (
    "time, 10 % noise",
    "time, 100 % noise",
    "queues",
    "min rate",
    "rate, fast",
    "rate, medium",
    "rate, slow",
    "rate, slowest",
    "Jain",
)
"""Columns. Times are totals in s; queues, rates and Jain's index are of the runs with 10 % noise,
queues the mean of their sum over the last hundred rounds."""
TIMES = METRICS[:2]

REFERENCE: Mapping[str, tuple[Printed | None, ...]] = {
    "random": printed("3241", "4210", "53", "0.166", "0.204", "0.196", "0.202", "0.198", "0.992"),
    "RBCS-F(0)": printed(
        "3286", "4245", "12", "0.190", "0.212", "0.200", "0.195", "0.193", "0.998"
    ),
    "RBCS-F(5)": printed(
        "1678", "2677", "40", "0.144", "0.305", "0.192", "0.157", "0.147", "0.910"
    ),
    "RBCS-F(10)": printed(
        "1580", "2540", "74", "0.138", "0.328", "0.181", "0.149", "0.142", "0.875"
    ),
    "RBCS-F(20)": printed(
        "1520", "2411", "144", "0.126", "0.354", "0.169", "0.144", "0.133", "0.831"
    ),
    "RBCS-F(50)": printed(
        "1429", "2232", "346", "0.098", "0.404", "0.156", "0.133", "0.106", "0.735"
    ),
    "FedCS(3)": printed("", "", "", "", "", "", "", "", ""),
    "fastest known": printed("1022", "1420", "", "0", "0.692", "0.107", "0", "0", "0.325"),
    "known times(5)": printed("1605", "", "", "", "", "", "", "", ""),
    "known times(20)": printed("1443", "", "", "", "", "", "", "", ""),
    "known times(50)": printed("1353", "", "", "", "", "", "", "", ""),
}
"""By the label of the policy, in the order of METRICS."""
