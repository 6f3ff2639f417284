"""Lines for tc: the options of netem for each impairment."""

import pytest

from fairbed.testbed.backends.network.plan.delay import Impairment
from fairbed.testbed.backends.network.plan.htb import down_lane, leaf_line


@pytest.mark.parametrize(
    ("impairment", "options"),
    [
        (Impairment(loss_ratio=0.01), "loss 1.0000%"),
        (Impairment(delay_s=0.02), "delay 20000us"),
        (
            Impairment(delay_s=0.02, jitter_s=0.004),
            "delay 20000us 4000us distribution normal rate 100000000000bit",
        ),
    ],
)
def test_netem_has_the_options_of_the_impairment(impairment: Impairment, options: str) -> None:
    line = leaf_line(down_lane(0), 1e6, impairment)
    assert line.split(" limit ")[1].split(" ", 1)[1] == options
