"""Replayed devices share the rate of their cell while they transfer at the same time."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fairbed.profiles import CellShare
from fairbed.profiles.series import Series
from fairbed.profiles.tracks import LinkTracks
from fairbed.testbed.cli.main import main
from fairbed.testbed.emulation.cell import Cell, Sharer
from fairbed.testbed.emulation.schedule import Schedule
from fairbed.testbed.replay.engine.engine import ReplayedRound, ReplayEngine
from fairbed.testbed.replay.setup import setup_of
from fairbed.testbed.replay.world.integrals import LinkIntegral
from fairbed.testbed.replay.world.shared_air import Carried, SharedAir, TransferKey
from tests.testbed.replay.fleets import EXAMPLES, experiment, replay_rounds

PI = {"profile": "raspberry-pi-4b", "link": "wifi-board"}
AP = {"name": "ap", "down_bps": 4e6, "up_bps": 2e6}


def link(bps: float | Series, delay_s: float = 0.0) -> LinkIntegral:
    rate = bps if isinstance(bps, Series) else Series.constant(bps)
    none = Series.constant(0.0)
    tracks = LinkTracks(
        down_bps=rate,
        up_bps=rate,
        delay_s=Series.constant(delay_s),
        jitter_s=none,
        loss_ratio=none,
    )
    return LinkIntegral(Schedule(link=tracks), 1e3)


def air(links: list[LinkIntegral], share: CellShare = "equal", bps: float = 8e6) -> SharedAir:
    cell = Cell(name="ap", down_bps=bps, up_bps=bps, share=share)
    sharers = {row: Sharer("ap", np.inf, row) for row in range(len(links))}
    return SharedAir({"ap": cell}, sharers, dict(enumerate(links)))


def run(shared: SharedAir) -> dict[int, Carried]:
    found = dict[int, Carried]()
    while shared.next_at < np.inf:
        found |= {one.key.row: one for one in shared.step()}
    return found


def ends(
    shared: SharedAir, wanted: list[tuple[float, float]], order: list[int] | None = None
) -> list[Carried]:
    """Return how transfers of (start, bits) end, one per row."""
    for row in order or range(len(wanted)):
        start, bits = wanted[row]
        shared.add(TransferKey(row, 1), "down", start, bits, 0.0)
    found = run(shared)
    return [found[row] for row in range(len(wanted))]


def test_transfers_share_the_cell_while_they_overlap() -> None:
    """The second begins after 1 s: 8 Mbit are left of the first, at half of the rate then."""
    first, second = ends(air([link(50e6)] * 2), [(0.0, 16e6), (1.0, 8e6)])
    assert first.at == pytest.approx(3.0)
    assert second.at == pytest.approx(3.0)
    assert (first.lost_s, second.lost_s) == pytest.approx((1.0, 1.0))


def test_a_transfer_has_the_cell_alone_when_the_other_has_ended() -> None:
    first, second = ends(air([link(50e6)] * 2), [(0.0, 4e6), (0.0, 12e6)])
    assert (first.at, second.at) == pytest.approx((1.0, 2.0))
    assert (first.lost_s, second.lost_s) == pytest.approx((0.5, 0.5))


def test_time_is_shared_where_links_differ() -> None:
    """The slow link has its 2 Mbit/s for half of the time, the fast one 8 Mbit/s for the rest."""
    slow, fast = ends(air([link(2e6), link(8e6)], "proportional-fair"), [(0.0, 2e6), (0.0, 8e6)])
    assert (slow.at, fast.at) == pytest.approx((2.0, 2.0))


def test_the_first_priority_waits_for_nothing() -> None:
    first, second = ends(air([link(8e6)] * 2, "priority"), [(0.0, 8e6), (0.0, 8e6)])
    assert (first.at, second.at) == pytest.approx((1.0, 2.0))
    assert (first.lost_s, second.lost_s) == pytest.approx((0.0, 1.0))


def test_a_change_of_a_link_gives_its_share_to_the_others() -> None:
    """From 1 s to 2 s one link is down: the other has the whole cell meanwhile."""
    varying = link(Series((0.0, 1.0, 2.0), (8e6, 0.0, 8e6), 100.0))
    steady, down = ends(air([link(8e6), varying]), [(0.0, 12e6), (0.0, 8e6)])
    assert (steady.at, down.at) == pytest.approx((2.0, 2.5))
    assert down.lost_s == pytest.approx(0.5)


steps = st.lists(st.sampled_from([0.0, 1e6, 3e6, 20e6]), min_size=1, max_size=5)
delays = st.sampled_from([0.0, 0.005, 0.03, 0.2])


@given(steps, delays, st.floats(0.0, 20.0), st.floats(1.0, 1e8))
def test_alone_in_a_cell_a_transfer_takes_as_long_as_without(
    rates: list[float], delay_s: float, start: float, bits: float
) -> None:
    own = link(Series.sampled([*rates, 2e6], 0.7), delay_s)
    (found,) = ends(air([own], bps=1e9), [(start, bits)])
    expected = own.transfer(start, bits, "down")
    assert found.at == pytest.approx(expected, rel=1e-9)
    assert found.lost_s == pytest.approx(0.0, abs=1e-9)


loads = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.floats(1e4, 3e7), steps, delays), min_size=2, max_size=5
)


@given(loads, st.sampled_from(["equal", "proportional-fair", "priority"]), st.randoms())
def test_the_order_of_transfers_changes_no_bit(
    load: list[tuple[float, float, list[float], float]], share: CellShare, random: Any
) -> None:
    links = [link(Series.sampled([*rates, 5e6], 0.7), delay_s) for *_, rates, delay_s in load]
    wanted = [(start, bits) for start, bits, *_ in load]
    first = ends(air(links, share), wanted)
    order = list(range(len(load)))
    random.shuffle(order)
    assert ends(air(links, share), wanted, order) == first
    for (start, bits), own, one in zip(wanted, links, first, strict=True):
        assert one.at >= own.transfer(start, bits, "down") - 1e-6  # sharing is never quicker


@given(st.lists(st.floats(1e5, 1e7), min_size=1, max_size=6))
def test_a_busy_cell_carries_its_rate(sizes: list[float]) -> None:
    found = ends(air([link(50e6)] * len(sizes)), [(0.0, bits) for bits in sizes])
    assert max(one.at for one in found) == pytest.approx(sum(sizes) / 8e6)


def test_a_restored_air_goes_on_alike() -> None:
    links = [link(3e6, 0.03), link(9e6)]
    shared, other = air(links), air(links)
    for row, bits in enumerate((5e6, 9e6)):
        shared.add(TransferKey(row, 1), "up", 0.1 * row, bits, 0.0)
    for _ in range(4):
        shared.step()
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(shared.to_state()))
    other.load_state(state)
    assert run(other) == run(shared)


def test_an_abandoned_transfer_leaves_its_share_to_the_others() -> None:
    shared = air([link(50e6)] * 2)
    for row in (0, 1):
        shared.add(TransferKey(row, 1), "down", 0.0, 8e6, 0.0)
    while shared.next_at <= 1.0:
        shared.step()
    assert shared.drop(0, 1, 1.0) == pytest.approx(0.5)
    assert run(shared)[1].at == pytest.approx(1.5)


def in_cell(count: int, cell: dict[str, Any] | None = AP, **sections: Any) -> list[ReplayedRound]:
    group = PI | {"count": count} | ({} if cell is None else {"cell": "ap"})
    cells = [] if cell is None else [cell]
    selection = {"policy": "uniform", "per_round": count}
    of = experiment(group, cell=cells, rounds=3, selection=selection, **sections)
    of = structs.replace(of, replay=structs.replace(of.replay, noise=0.0))
    return replay_rounds(of)[1]


def test_a_cohort_shares_its_cell_in_both_directions() -> None:
    """Four equal devices transfer at the same time: each has a quarter of the cell."""
    alone, shared = in_cell(1)[-1].exchanges[0], in_cell(4)[-1].exchanges
    for x in shared:
        assert x.is_done
        assert x.train_s == pytest.approx(alone.train_s)
        down_s, up_s = (8.0 * n / bps for n, bps in ((x.bytes_down, 4e6), (x.bytes_up, 2e6)))
        assert x.download_s - alone.download_s == pytest.approx(3.0 * down_s, rel=0.05)
        assert x.upload_s - alone.upload_s == pytest.approx(3.0 * up_s, rel=0.05)
        lost_s = (x.download_s - alone.download_s) + (x.upload_s - alone.upload_s)
        assert x.entry.measured["cell_wait_s"] == pytest.approx(lost_s, rel=0.05)
    assert alone.entry.measured["cell_wait_s"] == 0.0


def test_a_wide_cell_changes_nothing() -> None:
    wide = in_cell(3, AP | {"down_bps": 1e9, "up_bps": 1e9})
    for with_cell, without in zip(wide, in_cell(3, None), strict=True):
        for x, y in zip(with_cell.exchanges, without.exchanges, strict=True):
            assert x.tau_s == pytest.approx(y.tau_s, rel=1e-9)
            assert x.entry.measured["cell_wait_s"] == pytest.approx(0.0, abs=1e-9)


def test_a_device_waits_at_the_line_in_front_too() -> None:
    line = {"name": "line", "down_bps": 2e6, "up_bps": 1e6}
    groups = [PI | {"count": 2, "cell": "ap"}, PI | {"count": 2, "cell": "line", "name": "b"}]
    of = experiment(
        *groups, cell=[AP | {"behind": "line"}, line], selection={"per_round": 4}, rounds=1
    )
    (last,) = replay_rounds(of)[1]
    uploads = [x.upload_s for x in last.exchanges]
    assert uploads == pytest.approx([uploads[0]] * 4, rel=0.02)
    assert uploads[0] > 4.0 * 8.0 * last.exchanges[0].bytes_up / 1e6


def test_a_cancelled_device_frees_the_cell() -> None:
    """Three of four updates are wanted: the last is cancelled in its upload, and loses no more."""
    cell = AP | {"share": "priority"}
    groups = [PI | {"cell": "ap", "priority": n, "name": f"p{n}"} for n in range(4)]
    settings = {"selection": {"per_round": 3}, "round": {"over_select": 1}}
    of = experiment(*groups, cell=[cell], rounds=2, **settings)
    first, second = replay_rounds(of)[1]
    assert [x.outcome for x in first.exchanges] == ["done", "done", "done", "cancelled"]
    assert [x.outcome for x in second.exchanges][:3] == ["done"] * 3
    assert second.exchanges[0].tau_s <= first.exchanges[0].tau_s


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"round": {"mode": "async", "buffer": 1, "concurrency": 3}},
        {"round": {"late": "merge", "deadline_s": 1.0, "max_staleness": 5}},
    ],
)
def test_a_resumed_replay_is_the_same(sections: dict[str, Any]) -> None:
    group = PI | {"count": 5, "cell": "ap"}
    of = experiment(group, cell=[AP], rounds=8, selection={"per_round": 3}, **sections)
    whole = setup_of(of)
    engine = ReplayEngine(whole.decisions, whole.world)
    list(engine.replay(4))
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(engine.to_state()))
    rest = [
        (x.row, x.tau_s, x.entry.measured["cell_wait_s"]) for r in engine.replay(8) for x in r.over
    ]
    again = setup_of(of)
    other = ReplayEngine(again.decisions, again.world)
    other.load_state(4, np.zeros(0, dtype=np.float32), state)
    assert [
        (x.row, x.tau_s, x.entry.measured["cell_wait_s"]) for r in other.replay(8) for x in r.over
    ] == rest
    assert any(lost_s > 0.0 for *_, lost_s in rest)


@pytest.mark.full
def test_the_example_stores_what_each_exchange_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example, out = str(EXAMPLES / "shared-cell.toml"), tmp_path / "run"
    assert main(["replay", example, "--set", "rounds=3", "--out", str(out)]) == 0
    with closing(sqlite3.connect(out / "run.db")) as store:
        rows = store.execute("SELECT cell_wait_s, download_s + upload_s FROM exchange").fetchall()
    assert len(rows) == 12
    assert all(0.2 < lost_s < transfers_s for lost_s, transfers_s in rows)
    capsys.readouterr()
    assert main(["show", str(out)]) == 0
    assert "lost to others in a cell: median " in capsys.readouterr().out
