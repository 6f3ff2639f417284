"""The commands that open a firewall for the links of a run."""

import json

import pytest

from fairbed.testbed.backends.network.firewall import advice_for

INPUT = {"type": "filter", "hook": "input", "prio": 0, "policy": "drop"}
RULE = "iifname '\"fb*\"' accept"


def chain(family: str, table: str, name: str, **hook: object) -> dict[str, object]:
    return {"chain": {"family": family, "table": table, "name": name, "handle": 1, **hook}}


@pytest.mark.parametrize(
    ("chains", "advice"),
    [
        ([], "sudo iptables -I INPUT -i fb+ -j ACCEPT"),
        ([chain("ip", "filter", "INPUT", **INPUT)], "sudo iptables -I INPUT -i fb+ -j ACCEPT"),
        (
            [chain("inet", "filter", "input", **INPUT), chain("inet", "filter", "from_lan")],
            f"sudo nft insert rule inet filter input {RULE}",
        ),
        (
            [
                chain("ip", "filter", "INPUT", **INPUT),
                chain("inet", "firewalld", "filter_INPUT", **INPUT),
                chain("inet", "firewalld", "filter_OUTPUT", **{**INPUT, "hook": "output"}),
                chain("inet", "firewalld", "nat_INPUT", **{**INPUT, "type": "nat"}),
                chain("ip6", "filter", "INPUT", **INPUT),
            ],
            "sudo iptables -I INPUT -i fb+ -j ACCEPT && "
            f"sudo nft insert rule inet firewalld filter_INPUT {RULE}",
        ),
    ],
)
def test_each_chain_that_may_drop_what_comes_in_gets_a_rule(
    chains: list[dict[str, object]], advice: str
) -> None:
    listed = {"nftables": [{"metainfo": {"version": "1.0.6"}}, *chains]}
    assert advice_for(json.dumps(listed).encode()) == advice
