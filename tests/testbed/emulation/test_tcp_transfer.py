"""The packets of a transfer: the statements of the sender hold, and spurious time-outs are undone.

Source of the sweeps: `benchmarks/_tcp_sweep.py`.
"""

import math
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._tcp_sweep import DRIVES, KINDS, drives, folder, stepped, sweep
from fairbed.testbed.emulation.tcp import FIRST_WINDOW, PathState, TcpPath, TcpSender
from fairbed.testbed.emulation.tcp_transfer import (
    BrokenInvariantError,
    _CheckedTransfer,
    _Line,
    transfer_end,
)

PACKET_BITS = 8.0 * 1448
DELAY_S = 0.03

DATA = folder(os.environ)
HAS_DRIVES = bool(drives(DATA))


def cliff(*steps: tuple[float, float], loss: float = 0.0, queue_bytes: float = 4e6) -> TcpPath:
    """Return a path whose rate, bit/s, holds until an instant of the same pair, seconds."""
    states = [PathState(rate_bps, DELAY_S, 0.0, loss, until) for rate_bps, until in steps]
    return stepped(states, queue_bytes)


def checked(path: TcpPath, packets: float, seed: int, sender: TcpSender | None = None) -> float:
    bits = packets * PACKET_BITS
    return transfer_end(path, 0.0, bits, random.Random(seed), sender, give_up_s=600.0, checks=True)


def test_retransmissions_of_delivered_packets_do_not_fill_the_window() -> None:
    """The rate falls from 100 to 0.1 Mbit/s with a window in the queue.

    Originals arrive after the time-out. When they were counted by sending, their retransmissions in
    the queue filled the window, and the timer read the time of a packet that was never sent.
    """
    path, sender = cliff((1e8, 0.5), (1e5, math.inf), loss=0.005), TcpSender()
    end = checked(path, 200, 5, sender)
    assert 200 * PACKET_BITS / 1e8 < end < 200 * PACKET_BITS / 1e5
    assert sender.timeouts > 0


def test_a_time_out_without_a_loss_is_undone() -> None:
    """The rate falls from 8 to 0.01 Mbit/s: a packet takes 1.2 s, more than the time-out of 0.3 s.

    The acknowledgement after the time-out echoes the first sending. So few packets of the 89 in the
    queue are sent twice, and the window is that of before.
    """
    path, sender = cliff((8e6, 0.2), (1e4, 30.0), (8e6, math.inf)), TcpSender()
    transfer = _CheckedTransfer(_Line(path, random.Random(1), 0.0), 0.0, 100 * PACKET_BITS, sender)
    assert transfer.run(600.0) < 30.0 + 0.2
    assert sender.timeouts >= 1
    assert 1 <= transfer.serial - transfer.n <= 5
    assert sender.cwnd > 2 * FIRST_WINDOW
    assert sender.ssthresh == math.inf


def test_a_time_out_with_a_loss_is_not_undone() -> None:
    """A hole drops a window and all its retransmissions."""
    path, sender = cliff((8e6, 0.5), (0.0, 8.0), (8e6, math.inf)), TcpSender()
    checked(path, 2000, 1, sender)
    assert sender.timeouts >= 3
    assert sender.ssthresh < math.inf


rates = st.one_of(st.just(0.0), st.floats(3e4, 1e8))


@given(
    steps=st.lists(st.tuples(rates, st.floats(0.01, 20.0)), min_size=1, max_size=8),
    loss=st.sampled_from([0.0, 0.001, 0.02, 0.1, 0.3]),
    queue_s=st.floats(0.01, 60.0),
    sizes=st.lists(st.floats(0.1, 600.0), min_size=1, max_size=5),
    jitter_s=st.sampled_from([0.0, 0.01]),
    is_lossy_first=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_statements_hold_on_any_path(
    steps: Sequence[tuple[float, float]],
    loss: float,
    queue_s: float,
    sizes: Sequence[float],
    jitter_s: float,
    is_lossy_first: bool,
    seed: int,
) -> None:
    states, t = [], 0.0
    for rate_bps, lasting_s in steps:
        t += lasting_s
        states.append(PathState(rate_bps, DELAY_S, jitter_s, loss, t))
    states.append(PathState(1e6, DELAY_S, jitter_s, loss, math.inf))
    fastest = max(state.rate_bps for state in states)
    path = stepped(states, queue_s * fastest / 8.0, is_lossy_first=is_lossy_first)
    sender, rng, t = TcpSender(), random.Random(seed), 0.0
    for packets in sizes:
        end = transfer_end(
            path, t, packets * PACKET_BITS, rng, sender, give_up_s=300.0, checks=True
        )
        assert end >= t + packets * PACKET_BITS / fastest
        t = end if end < math.inf else t + 300.0


def test_a_checked_transfer_has_the_times_of_an_unchecked_one() -> None:
    path = cliff((1e8, 0.5), (1e5, 4.0), (0.0, 6.0), (1e6, math.inf), loss=0.05)
    for seed in range(20):
        ends = {
            transfer_end(path, 0.0, 2e6, random.Random(seed), checks=checks)
            for checks in (False, True)
        }
        assert len(ends) == 1


class _PipeBySending(_CheckedTransfer):
    """Counts a retransmission until its own news, as the model did before."""

    def _end_recovery(self) -> None:
        super()._end_recovery()
        self.pipe += sum(sent.packet < self.una for sent in self.out)


class _ForgottenLoss(_CheckedTransfer):
    """Forgets a packet that counts as lost."""

    def _count_losses(self) -> int:
        n_lost = super()._count_losses()
        if n_lost:
            self.lost.pop()
        return n_lost


class _LateTimer(_CheckedTransfer):
    """Lets the end of a recovery be after the last packet that was sent."""

    def _on_timeout(self) -> None:
        super()._on_timeout()
        self.high = self.next + 1


@pytest.mark.parametrize(
    ("kind", "statement"),
    [(_PipeBySending, "pipe"), (_ForgottenLoss, "scoreboard"), (_LateTimer, "recovery")],
)
def test_a_broken_statement_is_an_error(kind: type[_CheckedTransfer], statement: str) -> None:
    path = cliff((1e8, 0.5), (1e5, math.inf), loss=0.02)
    line = _Line(path, random.Random(18), 0.0)
    with pytest.raises(BrokenInvariantError, match=f"^{statement}: .* una \\d+, next \\d+ of 200"):
        kind(line, 0.0, 200 * PACKET_BITS, TcpSender()).run(600.0)


@pytest.mark.parametrize("transfers", [400, pytest.param(6_000, marks=pytest.mark.full)])
def test_a_sweep_of_hostile_links_breaks_no_statement(transfers: int) -> None:
    """Constant links, cliffs and holes; a broken statement names its seed and connection."""
    swept = sweep(transfers, seed=transfers)
    assert not swept.broken
    assert swept.transfers.keys() == set(KINDS[:-1])
    assert swept.transfers.total() >= transfers
    assert swept.timeouts > transfers


@pytest.mark.skipif(not HAS_DRIVES, reason=f"needs {DRIVES} in FAIRBED_DATA")
@pytest.mark.parametrize("transfers", [200, pytest.param(3_000, marks=pytest.mark.full)])
def test_a_sweep_of_recorded_drives_breaks_no_statement(transfers: int) -> None:
    swept = sweep(transfers, seed=transfers, data=DATA, kinds=("drive",))
    assert not swept.broken
    assert swept.transfers.keys() == {"drive"}


def test_a_sweep_does_not_depend_on_its_processes() -> None:
    one, two = (sweep(200, seed=3, processes=processes) for processes in (1, 2))
    one.took_s = two.took_s = 0.0
    assert one == two


def test_a_sweep_without_data_has_no_drives(tmp_path: Path) -> None:
    assert drives(None) == drives(tmp_path) == ()
    assert folder({}) is None
