"""The grid of lossy links: its plan, its model, its tables, and one real cell."""

import os
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import replay_links
from benchmarks._link_transfers import Transfers
from benchmarks.replay_links import (
    BUDGET_BPS,
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
