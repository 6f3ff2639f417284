"""Text of a number: constant, with a series, a trace, a spread, or distributed over devices."""

import pytest

from fairbed.profiles import schedule_text
from fairbed.profiles.numbers import Number
from fairbed.profiles.population import Distributed
from fairbed.profiles.quantities import Quantity, Spread, Steps, Varying

STEPS: Steps[float] = Steps(t_s=(0.0, 5.0), values=(1e6, 2e6), period_s=8.0)
SPREAD: Spread[float] = Spread(quantiles=((0.0, 1.0), (1.0, 9.0)), step_s=60.0, correlation=0.5)


def varying(value: float = 2.0, **changes: object) -> Varying[float, float]:
    return Varying(value=value, tag="measured", source="made up", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (Quantity(value=4, tag="measured", source="made up"), ""),
        (varying(), ""),
        (varying(1e6, series=STEPS), "series of 2 steps over 8 s, 1e+06 to 2e+06"),
        (varying(trace="data:lte/a.csv"), "trace data:lte/a.csv"),
        (varying(spread=SPREAD), "drawn every 60 s from 1 to 9, correlation 0.5"),
        (Distributed(value=2.0, tag="measured", source="made up"), ""),
        (
            Distributed(quantiles=((0.0, 1.0), (1.0, 9.0)), tag="measured", source="made up"),
            "distributed from 1 to 9",
        ),
    ],
)
def test_the_text_of_a_schedule(number: Number, words: str) -> None:
    assert schedule_text(number) == words
