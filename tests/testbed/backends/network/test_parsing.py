"""Parsing of the output of `ip` and `tc`."""

from ipaddress import IPv4Network

from fairbed.testbed.backends.network.counters import LinkCounters, parse_counters
from fairbed.testbed.backends.network.network import parse_ranges
from fairbed.testbed.backends.network.plan.change import LinkCell, NetworkLink

ADDRESSES = b"""[{"ifname":"lo","addr_info":[{"local":"127.0.0.1","prefixlen":8}]},
{"ifname":"eth0","addr_info":[{"local":"192.0.2.2","prefixlen":24}]},{},{"ifname":"ifb0"}]"""
ROUTES = b"""[{"dst":"default","gateway":"192.0.2.1"},{"dst":"10.8.0.0/16","dev":"tun0"},
{"type":"local","dst":"192.0.2.2","dev":"eth0"},{"type":"throw","dst":"strange"}]"""

QDISCS = b"""[{"kind":"noqueue","handle":"0:","dev":"lo","root":true,"bytes":9},
{"kind":"htb","handle":"1:","dev":"d0","root":true,"bytes":700,"packets":7,"drops":2},
{"kind":"bfifo","handle":"10:","dev":"d0","parent":"1:10","bytes":700,"drops":2}]"""
CLASSES = """class htb 1:ffff root leaf fffe: prio 0 rate 1Mbit ceil 1Mbit burst 1600b cburst 1600b
 Sent 5 bytes 1 pkt (dropped 1, overlimits 0 requeues 0)
class htb 1:10 root leaf 10: prio 0 rate 10455Kbit ceil 10455Kbit burst 3200b cburst 3200b
 Sent 300 bytes 3 pkt (dropped 4, overlimits 0 requeues 0)
 backlog 0b 0p requeues 0
"""


def test_ranges_are_addresses_and_routes_but_not_the_default() -> None:
    assert parse_ranges(ADDRESSES, ROUTES) == [
        IPv4Network(text) for text in ("127.0.0.0/8", "192.0.2.0/24", "10.8.0.0/16", "192.0.2.2/32")
    ]


def test_a_bare_namespace_has_no_ranges() -> None:
    assert parse_ranges(b"", b"") == []


def test_counters_are_of_the_root_down_and_of_the_class_up() -> None:
    lanes = NetworkLink(0).lanes
    assert parse_counters(QDISCS, {"hub0": CLASSES}, {"pi": lanes}) == {
        "pi": LinkCounters(down_bytes=700, up_bytes=300, dropped_packets=6)
    }


def test_counters_of_a_device_in_a_cell_are_of_its_class_in_both_directions() -> None:
    lanes = NetworkLink(0, cell=LinkCell(0, 1e6, 1e6)).lanes
    towards = CLASSES.replace("Sent 300", "Sent 500")
    assert parse_counters(b"[]", {"hub0": CLASSES, "cells": towards}, {"pi": lanes}) == {
        "pi": LinkCounters(down_bytes=500, up_bytes=300, dropped_packets=8)
    }
