"""Telemetry of a device: sends its context every second and on change; rarely without a run."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from fairbed.device_agent.host import Clock, Host
from fairbed.device_agent.notify import Notify
from fairbed.device_agent.publisher import DevicePublisher
from fairbed.device_agent.sensors import mu_cores
from fairbed.device_agent.state.lifecycle import Phase
from fairbed.device_agent.state.link_estimate import LinkEstimate
from fairbed.device_agent.worker import TrainingThread
from fairbed.wire.messages import (
    ABSOLUTE_ZERO_CELSIUS,
    MAX_CELSIUS,
    MAX_CORES,
    MAX_SECONDS,
    Context,
)

MIN_GAP_S = 0.25
"""Shortest interval between contexts that report a new phase: a round of 0.1 s has eight phases.
It also applies to the end of a round that the coordinator confirmed. A change of readiness and any
other return to idle are reported without delay."""

PHASE_DELAY_S = 0.05
"""Delay of the report of a new phase, so that the report does not delay the work."""

WAITING_S = 30.0
"""Interval of contexts while no coordinator is online: only a lab notes them, as a contact. One per
second would be most of what a waiting agent costs."""


class Telemetry:
    """Sends contexts at QoS 0: the next context replaces a lost one."""

    def __init__(
        self,
        host: Host,
        publisher: DevicePublisher,
        worker: TrainingThread,
        link: LinkEstimate,
        *,
        boot: int,
        engine_threads: int,
        period_s: float,
        state: Callable[[], tuple[Phase, bool]],
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        self.period_s = period_s
        """Interval of contexts without a change, seconds."""
        self._host = host
        self._publisher = publisher
        self._worker = worker
        self._link = link
        self._boot = boot
        self._engine_threads = engine_threads
        self._state = state
        self._on_sent = on_sent
        self._cpu = CpuMeter(host.clock)
        self._wakeup = Notify()
        self._seq = 0
        self._sent_at = float("-inf")
        self._due_at = float("-inf")

    async def run(self) -> None:
        """Send contexts until cancelled; without a link they are dropped."""
        clock = self._host.clock
        while True:
            while (left_s := self._due_at - clock.now()) > 0.0:
                await self._wakeup.wait(left_s)
            self._sent_at = clock.now()
            self._due_at = self._sent_at + self._interval_s
            await self._publisher.send(self.context(), qos=0)
            self._on_sent()

    def send_now(self) -> None:
        """Send at once: readiness changed, or the device became idle for another reason."""
        self._send_by(self._host.clock.now())

    def send_next(self) -> None:
        """Send after the shortest interval: the device became idle, as the coordinator expects."""
        self._send_by(max(self._gap_at, self._host.clock.now()))

    def send_soon(self) -> None:
        """Send after a short delay: the phase has changed."""
        self._send_by(max(self._gap_at, self._host.clock.now() + PHASE_DELAY_S))

    @property
    def next_s(self) -> float:
        """Time of the next context without a change, on the host's clock."""
        return self._due_at

    @property
    def _interval_s(self) -> float:
        phase, _ = self._state()
        is_waiting = phase in (Phase.OFFLINE, Phase.WAITING)
        return max(self.period_s, WAITING_S) if is_waiting else self.period_s

    @property
    def _gap_at(self) -> float:
        return self._sent_at + min(MIN_GAP_S, self.period_s)

    def context(self) -> Context:
        """Return the current context of the device."""
        sensors, now = self._host.sensors, self._host.clock.now()
        phase, is_ready = self._state()
        free_cores, clock_ratio = sensors.free_cores(), sensors.clock_ratio()
        throttled = sensors.throttled()
        self._seq += 1
        return Context(
            boot=self._boot,
            seq=self._seq,
            mu_cores=mu_cores(free_cores, self._engine_threads, clock_ratio),
            downlink_bps=self._link.downlink_bps,
            uplink_bps=self._link.uplink_bps,
            link_age_s=_at_most(self._link.age_s(now), MAX_SECONDS),
            is_willing=sensors.is_willing(),
            is_ready=is_ready,
            n_k=self._worker.n_k,
            is_warm=self._worker.is_warm,
            phase=str(phase),
            cpu_ratio=_at_most(self._cpu.read(), MAX_CORES),
            rss_bytes=rss_bytes(),
            temperature_celsius=_possible(sensors.temperature_celsius()),
            free_cores=free_cores,
            clock_ratio=clock_ratio or None,
            throttled=throttled,
        )

    def _send_by(self, instant: float) -> None:
        if instant < self._due_at:
            self._due_at = instant
            self._wakeup.notify()


def _at_most(value: float | None, limit: float) -> float | None:
    return None if value is None else min(value, limit)


def _possible(celsius: float | None) -> float | None:
    """Return a temperature; None for that of a broken sensor, which no message may carry."""
    is_possible = celsius is not None and ABSOLUTE_ZERO_CELSIUS <= celsius <= MAX_CELSIUS
    return celsius if is_possible else None


class CpuMeter:
    """CPU use of this process since the previous reading, in cores."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = (clock.now(), time.process_time())

    def read(self) -> float | None:
        """Return the cores used since the previous call; None if no time has passed."""
        last, last_cpu_s = self._last
        now, cpu_s = self._clock.now(), time.process_time()
        self._last = (now, cpu_s)
        return (cpu_s - last_cpu_s) / (now - last) if now > last else None


def rss_bytes(statm: Path = Path("/proc/self/statm")) -> int | None:
    """Return the resident memory of this process; None where the system does not report it."""
    try:
        return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
