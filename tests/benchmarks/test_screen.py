"""The control room is measured on one that really shows a run."""

import json
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks import screen
from benchmarks._terminal import FRAME_END, Terminal
from fairbed.coordinator.tui.app import SHORTEST_PAUSE_S, TABS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")


@pytest.mark.timeout(120)
def test_a_room_on_a_terminal_draws_what_happens_and_is_left_by_its_key() -> None:
    cost = screen.measure(3, 3.0, (100, 30), warm_s=4.0)
    assert cost.devices == 3
    assert cost.start_cpu_s > 0.0
    assert 0.0 < cost.core_share < 2.0
    assert 0.0 <= cost.frames_per_s <= 1.5 / SHORTEST_PAUSE_S  # none while others are busy
    assert cost.bytes_per_s >= 0.0


@pytest.mark.timeout(120)
def test_a_screen_is_measured_at_a_fixed_rate() -> None:
    cost = screen.measure(3, 3.0, (100, 30), warm_s=3.0, tab="fleet", hertz=4.0)
    assert (cost.screen, cost.devices) == ("fleet", 3)
    assert 0.0 < cost.core_share < 2.0
    assert 0.0 < cost.frames_per_s <= 6.0


@pytest.mark.timeout(120)
def test_a_finished_run_is_open_when_its_last_round_is_on_the_screen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert screen.main(["--open", "3x4", "--repeats", "1", "--size", "100x30", "--json"]) == 0
    (opening,) = json.loads(capsys.readouterr().out)
    assert 0.0 < opening["in_app_s"] < opening["opens_s"]
    assert 0.0 < opening["reads_cpu_s"] < opening["opens_cpu_s"]


@pytest.mark.timeout(120)
def test_memory_is_measured_over_the_clock_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "SAMPLES", 8)
    memory = screen.watch_hours(3, 60 / screen.HOUR_S, 30.0, (100, 30), warm_s=3.0)
    assert memory.hours == pytest.approx(60 / screen.HOUR_S)
    assert 5.0 < memory.speed <= 31.0
    assert 10.0 < memory.start_mib < 500.0
    assert memory.end_mib > 10.0


@pytest.mark.timeout(120)
def test_each_key_is_followed_by_its_screen() -> None:
    delays = screen.press_keys(3, 1, (100, 30), warm_s=4.0)
    assert [delay.screen for delay in delays] == [*(tab.name for tab in TABS), "all"]
    assert all(0.0 < delay.p50_s <= delay.p95_s < screen.SHOWS_S for delay in delays)
    assert delays[-1].keys == len(TABS)


def test_the_time_of_a_screen_is_that_of_the_end_of_its_frame() -> None:
    terminal = Terminal(80, 24)
    try:
        terminal.expect("round 7")
        terminal.write_as_program(b"\x1b[1mround \x1b[0m")
        time.sleep(0.05)
        before_s = time.monotonic()
        terminal.write_as_program(b"7" + FRAME_END + b"round 8")
        assert before_s <= terminal.wait(5.0) <= time.monotonic()
        terminal.expect("round 9")
        with pytest.raises(RuntimeError, match="must show 'round 9'"):
            terminal.wait(0.01)
        assert terminal.n_frames == 1
    finally:
        terminal.close()


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the time of threads is known on Linux only")
@pytest.mark.timeout(180)
def test_a_coordinator_is_measured_with_and_without_viewers() -> None:
    watching = screen.watch_run(1, 1, 1, (100, 30), is_remote=True)
    assert watching.relay_cpu_s[0] > 0.0
    assert len(watching.alone_cpu_s) == len(watching.watched_cpu_s) == 1
    assert min(*watching.alone_cpu_s, *watching.watched_cpu_s) > 0.0
    assert 0.1 < watching.ratio < 10.0


def test_a_snapshot_for_another_machine_is_measured() -> None:
    found = screen.take_snapshot(4, 3, 2)
    assert (found.rounds, found.detailed_rounds, found.pages) == (4, 4, 1)
    assert found.n_bytes == found.largest_bytes > 0


@pytest.mark.parametrize(
    "options", [["--devices", "few"], ["--size", "large"], ["--open", "500"], ["--hour", "--live"]]
)
def test_options_that_mean_nothing_are_refused(options: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        screen.main(options)
    assert refused.value.code == 2


_KILLED = """
from benchmarks._terminal import on_terminal
import time
with on_terminal(["60"], 80, 24, module="http.server") as (pid, _):
    print(pid, flush=True)
    time.sleep(60)
"""


def test_a_program_ends_with_a_benchmark_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _KILLED], stdout=subprocess.PIPE) as bench:
        assert bench.stdout is not None
        program = psutil.Process(int(bench.stdout.readline()))
        bench.kill()
    deadline = time.monotonic() + 30.0
    while program.is_running() and program.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
