"""Links in a cell have their shares while data is on them, and the whole cell when alone."""

from math import inf

import pytest

from fairbed.profiles import CellShare
from fairbed.testbed.emulation.cell import Cell, Sharer
from fairbed.testbed.emulation.link import LinkDirection
from fairbed.testbed.emulation.shared_link import SharedLinks

MBIT = 1e6


class Senders:
    """Devices that always have data, from an instant on, up to a number of bytes."""

    def __init__(self, own_bps: list[float], share: CellShare = "equal") -> None:
        cells = {"ap": Cell(name="ap", down_bps=8 * MBIT, up_bps=8 * MBIT, share=share)}
        self.shared = SharedLinks(cells, "up")
        self.links = [LinkDirection(bps, 0.0) for bps in own_bps]
        for at, (link, bps) in enumerate(zip(self.links, own_bps, strict=True)):
            self.shared.add(str(at), link, Sharer("ap", bps, at))

    def run(self, starts: list[float], sizes: list[int], until: float) -> list[float]:
        """Send pieces of 1,500 bytes whenever a link is not full; return the last arrivals."""
        left, arrived = list(sizes), [0.0] * len(sizes)
        step, now, pieces = 1e-3, 0.0, [[] for _ in sizes]  # type: ignore[var-annotated]  # pieces
        while now < until:
            if self.shared.next_at <= now:
                self.shared.update(now)
            for at, link in enumerate(self.links):
                while left[at] > 0 and now >= starts[at] and not link.is_full(now):
                    pieces[at].append(link.send(now, min(1500, left[at])))
                    left[at] -= 1500
                    self.shared.on_sent(str(at), now)
            now += step
        for at, sent in enumerate(pieces):
            arrived[at] = sent[-1].due
        return arrived


def test_equal_links_have_equal_shares_while_both_send() -> None:
    senders = Senders([50 * MBIT, 50 * MBIT])
    first, second = senders.run([0.0, 1.0], [2_000_000, 1_000_000], 4.0)
    assert (first, second) == pytest.approx((3.0, 3.0), abs=0.02)
    lost = [senders.shared.lost_s(name) for name in "01"]
    assert lost == pytest.approx([1.0, 1.0], abs=0.02)


def test_a_link_is_never_faster_than_its_own_rate() -> None:
    slow, fast = Senders([2 * MBIT, inf]).run([0.0, 0.0], [250_000, 750_000], 2.0)
    assert (slow, fast) == pytest.approx((1.0, 1.0), abs=0.02)


def test_the_first_priority_takes_the_cell() -> None:
    senders = Senders([50 * MBIT, 50 * MBIT], "priority")
    assert senders.run([0.0, 0.0], [1_000_000] * 2, 3.0) == pytest.approx([1.0, 2.0], abs=0.02)
    assert senders.shared.lost_s("0") == pytest.approx(0.0, abs=1e-3)


def test_links_share_time_at_their_own_rates() -> None:
    senders = Senders([2 * MBIT, 8 * MBIT], "proportional-fair")
    ends = senders.run([0.0, 0.0], [250_000, 1_000_000], 3.0)
    assert ends == pytest.approx([2.0, 2.0], abs=0.02)


def test_an_outage_of_one_link_gives_its_share_to_the_other() -> None:
    senders = Senders([50 * MBIT, 50 * MBIT])
    first, second = senders.links
    assert senders.shared.change("1", 0.0, 0.0, 0.0, 0.0) == {"1"}
    assert senders.run([0.0, 0.0], [1_000_000, 15_000], 1.5)[0] == pytest.approx(1.0, abs=0.02)
    assert second.free_at == inf
    assert first.free_at < inf
