"""Why a processor is kept from its full clock, as far as its system tells.

Raspberry Pi    the firmware's bits, from `soc:firmware/get_throttled`; a newer kernel without that
                file still tells of under-voltage, as an alarm of the sensor `rpi_volt`
any Linux       thermal cooling devices that limit the processor, Jetson's among them

Files are looked for once and read when asked; no reader ever raises.
"""

from dataclasses import dataclass, field
from pathlib import Path

from device_agent.cgroup import read_text

PI_BITS = {
    0: "under-voltage",
    1: "frequency-capped",
    2: "throttled",
    3: "soft-temperature-limit",
}
"""Live bits of the Raspberry Pi's firmware; the same from 16 on tell of the time since its start.
Source: raspberrypi/linux, issue 2367."""

COOLING = "cooling"
"""A cooling device holds the processor back."""

_PI_FILE = "sys/devices/platform/soc/soc:firmware/get_throttled"
_LIMITERS = ("cpufreq", "processor", "cpu-")
"""Words in the type of a cooling device that limits the processor."""


@dataclass(slots=True)
class ThrottleReader:
    """Reads the reasons of one machine."""

    root: Path = Path("/")
    _pi: Path | None = None
    _alarms: list[Path] = field(default_factory=list)
    _limits: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        pi = self.root / _PI_FILE
        self._pi = pi if read_text(pi) is not None else None
        for folder in sorted((self.root / "sys/class/hwmon").glob("hwmon*")):
            if read_text(folder / "name") == "rpi_volt":
                self._alarms.append(folder / "in0_lcrit_alarm")
        for folder in sorted((self.root / "sys/class/thermal").glob("cooling_device*")):
            kind = (read_text(folder / "type") or "").lower()
            if any(word in kind for word in _LIMITERS):
                self._limits.append(folder / "cur_state")

    def reasons(self) -> tuple[str, ...] | None:
        """Return what holds the processor back now; empty for nothing, None if nobody can tell."""
        found: set[str] = set()
        is_known = False
        if self._pi is not None:
            bits = _number(read_text(self._pi), base=16)
            is_known |= bits is not None
            found.update(pi_reasons(bits or 0))
        for paths, word in ((self._alarms, PI_BITS[0]), (self._limits, COOLING)):
            for path in paths:
                state = _number(read_text(path), base=10)
                is_known |= state is not None
                if state:
                    found.add(word)
        return tuple(sorted(found)) if is_known else None


def pi_reasons(bits: int) -> tuple[str, ...]:
    """Return what the live bits of a Raspberry Pi's `get_throttled` say."""
    return tuple(word for bit, word in PI_BITS.items() if bits >> bit & 1)


def _number(text: str | None, base: int) -> int | None:
    try:
        return int(text or "", base)
    except ValueError:
        return None
