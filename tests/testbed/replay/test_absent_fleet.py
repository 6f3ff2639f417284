"""A replay waits for devices in empty rounds, which use up no round, and for a week at most."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import RoundRow
from fairbed.coordinator.tui.widgets.header import RunHeader
from fairbed.profiles.series import Series
from fairbed.testbed.cli.main import main
from fairbed.testbed.emulation.schedule import OutageWindow
from fairbed.testbed.errors import NoDeviceError
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.replay.engine import engine
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.world.columns import AvailabilityCycles, Outages, VaryingColumn
from fairbed.testbed.replay.world.profile_world import ProfileWorld
from tests.coordinator.tui.screen import WIDEST, room
from tests.testbed.replay.fleets import experiment, replay_rounds, seconds
from tests.testbed.replay.test_profile_replay import DEVICE
from tests.testbed.replay.test_resume import cut_off_at

WEEK_S = 7 * 86_400.0


@pytest.fixture
def device(tmp_path: Path) -> str:
    """Return the path of a profile."""
    path = tmp_path / "plain.toml"
    path.write_text(DEVICE)
    return str(path)


def asleep(device: str, outage_s: float, start_s: float = 0.0) -> Experiment:
    """Return an experiment without training whose devices are all away for a time."""
    outage = {"kind": "unplugged", "start_s": start_s, "duration_s": outage_s}
    group = {"profile": device, "count": 3, "outage": [outage]}
    replay = {"training": False}
    return experiment(group, rounds=6, selection={"per_round": 2}, replay=replay)


def rows_of(folder: Path) -> list[RoundRow]:
    with RunReader(folder) as reader:
        return reader.rounds()


def test_a_night_uses_up_no_round(device: str) -> None:
    night = {"available_hours": ["22:00-06:00"]}
    of = experiment(
        {"profile": device, "count": 3} | night,
        rounds=4,
        emulation={"start_time": "21:58"},
        round={"void_wait_s": 5.0},
    )
    _, rounds = replay_rounds(of)
    empty = [one for one in rounds if not one.exchanges]
    assert 120 / 5 <= len(empty) <= 120 / 5 + 1
    assert len(rounds) == 4 + len(empty)
    assert [one.after.rounds_empty for one in rounds[-4:]] == [len(empty)] * 4
    assert rounds[-1].after.empty_since_s is None


def test_a_replay_that_is_cut_off_in_a_wait_ends_with_the_same_round(
    device: str, tmp_path: Path
) -> None:
    of = asleep(device, 20.0, start_s=3.0)
    replay_experiment(of, tmp_path / "whole", "run", lambda replayed: None)
    cut_off_at(12, of, tmp_path / "cut")
    assert rows_of(tmp_path / "cut")[-1].is_empty
    replay_experiment(of, tmp_path / "cut", "run", lambda replayed: None)
    whole, cut = rows_of(tmp_path / "whole"), rows_of(tmp_path / "cut")
    assert [(row.round, row.rounds_empty) for row in cut] == [
        (row.round, row.rounds_empty) for row in whole
    ]
    assert sum(not row.is_empty for row in cut) == 6
    assert cut[-1].rounds_empty >= 15


@pytest.mark.parametrize(
    ("group", "found"),
    [
        ({"profile": "DEVICE", "outage": [1e6]}, "none from 0 s to 1,000,000 s (after round 1)"),
        (seconds(1.0, 3) | {"availability": 0.0}, "none from 0 s on (after round 1)"),
    ],
)
def test_a_fleet_that_stays_away_ends_the_replay_with_one_line(
    group: dict[str, Any], found: str, device: str, tmp_path: Path
) -> None:
    if "profile" in group:
        of = asleep(device, *group["outage"])
    else:
        of = experiment(group, rounds=6, replay={"training": False})
    with pytest.raises(NoDeviceError) as caught:
        replay_experiment(of, tmp_path / "run", "run", lambda replayed: None)
    text = str(caught.value)
    assert text.startswith(
        f"fleet: a device must be available within 7 days of virtual time, got {found}; "
    )
    assert "\n" not in text
    with RunReader(tmp_path / "run") as reader:
        info = reader.run()
        assert (info.status, info.row.reason) == ("failed", text)
        assert [row.is_empty for row in reader.rounds()] == [True]


def test_conditions_that_never_meet_are_waited_for_up_to_the_limit(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours and a link that is down then, for example: no single condition shows it."""
    monkeypatch.setattr(engine, "MAX_ABSENCE_S", 10.0)
    monkeypatch.setattr(ProfileWorld, "available_from_s", lambda self, round_id, now: now)
    with pytest.raises(NoDeviceError, match=r"got none from 8 s to 19 s \(after round 13\); "):
        replay_rounds(asleep(device, 60.0, start_s=3.0))
    assert len(replay_rounds(asleep(device, 8.0))[1]) == 6 + 9


def test_the_command_line_gives_the_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "away.toml"
    file.write_text(
        """
name = "away"
rounds = 3
[data]
dataset = "digits"
[model]
name = "softmax"
[selection]
per_round = 2
[replay]
training = false
[[fleet]]
model = "linear"
theta = [1.0, 0.0, 0.0]
count = 3
availability = 0.0
"""
    )
    assert main(["replay", str(file), "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "fleet: a device must be available within 7 days" in error


@pytest.fixture
def waited(device: str, tmp_path: Path) -> Path:
    """Return the folder of a replay whose devices were away in its middle."""
    folder = tmp_path / "runs" / "waited"
    replay_experiment(asleep(device, 20.0, start_s=3.0), folder, "waited", lambda replayed: None)
    return folder


def test_all_views_count_empty_rounds_on_top_of_the_planned_ones(
    waited: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunReader(waited) as reader:
        info, summary, rows = reader.run(), summarise_run(reader), reader.rounds()
    from fairbed.testbed.metrics.exporter import Follower, Page  # of a room, which may be absent
    from tests.testbed.metrics.test_metrics import samples_of

    page = Page()
    follower = Follower(waited, page, None, 1)
    follower.refresh(is_last=True)
    follower.close()
    metrics = samples_of(page.content.decode())
    empty = sum(row.is_empty for row in rows)
    last = 6 + empty
    assert empty > 10
    assert (info.rounds_completed, info.rounds_empty, info.last_round) == (last, empty, last)
    assert (summary.rounds_completed, summary.rounds_planned) == (last, 6)
    assert summary.rounds_empty == empty
    assert metrics["fairbed_rounds_planned"] == 6
    assert metrics["fairbed_rounds_empty"] == empty
    assert main(["watch", str(waited), "--headless"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round ")]
    assert len(lines) == 7, "one of them for all empty rounds"
    assert [line[:13] for line in lines if "no device available" in line] == [lines[2][:13]]
    assert "not as one of 6 rounds" in lines[2]
    assert lines[-1].startswith(f"round {last}/{last}  tau")
    assert main(["runs", "--runs", str(waited.parent)]) == 0
    assert f" {last}/{last} " in capsys.readouterr().out
    assert main(["show", str(waited)]) == 0
    assert f"{last} of {last} ({summary.rounds_void} void, {empty} of them empty)" in (
        capsys.readouterr().out
    )


@pytest.mark.anyio
async def test_the_control_room_counts_empty_rounds_on_top_of_the_planned_ones(
    waited: Path,
) -> None:
    async with room(waited, WIDEST) as (app, _):
        tiles = {t.label: t.value.plain for t in app.screen.query_one(RunHeader)._tiles(app.view)}
        last = app.view.cursor.round
    assert tiles["ROUND"].startswith(f"{last}/{last} ")
    assert tiles["EMPTY"] == f"{last - 6} rounds"


def test_the_next_instant_of_a_condition_is_exact() -> None:
    day = Series((0.0, 10.0, 20.0), (0.0, 1.0, 0.0), 30.0)
    column = VaryingColumn(np.array([1.0, 1.0, 0.0]), {1: day})
    for t, found in ((0.0, 10.0), (15.0, 15.0), (20.0, 40.0), (31.0, 40.0)):
        assert column.next_positive(t).tolist() == [t, found, np.inf]
    cycles = AvailabilityCycles(
        share=np.array([0.25, 0.0, 1.0]), cycle_s=np.full(3, 100.0), phase=np.full(3, 0.5)
    )
    for t, found in ((0.0, 50.0), (60.0, 60.0), (80.0, 150.0)):
        np.testing.assert_allclose(cycles.next_positive(t), [found, np.inf, t])
        assert cycles.at(found)[0] == 1.0
    windows = (OutageWindow(5.0, 8.0, "unplugged"), OutageWindow(6.0, 9.0, "frozen"))
    outages = Outages({1: windows}, 2)
    assert outages.end_s(7.0).tolist() == [7.0, 9.0]
    assert outages.end_s(9.0).tolist() == [9.0, 9.0]
