"""An emulated host is as slow as its profile, and reports the values of its profile."""

import importlib
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest

import fairbed.device_agent
from fairbed import profiles
from fairbed.device_agent.config import AgentConfig
from fairbed.device_agent.host import Honest, Host, Section
from fairbed.device_agent.privacy import SeededNoise
from fairbed.device_agent.sensors import RealSensors, mu_cores
from fairbed.testbed.backends import fork_server
from fairbed.testbed.backends.cgroups.quota import Headroom, Quota
from fairbed.testbed.backends.gauges import (
    CLOCK_RATIO,
    CONTENDED_S,
    FROZEN_S,
    IS_WILLING,
    SPEED_RATIO,
    TEMPERATURE_CELSIUS,
    Gauges,
)
from fairbed.testbed.backends.launcher import SPEED_POLL_S, EmulatedPace, Launch, host_for, launch
from fairbed.testbed.emulation.cpu import RecentShare
from fairbed.testbed.emulation.device import EmulatedSensors, emulated_device
from fairbed.testbed.emulation.malicious import Attack, MaliciousDevice
from fairbed.testbed.emulation.work import StepCost, WorkCosts
from tests.testbed.paced_machine import Machine, device

ATTEMPTS = 12
"""Real pacing is tried again when this machine was too busy to emulate anything."""

CONTENDED_RATIO = 0.05


def test_a_section_lasts_as_long_as_on_the_device() -> None:
    machine = Machine()
    started = machine.now_s
    with machine.pace(device(0.25)).section("train") as meter:
        for _ in range(100):
            machine.work(0.005)
            meter.step(1)
    assert machine.now_s - started == pytest.approx(100 * 0.005 / 0.25)


STEP = StepCost(fixed_s=0.02, per_example_s=0.0)


@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize("is_charged_costs", [True, False])
def test_the_overhead_of_pauses_is_not_charged_to_the_device(
    steps: int, is_charged_costs: bool
) -> None:
    machine = Machine(wake_up_s=150e-6)
    costs = WorkCosts(train=STEP, evaluate=STEP)
    started = machine.now_s
    pace = machine.pace(device(0.05), costs=costs if is_charged_costs else None)
    with pace.section("train") as meter:
        for _ in range(steps):
            machine.work(0.02)
            meter.step(1)
    assert machine.now_s - started == pytest.approx(steps * 0.02 / 0.05, abs=2 * 150e-6)


COSTS = WorkCosts(
    train=StepCost(fixed_s=0.001, per_example_s=0.0002),
    evaluate=StepCost(fixed_s=0.0, per_example_s=0.0001),
)


def test_a_step_is_charged_its_calibrated_cost() -> None:
    machine = Machine()
    started = machine.now_s
    with machine.pace(device(0.25), costs=COSTS).section("train") as meter:
        for took_s in (0.003, 0.009, 0.004, 0.012):  # caches, other load
            machine.work(took_s)
            meter.step(20)
    assert machine.now_s - started == pytest.approx(4 * (0.001 + 20 * 0.0002) / 0.25)


def test_other_work_is_charged_its_processor_time() -> None:
    machine = Machine()
    started = machine.now_s
    with machine.pace(device(0.5, storage=1e6), costs=COSTS).section("evaluate") as meter:
        machine.work(0.007)
        meter.step(100)
        machine.work(0.002)
        meter.read(1_000)
        machine.work(0.003)
    with machine.pace(device(0.5), costs=COSTS).section("load"):
        machine.work(0.004)
    expected_s = (0.01 + 0.002 + 0.003) / 0.5 + 0.001 + 0.004 / 0.5
    assert machine.now_s - started == pytest.approx(expected_s)


def test_an_evaluation_is_charged_at_its_own_speed_and_has_the_quota_for_it(tmp_path: Path) -> None:
    machine, quota = Machine(), tmp_path / "cpu.max"
    quota.write_text("2500 10000")
    headroom = Headroom(Quota(tmp_path, 2, is_shared=True), lambda: 0.25)
    faster = msgspec.structs.replace(device(0.25), evaluation_speed=3.0)
    pace = machine.pace(faster, costs=COSTS, headroom=headroom)
    sections: tuple[Section, ...] = ("evaluate", "train")
    for name, cost, speed in zip(
        sections, (COSTS.evaluate, COSTS.train), (0.75, 0.25), strict=True
    ):
        began = machine.now_s
        with pace.section(name) as meter:
            assert quota.read_text() == f"{2 * speed * 10_000:.0f} 10000"
            machine.work(0.001)
            meter.step(20)
        assert machine.now_s - began == pytest.approx(cost.seconds(20) / speed)
    assert quota.read_text() == "2500 10000"


def test_steps_that_take_longer_here_than_on_the_device_make_it_late() -> None:
    machine, share = Machine(), RecentShare(time_constant_s=1e-9)
    started = machine.now_s
    with machine.pace(device(0.5), share, COSTS).section("train") as meter:
        for _ in range(100):
            machine.work(0.02)  # the device: 0.01
            meter.step(20)
    assert machine.now_s - started == pytest.approx(100 * 0.02)
    assert share.value == pytest.approx(0.5)


def test_in_a_sandbox_the_quota_is_raised_and_every_step_lasts_as_long_as_on_the_device(
    tmp_path: Path,
) -> None:
    machine, quota = Machine(), tmp_path / "cpu.max"
    quota.write_text("2500 10000")
    headroom = Headroom(Quota(tmp_path, 2, is_shared=True), lambda: 0.25)
    with machine.pace(device(0.25), headroom=headroom).section("train") as meter:
        assert quota.read_text() == "5000 10000"
        for _ in range(10):
            started = machine.now_s
            machine.work(0.005)
            meter.step(1)
            assert machine.now_s - started == pytest.approx(0.005 / 0.25)
    assert quota.read_text() == "2500 10000"


def test_work_after_the_last_step_is_slowed_too() -> None:
    machine = Machine()
    started = machine.now_s
    with machine.pace(device(0.1)).section("encode"):
        machine.work(0.003)
    assert machine.now_s - started == pytest.approx(0.03)


def test_idle_time_gives_no_credit() -> None:
    machine = Machine()
    pace = machine.pace(device(0.5))
    with pace.section("load"):
        machine.work(0.1)
    machine.sleep(60.0)
    started = machine.now_s
    with pace.section("train") as meter:
        machine.work(0.1)
        meter.step(1)
    assert machine.now_s - started == pytest.approx(0.2)


def test_reading_is_as_slow_as_the_storage() -> None:
    machine = Machine()
    started = machine.now_s
    with machine.pace(device(storage=2e6)).section("load") as meter:
        meter.read(1_000_000)
    assert machine.now_s - started == pytest.approx(0.5)


def test_the_gauge_has_the_time_for_which_a_device_waited(tmp_path: Path) -> None:
    machine = Machine()
    gauge = Gauges(tmp_path / "gauges", ["a"])["a"]
    pace = machine.pace(device(0.25), gauge=gauge)
    assert gauge[CONTENDED_S] == 0.0
    for _ in range(2):
        with pace.section("train") as meter:
            machine.work(0.1, late_s=0.9)  # the device: 0.4 s
            meter.step(1)
    assert gauge[CONTENDED_S] == pytest.approx(2 * 0.6)


def test_the_gauge_has_the_waiting_time_before_a_section_ends(tmp_path: Path) -> None:
    machine = Machine()
    gauge = Gauges(tmp_path / "gauges", ["a"])["a"]
    with machine.pace(device(0.25), gauge=gauge).section("train") as meter:
        machine.work(0.1, late_s=0.9)
        meter.step(1)
        assert gauge[CONTENDED_S] == pytest.approx(0.6)
        machine.work(0.1)  # the device: 0.4 s, so up to 0.3 s are caught up
        meter.step(1)
        assert gauge[CONTENDED_S] == pytest.approx(0.35)


def test_a_section_that_fails_is_left_at_once() -> None:
    machine = Machine()
    started = machine.now_s
    with (
        suppress(ZeroDivisionError),
        machine.pace(device(0.01)).section("train"),
    ):
        machine.work(0.1)
        raise ZeroDivisionError
    assert machine.now_s - started == pytest.approx(0.1)


def test_a_section_follows_the_current_speed(tmp_path: Path) -> None:
    machine = Machine()
    gauge = Gauges(tmp_path / "gauges", ["pi"])["pi"]
    gauge[SPEED_RATIO] = 0.5
    slept: list[float] = []

    def sleep(duration_s: float) -> None:
        machine.sleep(duration_s)
        slept.append(duration_s)
        if sum(slept) >= 1.0:
            gauge[SPEED_RATIO] = 0.25  # it throttles in the middle of a step

    pace = EmulatedPace(
        device(0.5),
        RecentShare(),
        gauge=gauge,
        wall=lambda: machine.now_s,
        cpu=lambda: machine.cpu_s,
        sleep=sleep,
    )
    started = machine.now_s
    with pace.section("train") as meter:
        machine.work(1.0)  # 2 s at 0.5; half of it is left when 1 s has been slept
        meter.step(1)
    done_at_half = (1.0 + sum(slept[:10])) * 0.5
    assert machine.now_s - started == pytest.approx(
        1.0 + sum(slept[:10]) + (1.0 - done_at_half) / 0.25
    )
    assert max(slept) <= SPEED_POLL_S


def test_frozen_time_is_not_lateness(tmp_path: Path) -> None:
    machine = Machine()
    gauge = Gauges(tmp_path / "gauges", ["pi"])["pi"]
    pace = EmulatedPace(
        device(0.5),
        RecentShare(),
        gauge=gauge,
        wall=lambda: machine.now_s,
        cpu=lambda: machine.cpu_s,
        sleep=machine.sleep,
    )
    started = machine.now_s
    with pace.section("train") as meter:
        machine.work(0.5)
        machine.sleep(60.0)
        gauge[FROZEN_S] += 60.0
        meter.step(1)
    assert machine.now_s - started == pytest.approx(1.0 + 60.0)
    assert gauge[CONTENDED_S] == pytest.approx(0.0)


def test_a_hot_device_reports_its_clock_and_its_temperature(tmp_path: Path) -> None:
    gauge = Gauges(tmp_path / "gauges", ["pi"])["pi"]
    sensors = host_for(device(0.5), gauge=gauge).sensors
    assert (sensors.clock_ratio(), sensors.temperature_celsius()) == (1.0, None)
    gauge[SPEED_RATIO], gauge[CLOCK_RATIO], gauge[TEMPERATURE_CELSIUS] = 0.3, 0.6, 81.0
    assert (sensors.clock_ratio(), sensors.temperature_celsius()) == (0.6, 81.0)
    assert mu_cores(sensors.free_cores(), 1, sensors.clock_ratio()) == pytest.approx(0.6)
    gauge[SPEED_RATIO] = 0.15  # other work takes half of the remaining speed
    assert mu_cores(sensors.free_cores(), 1, sensors.clock_ratio()) == pytest.approx(0.3)


def test_willingness_is_read_from_the_gauge_without_a_profile(tmp_path: Path) -> None:
    gauge = Gauges(tmp_path / "gauges", ["plain"])["plain"]
    sensors = host_for(None, gauge=gauge).sensors
    assert isinstance(sensors, RealSensors)
    assert sensors.is_willing()
    gauge[IS_WILLING] = 0.0
    assert not sensors.is_willing()


def test_contention_lowers_mu() -> None:
    machine = Machine()
    sensors = EmulatedSensors(device())
    assert mu_cores(sensors.free_cores(), 1, sensors.clock_ratio()) == 1.0
    with machine.pace(device(0.5), sensors.share).section("train") as meter:
        for _ in range(100):
            machine.work(0.1, late_s=0.3)  # twice as long as the device needs
            meter.step(1)
    mu = mu_cores(sensors.free_cores(), 1, sensors.clock_ratio())
    assert 0.45 < mu < 0.65


def test_an_emulated_device_reports_its_profile() -> None:
    sensors = host_for(emulated_device(profiles.load("raspberry-pi-3b-plus"))).sensors
    assert sensors.cores() == 4
    assert sensors.memory_bytes() == 1 << 30
    assert sensors.free_cores() == pytest.approx(3.95)
    assert sensors.clock_ratio() == 1.0
    assert sensors.temperature_celsius() is None
    assert sensors.board() == profiles.load("raspberry-pi-3b-plus").title


def test_the_speed_ratio_is_relative_to_this_machine() -> None:
    pi = profiles.load("raspberry-pi-4b")
    assert emulated_device(pi).speed_ratio == pytest.approx(pi.core_speed)
    assert emulated_device(pi, host_core_speed=2.0).speed_ratio == pytest.approx(
        pi.core_speed / 2.0
    )
    with pytest.raises(ValueError, match=r"^emulation.host_core_speed must be > 0, got 0.0"):
        emulated_device(pi, host_core_speed=0.0)


def test_without_a_device_the_host_is_the_real_one() -> None:
    assert isinstance(host_for(None).sensors, RealSensors)


def test_noise_of_every_emulated_device_repeats(tmp_path: Path) -> None:
    gauge = Gauges(tmp_path / "gauges", ["plain"])["plain"]
    for host in (host_for(None), host_for(None, gauge=gauge), host_for(device(0.5))):
        assert isinstance(host.noise, SeededNoise)


def train_for(duration_s: float, q: float) -> tuple[float, float]:
    """Train at speed q; return the work done, and the share of q that the device really had.

    Work is processor time, not steps: neighbours on the same core change the time of a step.
    """
    weights = np.random.default_rng(0).random((128, 128))
    share = RecentShare(time_constant_s=1e-9)  # remembers the last section only
    cpu_s, ends = time.thread_time(), time.monotonic() + duration_s
    with EmulatedPace(device(q), share).section("train") as meter:
        while time.monotonic() < ends:
            weights = np.tanh(weights)
            meter.step(1)
    return time.thread_time() - cpu_s, share.value


@pytest.mark.full
@pytest.mark.alone
def test_twice_the_speed_does_twice_the_work() -> None:
    # A ratio within one run, and only if neither side was contended.
    ratios: list[float] = []
    for _ in range(ATTEMPTS):
        runs = [train_for(0.3, q) for q in (0.25, 0.5, 0.25)]
        if min(share for _, share in runs) > 1.0 - CONTENDED_RATIO:
            slow, fast, again = (work for work, _ in runs)
            ratios.append(2.0 * fast / (slow + again))
        if len(ratios) == 3:
            assert np.median(ratios) == pytest.approx(2.0, rel=0.15)
            return
    pytest.skip("this machine was too busy to emulate anything")


def test_the_launcher_appends_an_error_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "device.log"
    log.write_text("before\n", encoding="utf-8")
    spec = Launch(
        agent=AgentConfig(broker_url="http://nowhere", name="device"),
        device=device(),
        log_file=str(log),
    )
    done = subprocess.run(
        [sys.executable, "-m", "fairbed.testbed.backends.launcher", str(os.getpid())],
        input=msgspec.json.encode(spec) + b"\n",
        capture_output=True,
        cwd=Path(__file__).parents[3],
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
    first, *_, last = log.read_text(encoding="utf-8").splitlines()
    assert first == "before"
    assert last.startswith("device: ConfigError: broker address: must begin with mqtt://")


@pytest.mark.parametrize(("late_s", "lines"), [(0.0, 0), (0.02, 0), (0.5, 1)])
def test_a_section_that_was_contended_gets_a_line_in_the_log(
    late_s: float, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    with machine.pace(device(0.5)).section("train"):
        machine.work(0.001, late_s)
    assert len(caplog.records) == lines


def test_only_a_launch_of_the_testbed_makes_an_agent_malicious(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts: list[Host] = []
    monkeypatch.setattr(
        "fairbed.device_agent.process.run_agent", lambda config, host, **keys: hosts.append(host)
    )
    agent = AgentConfig(broker_url="mqtt://nowhere", name="pi-1")
    attack = Attack(kind="model-replacement", scale=10.0)
    for chosen in (None, attack):
        line = Launch(agent=agent, device=None, attack=chosen, log_file=str(tmp_path / "log"))
        assert launch(msgspec.json.decode(msgspec.json.encode(line), type=Launch)) == 0
    honest, malicious = (host.behaviour for host in hosts)
    assert isinstance(honest, Honest)
    assert isinstance(malicious, MaliciousDevice)
    assert malicious.attack == attack
    source = Path(fairbed.device_agent.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in source.rglob("*.py")]
    assert len(texts) > 20
    assert not [text for text in texts if "malicious" in text.lower() or "attack" in text.lower()]


def test_an_emulated_device_reports_the_power_of_its_profile() -> None:
    """2.5 W at rest, 5.2 W with four cores busy, 3.1 W in transfers; its own seconds."""
    pi = emulated_device(profiles.load("raspberry-pi-4b"))
    for device_of_profile in (pi, pi.dilated(4.0)):
        energy = host_for(device_of_profile).energy
        assert energy is not None
        assert energy.lap("train", 2.0) == pytest.approx(2.0 * (2.5 + 2.7 / 4))
        assert energy.lap("upload", 2.0) == pytest.approx(6.2)
    phone = host_for(emulated_device(profiles.load("phone-low"))).energy
    assert phone is not None
    assert phone.lap("train", 2.0) is None


def test_torch_is_imported_before_the_first_agent_that_may_need_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(os, "fork", lambda: 7)
    monkeypatch.setattr(fork_server, "_freeze", lambda: None)
    imported = list[str]()
    monkeypatch.setattr(importlib, "import_module", imported.append)
    for models, wanted in (((), []), (("rows",), ["torch"])):
        agent = AgentConfig(broker_url="mqtt://b", name="pi", allow_models=models)
        launch = Launch(agent=agent, device=None, attack=None, log_file=str(tmp_path / "log"))
        assert fork_server.fork(launch) == 7
        assert imported == wanted
