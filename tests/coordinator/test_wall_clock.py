"""A wall clock that jumps by a day changes texts of a run, and nothing else (issue #20)."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.store.tables import EventRow, ExchangeRow
from tests.coordinator.lab import NAMES, PATIENT, WHOLE_FLEET, lab, make_config

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

DAY_S = 86_400.0
JUMPS = {2: DAY_S, 4: -DAY_S, 6: 0.0}
"""Offset of the wall clock from the end of a round on, seconds."""

READERS = (
    "fairbed.coordinator.store.event_log.datetime",
    "fairbed.coordinator.store.store.datetime",
    "fairbed.coordinator.server.operator_commands.datetime",
)
"""Where coordinator and store read the date."""


class WallClock:
    """The wall clock of this process, agents and logs included, with an offset."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        clock, seconds, parts = self, time.time, time.localtime
        self.offset_s = 0.0

        class Date(datetime):
            @classmethod
            def now(cls, tz: object = None) -> datetime:  # type: ignore[override]  # as it is used
                return datetime.now(timezone.utc) + timedelta(seconds=clock.offset_s)

        for name in READERS:
            patch.setattr(name, Date)
        patch.setattr(time, "time", lambda: seconds() + clock.offset_s)
        patch.setattr(
            time, "localtime", lambda at_s=None: parts(time.time() if at_s is None else at_s)
        )


async def run(
    folder: Path, config: CoordinatorConfig, on_round: Callable[[int], None]
) -> tuple[bytes, list[ExchangeRow], list[EventRow]]:
    """Return the final model, the exchanges and the events of a run."""
    async with lab(folder) as place:
        place.device_names = place.shards.given = list(NAMES)  # not in the order of their hellos
        place.on_progress = lambda progress: on_round(progress.round.round)
        assert await place.run(config) == "done"
        with place.reader() as reader:
            (model,) = (folder / "run" / "models").glob("round-*8.safetensors")
            return model.read_bytes(), reader.exchanges(), [x for _, x in reader.events()]


async def test_a_jump_of_the_wall_clock_changes_only_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(8, len(NAMES), selection=WHOLE_FLEET, round=PATIENT)
    model, exchanges, _ = await run(tmp_path / "steady", config, lambda round_id: None)
    clock = WallClock(monkeypatch)

    def jump(round_id: int) -> None:
        clock.offset_s = JUMPS.get(round_id, clock.offset_s)

    jumped, disturbed, events = await run(tmp_path / "jumping", config, jump)
    assert jumped == model
    assert [(x.round, x.device, x.outcome) for x in disturbed] == [
        (x.round, x.device, x.outcome) for x in exchanges
    ]
    assert all(x.outcome == "done" and 0.0 < (x.tau_s or 0.0) < 60.0 for x in disturbed)
    at_s = [event.at_s for event in events]
    assert at_s == sorted(at_s)
    assert at_s[-1] < 600.0
    assert not {event.kind for event in events} & {"left", "rejoined", "disconnected", "failed"}
