"""A machine with a virtual clock, and a device that is emulated on it."""

from fairbed.testbed.backends.cgroups.quota import Headroom
from fairbed.testbed.backends.gauges import Gauge
from fairbed.testbed.backends.launcher import EmulatedPace
from fairbed.testbed.emulation.cpu import RecentShare
from fairbed.testbed.emulation.device import EmulatedDevice
from fairbed.testbed.emulation.work import WorkCosts


def device(speed_ratio: float = 0.25, storage: float = 1e6, threads: int = 1) -> EmulatedDevice:
    return EmulatedDevice(
        title="A board",
        cores=4,
        memory_bytes=1 << 30,
        background_load=0.5,
        engine_threads=threads,
        speed_ratio=speed_ratio,
        storage_read_bytes_per_s=storage,
    )


class Machine:
    """A machine whose time passes only when it works or sleeps."""

    def __init__(self, wake_up_s: float = 0.0) -> None:
        self.now_s = 1000.0
        self.cpu_s = 5.0
        self._wake_up_s = wake_up_s
        """Processor time of each sleep."""

    def work(self, cpu_s: float, late_s: float = 0.0) -> None:
        self.cpu_s += cpu_s
        self.now_s += cpu_s + late_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.work(self._wake_up_s)

    def pace(
        self,
        emulated: EmulatedDevice,
        share: RecentShare | None = None,
        costs: WorkCosts | None = None,
        gauge: Gauge | None = None,
        headroom: Headroom | None = None,
    ) -> EmulatedPace:
        return EmulatedPace(
            emulated,
            share or RecentShare(),
            costs,
            gauge,
            headroom=headroom,
            wall=lambda: self.now_s,
            cpu=lambda: self.cpu_s,
            sleep=self.sleep,
        )
