"""The grid of lossy links: its plan, its model, its tables, and one real cell."""

import os
import socket
import statistics
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import _link_cliffs, _tcp_sweep, replay_links
from benchmarks._link_cliffs import CLIFFS, Cliff, CliffRow, timeouts_of
from benchmarks._link_transfers import Transfers
from benchmarks.replay_links import (
    BUDGET_BPS,
    CLIFFS_MARK,
    MARK,
    Cell,
    Row,
    batches,
    compared,
    main,
    markdown,
    modelled,
)

CELL = Cell(rate_bps=8e6, delay_s=0.02, loss_ratio=0.01, n_bytes=50_000)
TRANSFERS = Transfers(n_bytes=50_000, count=5, pause_s=0.7)


@pytest.fixture(autouse=True)
def short_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model repeat few transfers."""
    monkeypatch.setattr(replay_links, "MODELLED", 50)
    monkeypatch.setattr(replay_links, "MODELLED_BYTES", 0)


def row(cell: Cell = CELL, live_s: float = 0.2, waited: float = 0.0) -> Row:
    return Row(
        cell=cell,
        direction="exchange",
        transfers=TRANSFERS,
        count=30,
        live_s=live_s,
        live_p95_s=0.5,
        waited=waited,
    )


def test_a_batch_stays_within_the_budget_and_has_enough_transfers() -> None:
    rates = [1e6, 1e7]
    losses = [0.0, 0.03]
    cells = [
        msgspec.structs.replace(CELL, rate_bps=rate, loss_ratio=loss)
        for rate in rates
        for loss in losses
    ]
    planned = list(batches(cells, 30))
    measured = [each for batch in planned for each in batch]
    assert len(measured) == len(cells)
    for batch in planned:
        assert len(batch) == 1 or sum(each.bps for each in batch) <= BUDGET_BPS
    assert all(each.devices * each.transfers.count >= 30 for each in measured)


def test_without_loss_the_model_has_the_time_of_the_link() -> None:
    cell = msgspec.structs.replace(CELL, loss_ratio=0.0, rate_bps=1e6, n_bytes=500_000)
    for direction in ("down", "up"):
        for took_s in modelled(cell, direction, Transfers(n_bytes=500_000, count=3, pause_s=1.0)):
            assert took_s == pytest.approx(4.02, abs=0.1)


@pytest.mark.parametrize(
    ("loss", "factor", "waited", "ok"),
    [
        (0.01, 1.05, 0.0, True),
        (0.01, 1.15, 0.0, False),
        (0.03, 1.15, 0.0, True),
        (0.03, 1.25, 0.0, False),
        (0.01, 1.15, 0.2, None),
        (0.05, 1.05, 0.0, None),
    ],
)
def test_the_limit_of_the_error_depends_on_the_loss(
    loss: float, factor: float, waited: float, ok: bool | None
) -> None:
    cell = msgspec.structs.replace(CELL, loss_ratio=loss)
    model_s = compared(row(cell)).model_s
    found = compared(row(cell, live_s=model_s / factor, waited=waited))
    assert found.error == pytest.approx(factor - 1.0)
    assert found.ok is ok


def test_the_limit_is_that_of_a_download_and_the_upload_after_it() -> None:
    of = {x: compared(msgspec.structs.replace(row(), direction=x)) for x in ("down", "up")}
    assert [found.limit for found in of.values()] == [None, None]
    both = modelled(CELL, "exchange", TRANSFERS)
    pairs = zip(*(modelled(CELL, direction, TRANSFERS) for direction in of), strict=True)
    assert both == [sum(pair) for pair in pairs]


def test_earlier_rows_are_compared_again_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, document = tmp_path / "rows.json", tmp_path / "page.md"
    file.write_bytes(msgspec.json.encode([compared(row())]))
    document.write_text(f"before\n<!-- {MARK} -->\nold\n<!-- end of {MARK} -->\nafter\n")
    assert main(["--from", str(file), "--json", "--write", str(document)]) == 0
    (found,) = msgspec.json.decode(capsys.readouterr().out, type=list[Row])
    assert found == compared(row())
    assert markdown([found]) in document.read_text()
    assert "old" not in document.read_text()


@pytest.mark.alone
@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="network namespaces need root on Linux"
)
def test_a_real_cell_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"rates": 8, "delays": 10, "losses": 1, "sizes": 20, "transfers": 6}
    arguments = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    assert main([*arguments, "--json"]) == 0
    rows = msgspec.json.decode(capsys.readouterr().out, type=list[Row])
    assert [found.direction for found in rows] == ["down", "exchange", "up"]
    for found in rows:
        assert found.count >= 6
        assert 0.03 < found.live_s < 1.0


SLOW = Cliff(
    name="4 to 0.5", rates_bps=(4e6, 5e5), changes_s=(0.4,), loss_ratio=0.0, n_bytes=300_000
)


def test_without_loss_a_cliff_has_the_integral_of_its_rates() -> None:
    """The first 0.4 s carry 1.6 Mbit less what slow start leaves idle, then 0.5 Mbit/s.

    A burst of 2.11 packets and the last one, which leaves as its transmission begins, cost nothing.
    """
    for direction in ("down", "up"):
        found, timeouts = _link_cliffs.modelled(SLOW, direction, turns=3, least=6)
        idle = 4e6 * 3 * 2 * SLOW.delay_s
        least_s = 0.4 + (8.0 * SLOW.n_bytes - 4e6 * 0.4 - 3.2 * 8.0 * 1448) / 5e5
        assert len(found) == 3 * _link_cliffs.DEVICES
        for took_s in found:
            assert least_s < took_s < least_s + idle / 5e5
        assert timeouts == 0


def test_the_model_has_time_outs_where_a_packet_takes_longer_than_one() -> None:
    slow = next(cliff for cliff in CLIFFS if min(cliff.rates_bps) == 4e4)
    _, timeouts = _link_cliffs.modelled(slow, "down", turns=3, least=30)
    assert timeouts > 0


def test_a_sender_remembers_the_round_trips_of_a_fall() -> None:
    """Captured in the kernel: an upload of 10.60 s over a fall, and those after it 0.146 s.

    Its time-out of 17 s is longer than the pauses, so its window does not start again. The first
    one has a spurious time-out: a packet takes longer than one.
    """
    slow = next(cliff for cliff in CLIFFS if min(cliff.rates_bps) == 4e4)
    cliff = msgspec.structs.replace(slow, loss_ratio=0.0, changes_s=(0.171,))
    found, timeouts = _link_cliffs.modelled(cliff, "up", turns=3, least=1)
    first, *later = (found[at] for at in range(0, len(found), _link_cliffs.DEVICES))
    assert first == pytest.approx(10.6, abs=0.6)
    assert later == pytest.approx([0.146, 0.146], abs=0.01)
    assert timeouts == _link_cliffs.DEVICES


def test_earlier_cliffs_are_compared_again_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_link_cliffs, "MODELLED", 5)
    row = CliffRow(
        cliff=SLOW,
        direction="up",
        count=10,
        changed_s=(0.4,),
        live_mean_s=4.0,
        live_p95_s=5.0,
        live_timeouts=0.5,
        waited=0.01,
    )
    file, document = tmp_path / "rows.json", tmp_path / "page.md"
    file.write_bytes(msgspec.json.encode([row]))
    document.write_text(f"<!-- {CLIFFS_MARK} -->\nold\n<!-- end of {CLIFFS_MARK} -->\n")
    assert main(["--cliffs", "--from", str(file), "--write", str(document)]) == 0
    expected_s = statistics.mean(_link_cliffs.modelled(SLOW, "up", 2, 5)[0])
    assert f"{expected_s:.2f} s" in capsys.readouterr().out
    assert "| 4.00 s (5.00) |" in document.read_text()
    assert f"{100 * (expected_s / 4.0 - 1.0):+.0f} % | 0.50, 0.00 |" in document.read_text()


def test_a_sweep_prints_its_transfers_and_fails_for_a_broken_statement(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--sweep", "40", "--seed", "2", "--processes", "1"]
    assert main(arguments) == 0
    assert "0 broken statements" in capsys.readouterr().out

    def broken(*_: object, **__: object) -> float:
        raise IndexError("list index out of range")

    monkeypatch.setattr(_tcp_sweep, "transfer_end", broken)
    assert main(arguments) == 1
    assert "connection 0, 0: IndexError('list index out of range')" in capsys.readouterr().out


def test_a_kernel_that_counts_no_time_outs_has_none() -> None:
    class Old:
        """A socket of Linux 6.6."""

        def getsockopt(self, *_: object) -> bytes:
            """Return a shorter TCP_INFO."""
            return bytes(240)

    assert timeouts_of(Old()) == -1  # type: ignore[arg-type]
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        assert timeouts_of(connection) in (-1, 0)


@pytest.mark.alone
@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="network namespaces need root on Linux"
)
def test_a_real_cliff_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_link_cliffs, "PAUSE_S", 0.5)
    monkeypatch.setattr(_link_cliffs, "MODELLED", 10)
    monkeypatch.setattr(_link_cliffs, "DEVICES", 2)
    fast = msgspec.structs.replace(SLOW, n_bytes=150_000, rates_bps=(4e6, 1e6), changes_s=(0.2,))
    rows = _link_cliffs.measured([fast], 2)
    assert [(row.direction, row.count) for row in rows] == [("down", 2), ("up", 2)]
    for row in rows:
        assert 0.4 < row.live_mean_s < 5.0
        assert 0.15 <= row.changed_s[0] < 2.0
