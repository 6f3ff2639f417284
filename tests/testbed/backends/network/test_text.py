"""What is told to `ip` and `tc`, word by word; the kernel's own word on it is in `test_network`."""

from ipaddress import IPv4Network

import pytest

from testbed.backends.network import htb, links
from testbed.backends.network.addresses import Addresses
from testbed.backends.network.change import Changes, Link, LinkState, add_change, check_shape
from testbed.backends.network.names import make_names
from testbed.backends.shape import Shape

NAMES = make_names("run", bytes.fromhex("0badcafe"))
ADDRESSES = Addresses(IPv4Network("10.1.2.0/28"))
LINK = Link(index=3, is_relayed=False)
RELAYED = Link(index=3, is_relayed=True)


def test_the_host_is_told_of_nothing_but_our_link() -> None:
    lines = links.host_lines(NAMES, ADDRESSES)
    assert lines == [
        "link set fb0badcafe addrgenmode none alias fairbed.run.0badcafe",
        "addr add 10.1.2.1/30 dev fb0badcafe",
        "link set fb0badcafe up arp off",
        "route add 10.1.2.0/28 via 10.1.2.2 dev fb0badcafe congctl cubic",
    ]


def test_the_hub_link_is_made_from_inside_the_hub() -> None:
    assert links.make_lines(NAMES, ["pi"], 42) == [
        "netns add fairbed.run.0badcafe.pi",
        "link add hub0 address 02:fb:00:00:00:00 arp off gso_max_segs 1 type veth peer "
        "name fb0badcafe netns 42 address 02:fb:00:00:00:00 arp off gso_max_segs 1",
    ]


def test_both_ends_of_a_wire_share_an_address_and_send_single_packets() -> None:
    assert links.wire_line(NAMES, 3, "pi") == (
        "link add d3 address 02:fb:00:00:00:07 arp off gso_max_segs 1 type veth peer "
        "name eth0 netns fairbed.run.0badcafe.pi address 02:fb:00:00:00:07 arp off gso_max_segs 1"
    )
    assert links.hub_side_lines(ADDRESSES, 3) == [
        "addr add 10.1.2.2 peer 10.1.2.7 dev d3",
        "link set d3 up",
    ]


def test_a_device_knows_the_way_to_the_host_and_no_other() -> None:
    lines = links.device_side_lines(ADDRESSES, 3)
    assert lines[-1] == "route add 10.1.2.1/32 dev eth0 src 10.1.2.7 congctl cubic"
    assert sum("route" in line for line in lines) == 1


def test_the_rate_on_the_wire_carries_the_payload_asked_for() -> None:
    assert htb.wire_bps(10e6, htb.FRAME_BYTES) == 10_455_801
    assert htb.wire_bps(10e6, htb.IP_BYTES) == 10_359_116
    assert htb.wire_bps(None, htb.FRAME_BYTES) == 100_000_000_000


@pytest.mark.parametrize(
    ("rate_bps", "burst", "queue"),
    [
        (100_000, 3200, 15_140),
        (1_000_000, 3200, 15_140),
        (100_000_000, 6250, 1_250_000),
        (500_000_000, 31_250, 6_250_000),
        (10_000_000_000, 625_000, 1 << 24),
    ],
)
def test_burst_and_queue_follow_the_rate_from_a_least_size(
    rate_bps: int, burst: int, queue: int
) -> None:
    assert htb.burst_bytes(rate_bps) == burst
    assert htb.queue_bytes(rate_bps) == queue


def test_a_new_device_gets_a_class_each_way_and_is_told_by_its_address() -> None:
    down, _ = LINK.lanes
    assert htb.device_lines(ADDRESSES, 3, (down, 1e6), None) == [
        "qdisc add dev d3 root handle 1: htb default 10",
        "class add dev d3 parent 1: classid 1:10 htb rate 1045580bit burst 3200 cburst 3200 "
        "quantum 1514",
        "qdisc replace dev d3 parent 1:10 handle 10: bfifo limit 15140",
        "class add dev hub0 parent 1: classid 1:13 htb rate 100000000000bit burst 6250000 "
        "cburst 6250000 quantum 1514",
        "qdisc replace dev hub0 parent 1:13 handle 13: bfifo limit 16777216",
        "filter add dev hub0 parent 1: protocol ip prio 1 u32 ht 2:7: "
        "match ip src 10.1.2.7/32 flowid 1:13",
    ]


def _change(before: LinkState, after: LinkState, link: Link = LINK) -> Changes:
    changes = Changes()
    add_change(changes, link, before, after)
    return changes


FAST, SLOW = Shape(down_bps=8e6, up_bps=4e6), Shape(down_bps=1e6, up_bps=4e6)


def test_what_stays_as_it_is_costs_no_line() -> None:
    assert _change(LinkState(FAST), LinkState(FAST)) == Changes()
    assert _change(LinkState(FAST), LinkState(FAST, "frozen")) == Changes()


def test_a_change_of_rate_keeps_the_class_and_fits_the_queue() -> None:
    changes = _change(LinkState(FAST), LinkState(SLOW))
    assert changes.ip == []
    assert changes.tc == [
        "class change dev d3 parent 1: classid 1:10 htb rate 1045580bit burst 3200 cburst 3200 "
        "quantum 1514",
        "qdisc replace dev d3 parent 1:10 handle 10: bfifo limit 15140",
    ]


def test_lost_coverage_swallows_both_ways_until_it_is_back() -> None:
    gone = _change(LinkState(FAST), LinkState(FAST, "coverage"))
    assert gone.tc == [
        "qdisc replace dev d3 parent 1:10 handle 8010: blackhole",
        "qdisc replace dev hub0 parent 1:13 handle 8013: blackhole",
    ]
    back = _change(LinkState(FAST, "coverage"), LinkState(FAST))
    assert [line.split()[-3:-1] for line in back.tc] == [["bfifo", "limit"]] * 2


def test_a_rate_that_changes_in_a_radio_hole_does_not_end_it() -> None:
    changes = _change(LinkState(FAST, "coverage"), LinkState(SLOW, "coverage"))
    assert [line.split()[0] for line in changes.tc] == ["class"]


def test_a_plug_is_pulled_and_put_back() -> None:
    assert _change(LinkState(FAST), LinkState(FAST, "unplugged")).ip == ["link set d3 down"]
    assert _change(LinkState(FAST, "unplugged"), LinkState(FAST)).ip == ["link set d3 up"]


def test_one_outage_may_follow_the_other() -> None:
    changes = _change(LinkState(FAST, "unplugged"), LinkState(FAST, "coverage"))
    assert changes.ip == ["link set d3 up"]
    assert all(line.endswith("blackhole") for line in changes.tc)


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        (Shape(down_bps=0.0), "down_bps must be >= 1000 bit/s or None, got 0; use an outage"),
        (Shape(up_bps=-1.0), "up_bps must be >= 1000"),
        (Shape(down_bps=float("nan")), "down_bps must be"),
        (Shape(down_bps=float("inf")), "down_bps must be"),
        (Shape(delay_s=-1e-3), "delay_s must be 0 to 60 s"),
        (Shape(jitter_s=float("nan")), "jitter_s must be 0 to 60 s"),
        (Shape(loss_ratio=1.5), "loss_ratio must be 0 to 1, got 1.5"),
    ],
)
def test_a_shape_that_no_link_can_have_is_refused(shape: Shape, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_shape(shape)
