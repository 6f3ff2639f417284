"""The exact lines for `ip` and `tc`; `test_network` runs them on the real kernel."""

from ipaddress import IPv4Network

import pytest

from fairbed.testbed.backends.network.plan import htb, links
from fairbed.testbed.backends.network.plan.change import (
    INITIAL_STATE,
    Changes,
    LinkCell,
    NetworkLink,
    add_change,
    check_shape,
    next_state,
    within_cell,
)
from fairbed.testbed.backends.network.plan.delay import Impairment
from fairbed.testbed.backends.network.plan.names import Addresses, make_names
from fairbed.testbed.backends.network.plan.relay_protocol import RelayedLinkState
from fairbed.testbed.emulation.cell import Cell
from fairbed.testbed.emulation.conditions import Conditions, Shape
from fairbed.testbed.emulation.queues import FRAME_BYTES
from tests.testbed.backends.network.conditions import linked

NAMES = make_names("run", bytes.fromhex("0badcafe"))
ADDRESSES = Addresses(IPv4Network("10.1.2.0/28"))
WIRE = NetworkLink(index=3)
RELAYED = NetworkLink(index=3, delayed_by="relay")
NETEM = NetworkLink(index=3, delayed_by="netem")


def test_the_lines_for_the_host_name_only_the_link_of_the_run() -> None:
    lines = links.host_lines(NAMES, ADDRESSES)
    assert lines == [
        "link set fb0badcafe addrgenmode none alias fairbed.run.0badcafe",
        "addr add 10.1.2.1/30 dev fb0badcafe",
        "link set fb0badcafe up arp off",
        "route add 10.1.2.0/28 via 10.1.2.2 dev fb0badcafe congctl cubic",
    ]


def test_the_link_of_a_host_without_ipv6_has_no_setting_of_it() -> None:
    lines = links.host_lines(NAMES, ADDRESSES, has_ipv6=False)
    assert lines[0] == "link set fb0badcafe alias fairbed.run.0badcafe"
    assert lines[1:] == links.host_lines(NAMES, ADDRESSES)[1:]


def test_the_hub_link_is_made_from_inside_the_hub() -> None:
    assert links.make_lines(NAMES, ["pi"], 42) == [
        "netns add fairbed.run.0badcafe.pi",
        "link add hub0 address 02:fb:00:00:00:00 arp off gso_max_segs 1 type veth peer "
        "name fb0badcafe netns 42 address 02:fb:00:00:00:00 arp off gso_max_segs 1",
    ]


def test_the_hub_has_its_address_and_a_class_per_device_to_come() -> None:
    assert links.hub_up_lines(ADDRESSES) == [
        "link set lo up",
        "addr add 10.1.2.2/30 dev hub0",
        "link set hub0 up",
    ]
    assert htb.hub_lines() == [
        "qdisc add dev hub0 root handle 1: htb default ffff",
        "class add dev hub0 parent 1: classid 1:ffff htb rate 1mbit quantum 1514",
        "filter add dev hub0 parent 1: protocol ip prio 1 handle 2: u32 divisor 256",
        "filter add dev hub0 parent 1: protocol ip prio 1 u32 ht 800:: match u32 0 0 "
        "hashkey mask 0x000000ff at 12 link 2:",
    ]


def test_both_ends_of_a_veth_pair_share_an_address_and_send_single_packets() -> None:
    assert links.wire_line(NAMES, 3, "pi") == (
        "link add d3 address 02:fb:00:00:00:07 arp off gso_max_segs 1 type veth peer "
        "name eth0 netns fairbed.run.0badcafe.pi address 02:fb:00:00:00:07 arp off gso_max_segs 1"
    )
    assert links.hub_side_lines(ADDRESSES, 3, is_relayed=False) == [
        "addr add 10.1.2.2 peer 10.1.2.7 dev d3",
        "link set d3 up",
    ]


def test_a_device_has_a_route_to_the_host_only() -> None:
    lines = links.device_side_lines(ADDRESSES, 3, is_relayed=False)
    assert lines[-1] == "route add 10.1.2.1/32 dev eth0 src 10.1.2.7 congctl cubic"
    assert sum("route" in line for line in lines) == 1


def test_each_side_has_its_own_congestion_control() -> None:
    up = links.device_side_lines(ADDRESSES, 3, is_relayed=False, congestion="bbr")[-1]
    down = links.host_lines(NAMES, ADDRESSES, "bbr")[-1]
    assert up.endswith("congctl bbr")
    assert down.endswith("congctl bbr")


def test_the_wire_rate_carries_the_configured_payload_rate() -> None:
    assert htb.wire_bps(10e6, FRAME_BYTES) == 10_455_801
    assert htb.wire_bps(10e6, htb.IP_BYTES) == 10_359_116
    assert htb.wire_bps(None, FRAME_BYTES) == 100_000_000_000


def test_a_relayed_link_queues_packets_that_its_relay_has_not_read() -> None:
    assert "link set d3 txqueuelen 5000" in links.hub_side_lines(ADDRESSES, 3, is_relayed=True)
    lines = links.device_side_lines(ADDRESSES, 3, is_relayed=True)
    assert "link set eth0 txqueuelen 5000" in lines


def test_a_new_device_gets_a_class_each_way_and_is_selected_by_its_address() -> None:
    assert htb.device_lines(ADDRESSES, 3, WIRE.lanes) == [
        "qdisc add dev d3 root handle 1: htb default 10",
        "class add dev d3 parent 1: classid 1:10 htb rate 100000000000bit burst 6250000 "
        "cburst 6250000 quantum 1514",
        "qdisc replace dev d3 parent 1:10 handle 10: bfifo limit 16777216",
        "class add dev hub0 parent 1: classid 1:13 htb rate 100000000000bit burst 6250000 "
        "cburst 6250000 quantum 1514",
        "qdisc replace dev hub0 parent 1:13 handle 13: bfifo limit 16777216",
        "filter add dev hub0 parent 1: protocol ip prio 1 u32 ht 2:7: "
        "match ip src 10.1.2.7/32 flowid 1:13",
    ]


def test_a_cell_is_a_class_above_those_of_its_devices_each_way() -> None:
    line = Cell(name="line", down_bps=12e6, up_bps=6e6)
    cell = Cell(name="ap", down_bps=20e6, up_bps=10e6, behind="line")
    assert links.cell_lines() == ["link add cells type ifb", "link set cells up"]
    lines = htb.cell_class_lines([line, cell])
    assert lines[4:6] == [
        "qdisc add dev hub0 handle ffff: ingress",
        "filter add dev hub0 parent ffff: protocol ip prio 1 handle 2: u32 divisor 256",
    ]
    assert lines[7:] == [
        "class add dev cells parent 1: classid 1:8000 htb rate 12546961bit burst 3200 "
        "ceil 12546961bit cburst 3200 quantum 1514",
        "class add dev hub0 parent 1: classid 1:8000 htb rate 6273481bit burst 3200 "
        "ceil 6273481bit cburst 3200 quantum 1514",
        "class add dev cells parent 1:8000 classid 1:8001 htb rate 8000bit burst 1600 "
        "ceil 20911602bit cburst 3200 quantum 1514",
        "class add dev hub0 parent 1:8000 classid 1:8001 htb rate 8000bit burst 1600 "
        "ceil 10455801bit cburst 3200 quantum 1514",
    ]
    lanes = NetworkLink(3, cell=LinkCell(1, 12e6, 6e6, priority=2)).lanes
    own = [line for line in htb.device_lines(ADDRESSES, 3, lanes) if "filter" in line]
    assert own == [
        "filter add dev cells parent 1: protocol ip prio 1 u32 ht 2:7: "
        "match ip dst 10.1.2.7/32 flowid 1:13",
        "filter add dev hub0 parent ffff: protocol ip prio 1 u32 ht 2:7: "
        "match ip dst 10.1.2.7/32 action mirred egress redirect dev cells",
        "filter add dev hub0 parent 1: protocol ip prio 1 u32 ht 2:7: "
        "match ip src 10.1.2.7/32 flowid 1:13",
    ]
    assert htb.rate_line(lanes[0], 10e6) == (
        "class change dev cells parent 1:8001 classid 1:13 htb prio 2 rate 8000bit burst 1600 "
        "ceil 10455801bit cburst 3200 quantum 1514"
    )


def test_a_link_is_at_most_as_fast_as_its_cell_so_that_its_queue_fits() -> None:
    cell = LinkCell(0, 12e6, 6e6)
    assert within_cell(Shape(), cell) == Shape(down_bps=12e6, up_bps=6e6)
    slow = Shape(down_bps=1e6, up_bps=50e6, delay_s=0.01)
    assert within_cell(slow, cell) == Shape(down_bps=1e6, up_bps=6e6, delay_s=0.01)
    assert within_cell(slow, None) == slow


def _change(before: Conditions, after: Conditions, link: NetworkLink = WIRE) -> Changes:
    changes = Changes()
    made = next_state(INITIAL_STATE, before)
    add_change(changes, "pi", link, made, next_state(made, after))
    return changes


FAST, SLOW = Shape(down_bps=8e6, up_bps=4e6), Shape(down_bps=1e6, up_bps=4e6)
FAR = Shape(down_bps=8e6, up_bps=4e6, delay_s=0.02, jitter_s=0.005, loss_ratio=0.01)
DOWN_AT, UP_AT = "qdisc replace dev d3 parent 1:10", "qdisc replace dev hub0 parent 1:13"


def test_an_unchanged_link_needs_no_line() -> None:
    assert _change(linked(FAST), linked(FAST)) == Changes()
    assert _change(linked(FAST), linked(FAST, "frozen")) == Changes()
    assert _change(linked(), linked(Shape())) == Changes()


def test_a_slower_link_keeps_its_class_and_its_queue() -> None:
    changes = _change(linked(FAST), linked(SLOW))
    assert changes.ip == []
    assert changes.tc == [
        "class change dev d3 parent 1: classid 1:10 htb rate 1045580bit burst 3200 cburst 3200 "
        "quantum 1514",
    ]


def test_a_queue_fits_the_fastest_rate_since_the_link_had_no_limit() -> None:
    queues, before = [], INITIAL_STATE
    for rate_bps in (4e6, 1e6, 16e6, 0.0, 2e6, None, 1e6):
        after = next_state(before, linked(Shape(down_bps=rate_bps, up_bps=1e6)))
        changes = Changes()
        add_change(changes, "pi", WIRE, before, after)
        queues += [line.split()[-1] for line in changes.tc if line.startswith(DOWN_AT)]
        before = after
    of_4, of_16, of_1 = "52279", "209116", "15140"
    assert queues == [of_4, of_16, "blackhole", of_16, "16777216", of_1]


def test_a_stated_queue_keeps_its_size_at_all_rates() -> None:
    queue = {"down_queue_bytes": 45_420, "up_queue_bytes": 30_280}
    slow, fast = (Shape(down_bps=rate, up_bps=4e6, **queue) for rate in (1e6, 16e6))
    lines = _change(linked(), linked(slow)).tc
    assert [line.split()[-1] for line in lines if "bfifo" in line] == ["45420", "30280"]
    assert [line.split()[0] for line in _change(linked(slow), linked(fast)).tc] == ["class"]


def test_a_relayed_link_counts_downlink_packets_without_a_frame() -> None:
    down, up = _change(linked(), linked(Shape(down_bps=1e6, up_bps=1e6)), RELAYED).tc[::2]
    assert "rate 1035912bit" in down  # 1500 / 1448
    assert "rate 1045580bit" in up  # 1514 / 1448


def test_a_coverage_outage_drops_packets_in_both_directions() -> None:
    gone = _change(linked(FAST), linked(FAST, "coverage"))
    assert gone.tc == [f"{DOWN_AT} handle 8010: blackhole", f"{UP_AT} handle 8013: blackhole"]
    back = _change(linked(FAST, "coverage"), linked(FAST))
    assert [line.split()[0] for line in back.tc] == ["class", "qdisc"] * 2
    assert back.tc[1].startswith(f"{DOWN_AT} handle 10: bfifo limit")


@pytest.mark.parametrize("rate_bps", [0.0, 7999.0])
def test_a_rate_below_one_packet_in_a_second_and_a_half_is_an_outage_in_that_direction(
    rate_bps: float,
) -> None:
    outage = Shape(down_bps=8e6, up_bps=rate_bps)
    assert _change(linked(FAST), linked(outage)).tc == [f"{UP_AT} handle 8013: blackhole"]
    assert len(_change(linked(outage), linked(FAST)).tc) == 2


def test_a_rate_that_changes_in_an_outage_holds_after_it() -> None:
    assert _change(linked(FAST, "coverage"), linked(SLOW, "coverage")) == Changes()
    back = _change(linked(SLOW, "coverage"), linked(SLOW)).tc
    assert "rate 1045580bit" in back[0]


def test_a_link_is_unplugged_and_plugged_in_again() -> None:
    assert _change(linked(FAST), linked(FAST, "unplugged")).ip == ["link set d3 down"]
    assert _change(linked(FAST, "unplugged"), linked(FAST)).ip == ["link set d3 up"]


def test_one_kind_of_outage_may_follow_another() -> None:
    changes = _change(linked(FAST, "unplugged"), linked(FAST, "coverage"))
    assert changes.ip == ["link set d3 up"]
    assert all(line.endswith("blackhole") for line in changes.tc)


def test_a_relay_gets_impairment_and_plug_but_no_rates() -> None:
    impairment = Impairment(delay_s=0.02, jitter_s=0.005, loss_ratio=0.01)
    assert _change(linked(FAST), linked(FAR), RELAYED) == Changes(
        impairment={"pi": RelayedLinkState(impairment=impairment)}
    )
    unplugged = _change(linked(FAR), linked(FAR, "unplugged"), RELAYED)
    assert unplugged == Changes(
        impairment={"pi": RelayedLinkState(impairment=impairment, is_plugged=False)}
    )
    assert _change(linked(FAST), linked(SLOW), RELAYED).impairment == {}


def test_netem_has_a_limit_for_packets_in_flight_and_keeps_their_order() -> None:
    down, up = _change(linked(FAST), linked(FAR), NETEM).tc
    rest = "delay 20000us 5000us distribution normal rate 100000000000bit loss 1.0000%"
    # 40 ms in flight and 100 ms in the queue at 8.36 Mbit/s are 97 frames
    assert down == f"{DOWN_AT} handle 4010: netem limit 97 {rest}"
    assert up == f"{UP_AT} handle 4013: netem limit 49 {rest}"


def test_netem_changes_with_the_rate_and_is_removed_with_the_delay() -> None:
    slower = Shape(down_bps=8e5, up_bps=4e6, delay_s=0.06)
    down = _change(linked(FAR), linked(slower), NETEM).tc[1]
    # 60 ms in flight and 100 ms in the queue, at 8.36 Mbit/s still
    assert down == f"{DOWN_AT} handle 4010: netem limit 111 delay 60000us"
    cleared = _change(linked(FAR), linked(FAST), NETEM).tc
    assert [line.split()[8] for line in cleared] == ["bfifo", "bfifo"]
    assert [line.split()[0] for line in cleared] == ["qdisc", "qdisc"]


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        (Shape(up_bps=-1.0), r"^up_bps must be >= 0 bit/s or None, got -1; fix the profile$"),
        (Shape(down_bps=float("nan")), "^down_bps must be"),
        (Shape(down_bps=float("inf")), "^down_bps must be"),
        (Shape(delay_s=-1e-3), "^delay_s must be 0 to 60 s"),
        (Shape(jitter_s=float("nan")), "^jitter_s must be 0 to 60 s"),
        (Shape(loss_ratio=1.5), "^loss_ratio must be 0 to 1, got 1.5"),
    ],
)
def test_a_shape_that_no_link_can_have_is_refused(shape: Shape, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_shape(RELAYED, shape)


def test_a_link_without_fq_codel_cannot_get_one_later() -> None:
    shape = Shape(down_bps=1e6, codel_target_s=0.005)
    check_shape(NetworkLink(3, has_codel=True), shape)
    with pytest.raises(ValueError, match="must be drop-tail on a link that was opened with such"):
        check_shape(WIRE, shape)


def test_a_link_without_delay_cannot_get_one_later() -> None:
    check_shape(RELAYED, FAR)
    check_shape(NETEM, FAR)
    with pytest.raises(ValueError, match="name the device in `delayed`"):
        check_shape(WIRE, FAR)
