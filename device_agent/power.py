"""Energy of a device in the phases of a round, from a power sensor or from stated watts.

A sensor is read at the end of each phase and every `interval_s` of a round. Between two readings
power is linear. A phase in which a reading failed has no energy.

Jetson boards have INA3221 sensors, with one channel per rail:

JetPack 5 and later   `hwmon/in1_label`, `in1_input` in mV and `curr1_input` in mA
JetPack 4             `iio:device0/rail_name_0`, `in_power0_input` in mW

Source: Documentation/hwmon/ina3221.rst of Linux; NVIDIA Jetson Linux Developer Guide.
"""

import logging
import math
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import anyio
import anyio.to_thread

from fairbed.device_agent.cgroup import read_text
from fairbed.device_agent.config import PowerConfig
from fairbed.device_agent.host import Clock, EnergyMeter
from fairbed.device_agent.notify import Notify
from fairbed.wire.messages import MAX_WATTS

_log = logging.getLogger(__name__)

WHOLE_RAILS = ("VDD_IN", "POM_5V_IN")
"""Rails that carry the whole module; other boards have none, and the owner names rails to add."""

COMMAND_LIMIT_S = 2.0
"""A command that takes longer gives no reading."""

_WATTS = {"W": 1.0, "mW": 1e-3, "uW": 1e-6}
_TRANSFERS = ("download", "upload")

ReadWatts: TypeAlias = Callable[[], float | None]
"""Returns the power of the whole device, watts; None if it cannot be read. It raises nothing."""


class StatedPower:
    """Energy of a device whose power is stated and not measured.

    Args:
        transfer_w: Power during download and upload, watts; None is unknown.
        compute_w: Power during the other phases.
        transfer_range_w: Least and greatest published `transfer_w`; None if one is published.
        compute_range_w: The same of `compute_w`.
    """

    def __init__(
        self,
        transfer_w: float | None,
        compute_w: float | None,
        transfer_range_w: tuple[float, float] | None = None,
        compute_range_w: tuple[float, float] | None = None,
    ) -> None:
        self._transfer_w, self._compute_w = transfer_w, compute_w
        self._ranges_w = transfer_range_w, compute_range_w

    async def run(self) -> None:
        """Return at once: nothing is measured."""

    def begin(self, started_s: float) -> None:
        """A round begins."""

    def lap(self, phase: str, duration_s: float) -> float | None:
        """Return power x duration, joules."""
        watts = self._transfer_w if phase in _TRANSFERS else self._compute_w
        return None if watts is None else watts * duration_s

    def range_j(self, joules: Mapping[str, float]) -> tuple[float, float] | None:
        """Return the energy with the least and the greatest powers; None if none has a range.

        Energy is proportional to power.
        """
        if self._ranges_w == (None, None):
            return None
        low_j, high_j = 0.0, 0.0
        for phase, value in joules.items():
            at = 0 if phase in _TRANSFERS else 1
            watts = (self._transfer_w, self._compute_w)[at]
            low_w, high_w = self._ranges_w[at] or (watts, watts)
            if watts and low_w is not None and high_w is not None:
                low_j, high_j = low_j + value * low_w / watts, high_j + value * high_w / watts
        return low_j, high_j

    def end(self) -> None:
        """A round is over."""


class SensedPower:
    """Energy of a device with a power sensor.

    Args:
        read: Reads the sensor.
        clock: Clock of the agent.
        interval_s: Interval of readings in a round.
        is_slow: A reading takes long: it is not taken at the beginning of a round and the end of a
            phase, where the power is that of the last reading.
    """

    def __init__(
        self, read: ReadWatts, clock: Clock, interval_s: float, *, is_slow: bool = False
    ) -> None:
        self._read, self._clock, self._interval_s, self._is_slow = read, clock, interval_s, is_slow
        self._lock = threading.Lock()
        self._wakeup = Notify()
        self._rounds = 0
        """Rounds under way: a new one may begin before the one that it replaces has ended."""
        self._at = 0.0
        self._watts: float | None = None
        self._lap_j: float | None = 0.0
        """Energy since the last lap; None if a reading of it failed."""

    async def run(self) -> None:
        """Read the sensor once, and then during rounds, until cancelled."""
        await anyio.to_thread.run_sync(self.sample, abandon_on_cancel=True)
        while True:
            while self._rounds == 0:
                await self._wakeup.wait()
            await anyio.to_thread.run_sync(self.sample, abandon_on_cancel=True)
            await anyio.sleep(self._interval_s)

    def begin(self, started_s: float) -> None:
        """A round began: take the first reading, which is the power since `started_s`."""
        watts = self._watts if self._is_slow else self._reading()
        with self._lock:
            self._watts, self._at, self._lap_j = watts, started_s, 0.0
        self._rounds += 1
        self._wakeup.notify()

    def sample(self) -> None:
        """Take a reading."""
        watts = self._reading()
        with self._lock:
            self._advance(watts)

    def lap(self, phase: str, duration_s: float) -> float | None:
        """Return the energy since the last lap, joules; None if a reading failed."""
        watts = None if self._is_slow else self._reading()
        with self._lock:
            self._advance(self._watts if self._is_slow else watts)
            lap_j, self._lap_j = self._lap_j, 0.0
        return None if lap_j is None else min(lap_j, MAX_WATTS * duration_s)

    def range_j(self, joules: Mapping[str, float]) -> tuple[float, float] | None:
        """Return None: the error of the sensor is unknown."""
        return None

    def end(self) -> None:
        """A round is over: stop reading."""
        self._rounds -= 1

    def _advance(self, watts: float | None) -> None:
        """Add the energy up to now, at which the power is `watts`."""
        now, before = self._clock.now(), self._watts
        if before is None or watts is None or self._lap_j is None:
            self._lap_j = None
        else:
            self._lap_j += 0.5 * (before + watts) * max(0.0, now - self._at)
        self._at, self._watts = now, watts

    def _reading(self) -> float | None:
        watts = self._read()
        is_valid = watts is not None and math.isfinite(watts) and 0.0 <= watts <= MAX_WATTS
        return watts if is_valid else None


def rails_reader(root: Path, rails: Sequence[str]) -> ReadWatts | None:
    """Return a reader of the sum of INA3221 rails; None if the machine has none of them.

    Args:
        root: Root of the file system.
        rails: Names of the rails to add; rails that the machine lacks do not count.
    """
    power_mw: list[Path] = []
    volts_and_amps: list[tuple[Path, Path]] = []
    for folder in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        if (read_text(folder / "name") or "").startswith("ina3221"):
            volts_and_amps += [
                (folder / f"in{channel}_input", folder / f"curr{channel}_input")
                for channel in (1, 2, 3)
                if read_text(folder / f"in{channel}_label") in rails
            ]
    for folder in sorted((root / "sys/bus/i2c/drivers/ina3221x").glob("*/iio:device*")):
        power_mw += [
            folder / f"in_power{channel}_input"
            for channel in (0, 1, 2)
            if read_text(folder / f"rail_name_{channel}") in rails
        ]
    if not power_mw and not volts_and_amps:
        return None

    def read() -> float | None:
        milliwatts = [_number(path) for path in power_mw]
        for volts, amps in volts_and_amps:
            millivolts, milliamps = _number(volts), _number(amps)
            if millivolts is None or milliamps is None:
                return None
            milliwatts.append(millivolts * milliamps / 1e3)
        known = [value for value in milliwatts if value is not None]
        return sum(known) / 1e3 if len(known) == len(milliwatts) else None

    return read


def file_reader(path: Path, unit: str) -> ReadWatts:
    """Return a reader of a file whose first word is a power."""
    return lambda: _watts(read_text(path), unit)


def command_reader(command: Sequence[str], unit: str) -> ReadWatts:
    """Return a reader of a command whose first word of output is a power."""

    def read() -> float | None:
        try:
            found = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=COMMAND_LIMIT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return _watts(found.stdout.decode("utf-8", "replace"), unit)

    return read


def energy_meter(config: PowerConfig, clock: Clock, root: Path = Path("/")) -> EnergyMeter | None:
    """Return the meter that a configuration describes; None if the machine has no sensor."""
    if config.transfer_w is not None or config.compute_w is not None:
        return StatedPower(config.transfer_w, config.compute_w)
    if config.command:
        read: ReadWatts | None = command_reader(config.command, config.unit)
    elif config.file is not None:
        read = file_reader(Path(config.file).expanduser(), config.unit)
    else:
        read = rails_reader(root, config.rails or WHOLE_RAILS)
    is_set = bool(config.command or config.file or config.rails)
    if is_set and (read is None or read() is None):
        _log.warning("[power]: gives no power now; rounds without a reading have no energy")
    if read is None:
        return None
    return SensedPower(read, clock, config.interval_s, is_slow=bool(config.command))


def _watts(text: str | None, unit: str) -> float | None:
    words = (text or "").split()
    try:
        return float(words[0]) * _WATTS[unit] if words else None
    except ValueError:
        return None


def _number(path: Path) -> float | None:
    return _watts(read_text(path), "W")
