"""Lines for tc: the options of netem for each impairment, and the queue of a lane."""

import pytest
from msgspec import structs

from fairbed.testbed.backends.network.plan.delay import Impairment
from fairbed.testbed.backends.network.plan.htb import IP_BYTES, Leaf, down_lane, leaf_lines


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
    (line,) = leaf_lines(down_lane(0), Leaf(fastest_bps=1e6), impairment)
    assert line.split(" limit ")[1].split(" ", 1)[1] == options


CODEL = Leaf(queue_bytes=30_280, fastest_bps=1e6, codel_target_s=0.005)


def test_a_drop_tail_queue_counts_the_bytes_of_its_lane() -> None:
    leaf = Leaf(queue_bytes=30_280, fastest_bps=1e6)
    assert leaf_lines(down_lane(0), leaf)[0].endswith("bfifo limit 30280")
    assert leaf_lines(down_lane(0, IP_BYTES), leaf)[0].endswith("bfifo limit 30000")


def test_fq_codel_has_its_target_and_an_interval_of_twenty_targets() -> None:
    assert leaf_lines(down_lane(0), CODEL) == [
        "qdisc replace dev d0 parent 1:10 handle b010: fq_codel limit 20 target 5000us "
        "interval 100000us noecn"
    ]
    dilated = structs.replace(CODEL, codel_target_s=0.02)
    assert "target 20000us interval 400000us" in leaf_lines(down_lane(0), dilated)[0]


def test_fq_codel_queues_the_packets_that_netem_has_delayed() -> None:
    lines = leaf_lines(down_lane(0), CODEL, Impairment(delay_s=0.02))
    assert lines == [
        "qdisc replace dev d0 parent 1:10 handle 4010: netem limit 22 delay 20000us",
        "qdisc replace dev d0 parent 4010:1 handle b010: fq_codel limit 20 target 5000us "
        "interval 100000us noecn",
    ]
