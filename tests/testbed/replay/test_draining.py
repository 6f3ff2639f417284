"""A cancelled device is selected again only after it reports idle, as in a live run."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.profiles.series import Series
from fairbed.profiles.tracks import LinkTracks
from fairbed.testbed.emulation.schedule import OutageWindow, Schedule
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.world.columns import MeanConditions, VaryingConditions
from fairbed.testbed.replay.world.profile_world import BETWEEN_ROUNDS_S, Draining
from tests.testbed.replay.fleets import experiment, replay_rounds
from tests.testbed.replay.test_profile_replay import DEVICE

DELAY_S = 0.03
GIVE_UP_S = 6.0


def profile(folder: Path, delay_s: float = DELAY_S, core_speed: float = 0.4) -> str:
    """Return the path of a profile with this link and processor."""
    path = folder / f"device-{1e3 * delay_s:.0f}-{1e3 * core_speed:.0f}.toml"
    text = DEVICE.replace("value = 0.03", f"value = {delay_s}")
    path.write_text(text.replace("value = 0.4", f"value = {core_speed}"))
    return str(path)


def over_selected(path: str, noise: float = 0.2, rounds: int = 30, **settings: Any) -> Experiment:
    """Return rounds that select all three devices and wait for two."""
    return experiment(
        {"profile": path, "count": 3},
        rounds=rounds,
        selection={"per_round": 2},
        round={"over_select": 1} | settings,
        replay={"noise": noise},
    )


@pytest.mark.parametrize("settings", [{}, {"late": "merge"}], ids=["drop", "merge"])
def test_a_cancelled_device_is_not_selected_before_it_reports_idle(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    _, rounds = replay_rounds(over_selected(profile(tmp_path), **settings))
    cancelled = [row for row in range(3) if rounds[0].outcome[row] == "cancelled"]
    assert len(cancelled) == 1
    first, second, third = (one.snapshot.is_available for one in rounds[:3])
    assert first.all()
    assert np.flatnonzero(~second).tolist() == cancelled
    assert third.all(), "a round takes longer than its report"


def test_a_warm_device_cancelled_before_its_download_stays_warm(tmp_path: Path) -> None:
    path = Path(profile(tmp_path, delay_s=0.4 * BETWEEN_ROUNDS_S))
    path.write_text(path.read_text().replace("value = 400e3", "value = 4e3"))
    _, rounds = replay_rounds(over_selected(str(path), noise=1.0, rounds=100))
    found = 0
    for one, after in pairwise(rounds):
        warm = {x.row for x in one.exchanges if not x.was_cold and x.pulled_s > x.over_s}
        found += len(warm)
        assert not any(x.was_cold for x in after.exchanges if x.row in warm)
    assert found > 0


def test_on_a_fast_link_a_cancelled_device_is_idle_before_the_next_selection(
    tmp_path: Path,
) -> None:
    path = profile(tmp_path, delay_s=0.4 * BETWEEN_ROUNDS_S)
    _, rounds = replay_rounds(over_selected(path))
    assert all("cancelled" in one.outcome for one in rounds)
    assert all(one.snapshot.is_available.all() for one in rounds)


def test_a_late_device_of_an_asynchronous_round_is_dispatched_after_it_reports_idle(
    tmp_path: Path,
) -> None:
    of = experiment(
        {"profile": profile(tmp_path), "count": 2, "name": "quick"},
        {"profile": profile(tmp_path, core_speed=0.04), "count": 1, "name": "slow"},
        rounds=12,
        selection={"per_round": 3},
        round={"mode": "async", "buffer": 1, "concurrency": 3, "deadline_s": 3.0},
    )
    replay_experiment(of, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        rows = [x for x in reader.exchanges() if x.device == "slow-1"]
    starts = sorted(x.dispatched_at_s for x in rows)
    assert [x.outcome for x in rows[:-1]] == ["late"] * (len(rows) - 1), "the last: the run is over"
    assert len(starts) > 2
    assert (np.diff(starts) >= 3.0 + 2 * DELAY_S - BETWEEN_ROUNDS_S).all()


def draining(*outages: tuple[float, float]) -> Draining:
    """Return two devices on links of `DELAY_S`, the second one with outages."""
    link = LinkTracks(
        down_bps=Series.constant(1e6),
        up_bps=Series.constant(1e6),
        delay_s=Series.constant(DELAY_S),
        jitter_s=Series.constant(0.0),
        loss_ratio=Series.constant(0.0),
    )
    windows = tuple(OutageWindow(start, end, "coverage") for start, end in outages)
    columns = {name: np.ones(2) for name in MeanConditions.__dataclass_fields__}
    means = MeanConditions(**columns | {"delay_s": np.full(2, DELAY_S)})
    schedule = Schedule(link=link, outages=windows)
    return Draining(means, VaryingConditions(links={1: schedule}), GIVE_UP_S)


def test_devices_without_a_cancellation_are_idle() -> None:
    assert draining().is_idle(0.0).tolist() == [True, True]


def test_a_device_is_idle_after_two_message_delays() -> None:
    known = draining((90.0, 91.0))
    known.give_up(np.array([0, 1]), np.array([10.0, 11.0]))
    for at, idle in ((10.0, [False, False]), (10.061, [True, False]), (11.061, [True, True])):
        assert known.is_idle(at - BETWEEN_ROUNDS_S).tolist() == idle


def test_a_cancellation_waits_for_the_end_of_an_outage() -> None:
    known = draining((9.0, 13.0))
    known.give_up(np.array([1]), np.array([10.0]))
    assert not known.is_idle(13.0 + 2 * DELAY_S - BETWEEN_ROUNDS_S - 1e-6)[1]
    assert known.is_idle(13.0 + 2 * DELAY_S - BETWEEN_ROUNDS_S + 1e-6)[1]


def test_an_unreachable_device_stops_by_itself() -> None:
    known = draining((9.0, 1e6))
    known.give_up(np.array([1]), np.array([10.0]))
    assert not known.is_idle(10.0 + GIVE_UP_S - BETWEEN_ROUNDS_S)[1]
    assert known.is_idle(10.0 + GIVE_UP_S + 2 * DELAY_S)[1]


def test_draining_devices_are_restored_from_a_checkpoint() -> None:
    known, again = draining((9.0, 13.0)), draining((9.0, 13.0))
    known.give_up(np.array([0, 1]), np.array([10.0, 11.0]))
    again.load_state(known.to_state())
    for at in (10.0, 10.1, 12.0, 14.0):
        assert again.is_idle(at).tolist() == known.is_idle(at).tolist()
