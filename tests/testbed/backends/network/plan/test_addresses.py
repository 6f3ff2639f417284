"""The choice of an unused block of private addresses."""

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.backends.network.plan.names import MAX_DEVICES, POOLS, choose_addresses

ranges = st.builds(
    lambda address, length: IPv4Network((address, length), strict=False),
    st.integers(0, 2**32 - 1),
    st.integers(8, 32),
)


@given(
    n=st.integers(0, MAX_DEVICES),
    taken=st.lists(ranges, max_size=8),
    start=st.integers(0, 2**32 - 1),
)
def test_the_block_is_private_free_and_large_enough(
    n: int, taken: list[IPv4Network], start: int
) -> None:
    found = choose_addresses(n, taken, start)
    if found is None:  # only eight large ranges can fill all pools
        assert all(any(pool.overlaps(net) for net in taken) for pool in POOLS)
        return
    assert any(found.block.subnet_of(pool) for pool in POOLS)
    assert not any(found.block.overlaps(net) for net in taken)
    own = [found.host, found.hub, *(found.device(index) for index in range(n))]
    assert len(set(own)) == n + 2
    assert all(address in found.block for address in own)


def test_host_and_hub_share_the_first_four_addresses() -> None:
    found = choose_addresses(3, [], 5)
    assert found is not None
    first = next(found.block.subnets(new_prefix=30))
    assert found.host in first
    assert found.hub in first
    assert found.device(0) not in first


def test_another_start_is_another_block() -> None:
    assert choose_addresses(9, [], 1) != choose_addresses(9, [], 2)


@pytest.mark.parametrize("gone", range(1, 4))
def test_a_pool_that_a_route_covers_is_rejected(gone: int) -> None:
    found = choose_addresses(100, POOLS[:gone], 77)
    if gone == 3:
        assert found is None
    else:
        assert found is not None
        assert found.block.subnet_of(POOLS[gone])


def test_the_last_free_block_of_a_pool_is_found() -> None:
    pool = POOLS[2]
    free = IPv4Network("192.168.77.128/25")
    taken = [*POOLS[:2], *pool.address_exclude(free)]
    found = choose_addresses(100, taken, 12345)
    assert found is not None
    assert found.block == free


def test_a_pool_without_a_free_block_is_left_for_the_next_one() -> None:
    taken = [POOLS[0], *POOLS[1].subnets()]
    found = choose_addresses(MAX_DEVICES, taken, 5)
    assert found is not None
    assert found.block.subnet_of(POOLS[2])
