"""Runs one agent on an emulated device, by passing it a `Host` that emulates a profile.

A backend starts it as `python -m fairbed.testbed.backends.launcher` with a `Launch` in JSON on
stdin, or in a fork of the fork server. The agent itself is the one that runs on physical devices.
"""

import importlib
import logging
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec import Struct

from fairbed.device_agent.config import AgentConfig
from fairbed.device_agent.errors import one_line
from fairbed.device_agent.host import ClientPlace, Host, Meter, Section
from fairbed.device_agent.power import StatedPower
from fairbed.device_agent.privacy import SeededNoise
from fairbed.device_agent.sensors import MonotonicClock, real_host
from fairbed.testbed.backends.cgroups.quota import Headroom, Quota
from fairbed.testbed.backends.gauges import (
    CLOCK_RATIO,
    CONTENDED_S,
    FROZEN_S,
    IS_WILLING,
    SPEED_RATIO,
    TEMPERATURE_CELSIUS,
    Gauge,
    GaugeAddress,
)
from fairbed.testbed.backends.sandbox import Sandbox, enter
from fairbed.testbed.emulation.cpu import MIN_SLEEP_S, PacedSection, RecentShare
from fairbed.testbed.emulation.device import EmulatedDevice, EmulatedSensors, SensorReadings
from fairbed.testbed.emulation.malicious import Attack, MaliciousDevice
from fairbed.testbed.emulation.quota import MIN_PERIOD_US
from fairbed.testbed.emulation.work import StepCost, WorkCosts
from fairbed.testbed.host.dilation import DilatedClock, loop_factory
from fairbed.testbed.host.guard import die_with_parent
from fairbed.wire.console import print_line
from fairbed.wire.transport.base import KEEPALIVE_S

LATE_RATIO = 0.05
LATE_S = 0.05
"""A section that exceeds both limits of lateness is logged."""

SPEED_POLL_S = 0.1
"""Interval at which a sleeping device reads its speed, seconds."""

_WARM = (
    "fairbed.device_agent.process",
    "fairbed.device_agent.training_work",
    "anyio._backends._asyncio",
    "anyio._core._signals",
    "encodings.ascii",
    "mmap",
    "numpy.random",
)
"""Modules that an agent imports, at its start or for its first task."""

_log = logging.getLogger(__name__)

Clock = Callable[[], float]
Sleep = Callable[[float], None]


class Launch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of one agent process."""

    agent: AgentConfig
    device: EmulatedDevice | None
    """None is this machine, not slowed."""
    attack: Attack | None = None
    """Malicious behaviour; None is honest."""
    costs: WorkCosts | None = None
    """Costs that steps are charged; None charges their processor time."""
    gauge: GaugeAddress | None = None
    """Numbers shared with the backend; None shares none."""
    sandbox: Sandbox | None = None
    """Control groups and network of the device; None is those of the parent."""
    client_server: str | None = None
    """Socket of the server that forks clients; None: the agent starts its own."""
    log_file: str
    """File to which stdout and stderr are appended."""


class _PacedMeter:
    """Sleeps in the working thread for as long as the emulated device would still compute."""

    def __init__(
        self,
        section: PacedSection,
        cost: Callable[[int | None], StepCost | None],
        gauge: Gauge | None,
        wall: Clock,
        cpu: Clock,
        sleep: Sleep,
        speed: Callable[[], float],
        headroom: Headroom | None = None,
    ) -> None:
        self._section, self._cost = section, cost
        self._gauge, self._headroom = gauge, headroom
        self._contended_before_s = 0.0 if gauge is None else gauge[CONTENDED_S]
        self._wall, self._cpu, self._sleep, self._speed = wall, cpu, sleep, speed
        self._uncharged_s = 0.0
        """Processor time that the device is not charged: the excess of steps over their cost, and
        the overhead of the pauses."""

    def step(self, n_examples: int, length: int | None = None) -> None:
        cost = self._cost(length)
        if cost is None:
            self.read(0)
            return
        charged_s = self._section.cpu + cost.seconds(n_examples)
        self._uncharged_s = self._cpu() - charged_s
        self._account(charged_s, 0)

    def read(self, n_bytes: int) -> None:
        self._account(self._charged(), n_bytes)

    def _account(self, charged_s: float, n_bytes: int) -> None:
        self._pause(self._section.advance(self._wall(), charged_s, n_bytes))
        self._section.set_speed(self._wall(), self._speed())
        if self._headroom is not None:
            self._headroom.follow()

    def finish(self) -> None:
        self._pause(self._section.finish(self._wall(), self._charged()))
        self._section.advance(self._wall(), self._charged())

    def _charged(self) -> float:
        return self._cpu() - self._uncharged_s

    def _pause(self, duration_s: float) -> None:
        """Sleep for a time deficit; recompute the rest of it when the speed changes."""
        section, used_s = self._section, self._cpu()
        if self._gauge is not None:
            self._gauge[CONTENDED_S] = self._contended_before_s + section.late_s
        ends = section.now + duration_s
        while (left_s := ends - self._wall()) > 0.0:
            self._sleep(min(left_s, SPEED_POLL_S))
            speed_ratio = self._speed()
            if speed_ratio != section.speed_ratio:
                section.set_speed(self._wall(), speed_ratio)
                ends = section.now + section.finish(section.now, section.cpu)
        self._uncharged_s += self._cpu() - used_s


class EmulatedPace:
    """Slows compute sections to the speed of a device; satisfies `device_agent.host.Pace`.

    Args:
        device: The device to emulate.
        share: Updated with the effective share of the device's speed.
        costs: Costs that steps are charged; None charges their processor time.
        gauge: Has the current speed, and receives the time for which the device waited for this
            machine; None is the constant speed of the profile.
        headroom: Raises the device's quota, which would slow it a second time; None is no quota.
        wall: Monotonic seconds.
        cpu: Processor seconds of the work; None is those of the working thread, or of the whole
            process when the engine uses several threads.
        sleep: Sleeps in the working thread, seconds.
    """

    def __init__(
        self,
        device: EmulatedDevice,
        share: RecentShare,
        costs: WorkCosts | None = None,
        gauge: Gauge | None = None,
        *,
        headroom: Headroom | None = None,
        wall: Clock = time.monotonic,
        cpu: Clock | None = None,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._device, self._share, self._costs, self._gauge = device, share, costs, gauge
        if gauge is not None and math.isnan(gauge[CONTENDED_S]):
            gauge[CONTENDED_S] = 0.0
        self._headroom = headroom
        self._clock, self._sleep = wall, sleep
        self._cpu = cpu or (time.thread_time if device.engine_threads == 1 else time.process_time)

    @contextmanager
    def section(self, name: Section) -> Iterator[Meter]:
        """Enter a compute section; leaving sleeps the rest of its time deficit."""
        headroom, costs = self._headroom, self._costs
        faster = self._device.evaluation_speed if name == "evaluate" else 1.0

        def speed() -> float:
            return faster * self._speed()

        with nullcontext() if headroom is None else headroom.lifted(faster):
            section = PacedSection(
                speed_ratio=speed(),
                storage_read_bytes_per_s=self._device.storage_read_bytes_per_s,
                now=self._wall(),
                cpu=self._cpu(),
                min_sleep_s=MIN_SLEEP_S if headroom is None else MIN_PERIOD_US * 1e-6,
            )
            meter = _PacedMeter(
                section,
                lambda length: None if costs is None else costs.of(name, length),
                self._gauge,
                self._wall,
                self._cpu,
                self._sleep,
                speed,
                headroom,
            )
            yield meter
            meter.finish()
        self._share.add(section)
        if section.contended_ratio > LATE_RATIO and section.late_s > LATE_S:
            _log.warning(
                "%s took %.3f s and waited for this machine %.0f %% of it: the machine is too busy",
                name,
                section.wall_s,
                100.0 * section.contended_ratio,
            )

    def _speed(self) -> float:
        return _speed(self._device, self._gauge)

    def _wall(self) -> float:
        """Return monotonic seconds without the time for which the device was frozen."""
        return self._clock() - (0.0 if self._gauge is None else self._gauge[FROZEN_S])


def _speed(device: EmulatedDevice, gauge: Gauge | None) -> float:
    """Return the current speed: the gauge's, or the profile's if the gauge has none."""
    now = math.nan if gauge is None else gauge[SPEED_RATIO]
    return device.speed_ratio if math.isnan(now) else now


def host_for(
    device: EmulatedDevice | None,
    costs: WorkCosts | None = None,
    gauge: Gauge | None = None,
    sandbox: Sandbox | None = None,
) -> Host:
    """Return the host that emulates a device; None is this machine with the gauge's willingness."""
    if device is None:
        real = real_host() if gauge is None else real_host(lambda: gauge[IS_WILLING] > 0.0)
        return replace(real, noise=SeededNoise())
    clock = MonotonicClock() if device.dilation == 1.0 else DilatedClock(device.dilation)
    sensors = EmulatedSensors(device, readings=None if gauge is None else _gauge_reader(gauge))
    headroom = None if sandbox is None else _headroom(device, gauge, sandbox)
    pace = EmulatedPace(device, sensors.share, costs, gauge, headroom=headroom)
    energy = StatedPower(
        device.transfer_w, device.compute_w, device.transfer_range_w, device.compute_range_w
    )
    return Host(clock=clock, pace=pace, sensors=sensors, energy=energy, noise=SeededNoise())


def _headroom(device: EmulatedDevice, gauge: Gauge | None, sandbox: Sandbox) -> Headroom:
    quota = Quota(Path(sandbox.quota_folder), sandbox.quota_version, is_shared=True)
    return Headroom(quota, lambda: _speed(device, gauge))


def _client_place(spec: Launch, gauge: Gauge | None) -> ClientPlace:
    """Return where the client of this device runs, and how fast."""
    from fairbed.testbed.backends.client_place import EmulatedClients

    device = spec.device
    return EmulatedClients(
        spec.client_server,
        spec.sandbox,
        None if device is None else lambda: _speed(device, gauge),
        gauge,
        1.0 if device is None else device.dilation,
    )


def _gauge_reader(gauge: Gauge) -> Callable[[], SensorReadings]:
    def read() -> SensorReadings:
        celsius = gauge[TEMPERATURE_CELSIUS]
        return SensorReadings(
            speed_ratio=gauge[SPEED_RATIO],
            clock_ratio=gauge[CLOCK_RATIO],
            temperature_celsius=None if math.isnan(celsius) else celsius,
            is_willing=gauge[IS_WILLING] > 0.0,
        )

    return read


def launch(spec: Launch) -> int:
    """Run the agent until it ends; return the exit status: 0 done, 1 failed."""
    from fairbed.device_agent.log import log_to_stderr
    from fairbed.device_agent.process import run_agent

    log_to_stderr(spec.agent.log_level)
    if spec.device is not None:
        _log.info(
            "%s emulates %s at %.3f cores of this machine",
            spec.agent.name,
            spec.device.title,
            spec.device.speed_ratio,
        )
    gauge = None if spec.gauge is None else Gauge.open(spec.gauge)
    dilation = 1.0 if spec.device is None else spec.device.dilation
    host = host_for(spec.device, spec.costs, gauge, spec.sandbox)
    if spec.agent.clients:
        host = replace(host, clients=_client_place(spec, gauge))
    if spec.attack is not None:
        host = replace(host, behaviour=MaliciousDevice(spec.attack))
    try:
        run_agent(
            spec.agent,
            host,
            loop_factory=loop_factory(dilation),
            keepalive_s=round(KEEPALIVE_S * dilation),
        )
    except KeyboardInterrupt:
        return 0
    except Exception as exc:
        print_line(f"{spec.agent.name}: {type(exc).__name__}: {one_line(exc)}")
        return 1
    return 0


def redirect_output(log_file: str) -> None:
    """Append stdout and stderr of this process to a file, and read stdin from /dev/null.

    Raises:
        OSError: The file cannot be written.
    """
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for opened in (log, nothing):
        os.close(opened)


def _is_inside(name: str, sandbox: Sandbox) -> bool:
    """Enter the device's sandbox; return whether that worked. The agent must not run outside."""
    try:
        enter(sandbox)
    except (OSError, RuntimeError) as exc:
        print_line(f"{name}: cannot enter its sandbox: {exc}")
        return False
    return True


def run_and_exit(spec: Launch) -> NoReturn:
    """Run the agent in this process, then end the process."""
    status = 1
    try:
        redirect_output(spec.log_file)
        if spec.sandbox is None or _is_inside(spec.agent.name, spec.sandbox):
            status = launch(spec)
    except BaseException:  # must not unwind into the code of the fork server
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def warm() -> None:
    """Import what an agent imports at its start or with its first task; look at this machine.

    Forks have what is installed, and compiled patterns, in common.
    """
    import numpy as np

    from fairbed.device_agent.engines.onnx import load_runtime
    from fairbed.device_agent.errors import EngineError
    from fairbed.device_agent.installed import engine_version, known_rules
    from fairbed.device_agent.memory import defer_urllib

    defer_urllib()
    for module in _WARM:
        importlib.import_module(module)
    real_host()
    np.lib.NumpyVersion(np.__version__)  # compiles a pattern, as a session does at its first step
    known_rules(())
    with suppress(EngineError):  # each agent reports it
        engine_version()
        load_runtime()


def main() -> NoReturn:
    """Run one agent from a `Launch` on stdin or in a file.

    The first argument is the parent's process id, the optional second the file, such as a FIFO. It
    is opened when this process is warm, so that the device does not slow its start.
    """
    die_with_parent(int(sys.argv[1]))
    pipe = sys.argv[2:]
    if pipe:
        warm()
        line = Path(pipe[0]).read_bytes()
    else:
        line = sys.stdin.buffer.readline()
    run_and_exit(msgspec.json.decode(line, type=Launch))


if __name__ == "__main__":
    main()
