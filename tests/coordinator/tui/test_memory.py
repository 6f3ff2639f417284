"""What a control room that stays open for days must not collect."""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets._footer import FooterKey

from fairbed.coordinator.tui.app import ControlRoom
from fairbed.coordinator.tui.widgets.line_table import LineTable
from tests.coordinator.store.fake_run import FakeRun
from tests.coordinator.tui.screen import room, settled

pytestmark = pytest.mark.anyio


async def test_former_footer_keys_are_released(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.play(2)
    async with room(run.finish()) as (app, pilot):
        after_first = await _footer_keys_after(app, pilot, "1472")
        assert await _footer_keys_after(app, pilot, "1472") <= after_first


async def _footer_keys_after(app: ControlRoom, pilot: Pilot[Any], keys: Sequence[str]) -> int:
    for key in keys:
        await pilot.press(key)
        await settled(app, pilot)
    gc.collect()
    return sum(isinstance(found, FooterKey) for found in gc.get_objects())


async def test_a_round_replaces_no_line_of_a_table(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run", devices=40)
    run.play(3)
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        for key in ("4", "5"):
            await pilot.press(key)
            await settled(app, pilot)
            (table,) = app.screen.query(LineTable)
            rows = list(table.rows.values())
            before = _cells(table)
            run.play(1)
            run.store.flush()
            await app.refresh_view()
            await settled(app, pilot)
            kept = list(table.rows.values())[: len(rows)]
            assert all(now is then for now, then in zip(kept, rows, strict=True))
            assert _cells(table) != before
    run.store.close()


def _cells(table: LineTable) -> list[list[str]]:
    return [[cell.plain for cell in table.get_row_at(at)] for at in range(table.row_count)]
