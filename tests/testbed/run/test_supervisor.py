"""Whole runs from the command line: a real broker, real processes, real faults."""

import json
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest

from fairbed import profiles
from fairbed.coordinator.policy.config import TrainingConfig
from fairbed.coordinator.store import RunReader
from fairbed.profiles.series import Series
from fairbed.testbed.emulation.work import WorkCosts
from fairbed.testbed.run.broker import start_broker
from fairbed.testbed.run_folder import WORK
from tests.testbed.small_run import (
    EMULATED,
    LIMIT_S,
    Running,
    assert_gone,
    running,
    train_s_of,
    wait_until,
)

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_a_run_ends_with_one_object_on_stdout_and_nothing_left(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.wait_round(1)
        family = run.family()
        code, out, err = run.finish()
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["status"], summary["rounds_completed"]) == ("done", 6)
    assert set(summary["selected"]) == {"pi-1", "pi-2", "pi-3"}
    assert len([line for line in err.splitlines() if line.startswith("round ")]) == 6
    assert_gone(family)
    with RunReader(run.folder) as reader:  # the agents are emulated, but do not know it
        logs = {name: reader.device_log(name) for name in ("pi-1", "pi-2", "pi-3")}
    for name, lines in logs.items():
        assert [row.text for _, row in lines if row.text.endswith("joining")], (name, lines)
    left = {path.name for path in run.folder.iterdir()}
    assert {"run.db", "experiment.toml", "models", "logs", "broker.log"} <= left
    assert not left & {"cache", "endpoint.json", "run.db-wal"}


@pytest.mark.full
@pytest.mark.alone
def test_relative_speeds_of_devices_are_those_of_their_profiles(tmp_path: Path) -> None:
    # So slow that other load cannot delay them: each needs a few hundredths of a core.
    with running(tmp_path, 2, 20, EMULATED.format(host_core_speed=10.0)) as run:
        code, out, err = run.finish()
    assert code == 0, err
    profiles = json.loads(out)["profiles"]
    fast, slow = profiles["raspberry-pi-4b"], profiles["raspberry-pi-zero-2w"]
    ratio = train_s_of(run, "raspberry-pi-zero-2w-1") / train_s_of(run, "raspberry-pi-4b-1")
    assert ratio == pytest.approx(fast["speed"] / slow["speed"], rel=0.1)
    with RunReader(run.folder) as reader:
        assert not [event for _, event in reader.events() if event.level == "warning"]


def test_a_fleet_too_large_for_this_machine_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, 1, 1, EMULATED.format(host_core_speed=0.001)) as run:
        code, _, err = run.finish()
    assert code == 2
    assert "emulation.dilation: the fleet must fit into this machine, got 1: the fastest" in err
    assert "need 639.00 cores at once" in err
    assert not run.folder.exists()


@pytest.mark.full
@pytest.mark.alone
def test_dilated_time_leaves_all_durations_unchanged(tmp_path: Path) -> None:
    ratios = {}
    for dilation in (1, 2):
        emulation = f"[emulation]\ndilation = {dilation}"
        sections = EMULATED.format(host_core_speed=6.0).replace("[emulation]", emulation)
        folder = tmp_path / str(dilation)
        folder.mkdir()
        with running(folder, 2, 15, sections) as run:
            code, out, err = run.finish()
        assert code == 0, err
        summary = json.loads(out)
        assert summary["dilation"] == dilation
        assert summary["wall_s"] > dilation * summary["virtual_s"]
        costs = msgspec.json.decode((run.folder / WORK).read_bytes(), type=WorkCosts)
        ratios[dilation] = train_s_of(run, "raspberry-pi-zero-2w-1") / costs.train.seconds(
            TrainingConfig().batch_size
        )  # each run calibrates anew
    assert ratios[2] == pytest.approx(ratios[1], rel=0.1)


MOVING = """
[emulation]
backend = "process"
host_core_speed = 6.0
unavailable_as = "{unavailable_as}"
[[fleet]]
name = "traced"
profile = "raspberry-pi-4b"
trace = "{folder}/moving.csv"
[[fleet]]
name = "still"
profile = "raspberry-pi-4b"
link = "gigabit-ethernet"
[[fleet]]
name = "shift"
profile = "{folder}/shift.toml"
link = "gigabit-ethernet"
"""

TRACE = """# period_s = 3
t_s,down_mbps,up_mbps
0,20,10
1,4,2
1.5,0,0
2,12,6
"""


def shift_worker(folder: Path) -> None:
    """Write the profile of a board that is available for half of the time.

    Its intervals are uneven, so that rounds of equal length meet both states.
    """
    pi = Path(profiles.__file__).resolve().parent / "devices" / "raspberry-pi-4b.toml"
    title, _, rest = pi.read_text(encoding="utf-8").partition("[link]")
    times = "t_s = [0, 1, 2, 3.5, 5.5, 6.5], values = [1, 0, 1, 0, 1, 0], period_s = 7"
    (folder / "shift.toml").write_text(
        f"{title}[availability.available]\nvalue = 0.5\nseries = {{ {times} }}\n"
        f'tag = "literature"\nsource = "made up for a test"\n[link]{rest}',
        encoding="utf-8",
    )


def states_seen(folder: Path, device: str) -> set[bool]:
    """Return in which states selections have found a device: available, or not."""
    with RunReader(folder) as reader:
        rows = [row for closed in reader.rounds() for row in reader.selections(closed.round)]
    return {row.is_available for row in rows if row.device == device}


@pytest.mark.parametrize("unavailable_as", ["unwilling", "unplugged"])
@pytest.mark.full
def test_devices_follow_their_schedules_and_the_run_records_them(
    unavailable_as: str, tmp_path: Path
) -> None:
    (tmp_path / "moving.csv").write_text(TRACE, encoding="utf-8")
    shift_worker(tmp_path)
    moving = MOVING.format(folder=tmp_path, unavailable_as=unavailable_as)
    with running(tmp_path, 500, 60, moving) as run:
        run.wait_round(6)
        wait_until(lambda: states_seen(run.folder, "shift-1") == {False, True}, "both states")
        run.process.send_signal(signal.SIGINT)
        code, out, err = run.finish()
    assert code == 0, err
    assert json.loads(out)["status"] == "stopped"
    with RunReader(run.folder) as reader:
        rows = {name: reader.conditions(name) for name in ("traced-1", "still-1", "shift-1")}
        driven = [event.text for _, event in reader.events() if event.kind == "driven"]
        lasted_s = reader.run().elapsed_s
        selections = [reader.selections(row.round) for row in reader.rounds()]
    assert rows["still-1"] == []
    assert driven[0].startswith("2 devices: ")
    for name in ("traced-1", "shift-1"):
        stretches = rows[name]
        assert len(stretches) <= lasted_s + 2
        for before, after in pairwise(stretches):
            assert after.at_s - after.duration_s == pytest.approx(before.at_s)  # without a gap
    whole_s = sum(row.duration_s for row in rows["traced-1"])
    volume = sum((row.down_bps or 0.0) * row.duration_s for row in rows["traced-1"])
    series = Series((0.0, 1.0, 1.5, 2.0), (20e6, 4e6, 0.0, 12e6), 3.0)
    laps = int(whole_s // 3.0)
    assert laps >= 1
    assert laps * series.integral(0.0, 3.0) <= volume <= (laps + 1) * series.integral(0.0, 3.0)
    absent = "outage_s" if unavailable_as == "unplugged" else "unwilling_s"
    assert sum(getattr(row, absent) for row in rows["shift-1"]) > 0.3 * lasted_s - 1.0
    seen = [row for selection in selections for row in selection if row.device == "shift-1"]
    assert not any(row.is_selected and not row.is_available for row in seen)


@pytest.mark.full
def test_a_killed_agent_affects_no_other(tmp_path: Path) -> None:
    with running(tmp_path, rounds=8) as run:
        run.wait_round(2)
        with RunReader(run.folder) as reader:
            victim = reader.exchanges(0)[-1].device
        agents = [p for p in run.family() if "fork_server" in " ".join(p.cmdline())]
        oldest = min(agents, key=lambda p: p.create_time())
        next(p for p in agents if p.pid != oldest.pid).kill()
        code, out, err = run.finish()
    assert code == 0, err
    assert json.loads(out)["rounds_completed"] == 8
    with RunReader(run.folder) as reader:
        events = [event for _, event in reader.events()]
    assert any(event.kind == "died" and "signal 9" in event.text for event in events), victim


@pytest.mark.full
def test_a_failed_run_has_the_reason_in_its_events(tmp_path: Path) -> None:
    with running(tmp_path, rounds=500) as run:
        run.wait_round(2)
        agents = [p for p in run.family() if "fork_server" in " ".join(p.cmdline())]
        min(agents, key=lambda p: p.create_time()).kill()
        code, _, err = run.finish()
    assert code == 1
    assert err.splitlines()[-1] == "fairbed: fork server: ended with signal 9; the fleet is lost"
    with RunReader(run.folder) as reader:
        assert reader.run().status == "failed"
        last = [event for _, event in reader.events()][-1]
    assert (last.kind, last.level) == ("failed", "error")
    assert "the fleet is lost" in last.text


def test_a_killed_broker_is_restarted_and_the_run_continues(tmp_path: Path) -> None:
    with running(tmp_path, rounds=10, epochs=20) as run:
        for round_id in (2, 4):
            run.wait_round(round_id)
            next(p for p in run.family() if p.name() == "mosquitto").kill()
        code, out, err = run.finish()
    assert code == 0, err
    assert json.loads(out)["rounds_completed"] == 10
    with RunReader(run.folder) as reader:
        kinds = [event.kind for _, event in reader.events()]
        assert all(row.aggregated >= 1 for row in reader.rounds())
    assert kinds.count("broker") == 2


@pytest.mark.full
@pytest.mark.anyio
async def test_a_second_run_on_the_same_broker_is_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with start_broker("mosquitto", folder=tmp_path) as broker:
        with running(first, rounds=10_000, url=broker.url) as run:
            await anyio.to_thread.run_sync(run.wait_round, 2)
            with running(second, url=broker.url) as late:
                code, _, err = await anyio.to_thread.run_sync(late.finish)
            assert code == 1
            assert err.splitlines()[-1].startswith("fairbed: fairbed/main: must have one coordin")
            assert "Traceback" not in err
            assert not late.folder.exists()
            later = run.rounds() + 3
            await anyio.to_thread.run_sync(run.wait_round, later)
            run.process.send_signal(signal.SIGINT)
            code, _, err = await anyio.to_thread.run_sync(run.finish)
    assert code == 0, err
    with RunReader(run.folder) as reader:
        assert {x.outcome for x in reader.exchanges(0) if x.round <= later} == {"done"}
        assert not {"rejoined", "left"} & {event.kind for _, event in reader.events()}


@pytest.mark.full
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_process_and_resumes_its_open_round(
    signal_number: int, tmp_path: Path
) -> None:
    with running(tmp_path, rounds=40) as run:
        run.wait_round(3)
        family = run.family()
        run.process.send_signal(signal_number)
        code, _, err = run.finish()
        closed = run.rounds()
    assert code == (-9 if signal_number == signal.SIGKILL else 0), err
    assert_gone(family)
    assert 3 <= closed < 40
    with RunReader(run.folder) as reader:
        expected = "interrupted" if signal_number == signal.SIGKILL else "stopped"
        assert reader.run().status == expected
    again = Running(tmp_path, rounds=40, resume=True)
    code, out, err = again.finish()
    assert code == 0, err
    assert json.loads(out)["rounds_completed"] == 40
    assert not list(run.folder.glob("broker-*")), "passwords of the killed start"
    with RunReader(run.folder) as reader:
        assert [row.round for row in reader.rounds()] == list(range(1, 41))


@pytest.mark.full
@pytest.mark.parametrize("hung", [(), ("mosquitto",), ("mosquitto", "agent")])
def test_sigterm_ends_a_run_within_seconds_whatever_hangs(
    hung: tuple[str, ...], tmp_path: Path
) -> None:
    """Issue #20: a run finishes or abandons within 5 s."""
    with running(tmp_path, rounds=500) as run:
        run.wait_round(2)
        family = run.family()
        agents = [p for p in family if "fork_server" in " ".join(p.cmdline())]
        by_name = {
            "mosquitto": next(p for p in family if p.name() == "mosquitto"),
            "agent": max(agents, key=lambda p: p.create_time()),
        }
        for name in hung:
            by_name[name].suspend()
        began = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        code, _, err = run.finish()
        lasted_s = time.monotonic() - began
    assert code == 0, err
    assert lasted_s < 5.0
    assert_gone(family)
    with RunReader(run.folder) as reader:
        assert reader.run().status == "stopped"


@pytest.mark.parametrize("moment_s", [0.0, 1.0])
@pytest.mark.full
def test_ctrl_c_soon_after_the_start_leaves_nothing(moment_s: float, tmp_path: Path) -> None:
    with running(tmp_path) as run:
        wait_until(run.folder.exists, "the folder")
        deadline = time.monotonic() + moment_s
        wait_until(lambda: time.monotonic() >= deadline, "the moment")
        family = run.family()
        run.process.send_signal(signal.SIGINT)
        code, _, err = run.finish()
    assert code == 0, err
    assert "Traceback" not in err
    assert_gone(family)
    assert not run.folder.exists() or (run.folder / "run.db").exists()


@pytest.mark.full
def test_a_run_is_stopped_from_another_terminal(tmp_path: Path) -> None:
    with running(tmp_path, rounds=500) as run:
        run.wait_round(2)
        stopped = subprocess.run(
            [sys.executable, "-m", "fairbed.testbed.cli.main", "stop", str(run.folder)],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        code, out, err = run.finish()
    assert stopped.returncode == 0, stopped.stderr
    assert code == 0, err
    assert json.loads(out)["status"] == "stopped"
