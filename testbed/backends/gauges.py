"""Numbers that devices and their backend share through a memory-mapped file.

    a row per device:    SPEED_RATIO   CONTENDED_S   CLOCK_RATIO   TEMPERATURE_CELSIUS
                         IS_WILLING    FROZEN_S

Each number has one writer, and each write is atomic: a reader gets the old or the new value.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

SPEED_RATIO: Literal[0] = 0
"""Written by the backend: speed of the processor in cores of this machine; NaN is the profile's."""
CONTENDED_S: Literal[1] = 1
"""Written by the device: time for which it waited for this machine since its first start; NaN is
unknown."""
CLOCK_RATIO: Literal[2] = 2
"""Written by the backend: current clock / nominal clock."""
TEMPERATURE_CELSIUS: Literal[3] = 3
"""Written by the backend; NaN is unknown."""
IS_WILLING: Literal[4] = 4
"""Written by the backend: 1 while the owner lets the device take part, else 0."""
FROZEN_S: Literal[5] = 5
"""Written by the backend: total time for which the device was frozen."""

Column: TypeAlias = Literal[0, 1, 2, 3, 4, 5]

_COLUMNS = 6


class GaugeAddress(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The location of a device's row."""

    path: str
    row: int
    rows: int
    """Rows of the whole file."""


class Gauge:
    """The row of one device."""

    def __init__(self, numbers: npt.NDArray[np.float64]) -> None:
        self._numbers = numbers

    @classmethod
    def open(cls, address: GaugeAddress) -> "Gauge":
        """Map a device's row of a file that `Gauges` has made.

        Raises:
            OSError: There is no such file.
        """
        return cls(_mapped(Path(address.path), address.rows, "r+")[address.row])

    def __getitem__(self, column: Column) -> float:
        """Return one number."""
        return float(self._numbers[column])

    def __setitem__(self, column: Column, value: float) -> None:
        """Write one number."""
        self._numbers[column] = value


class Gauges:
    """The rows of a fleet, for its backend."""

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        """Create the file: numbers are unknown, clocks nominal, and all devices willing.

        Raises:
            OSError: The file cannot be written.
        """
        self._rows = {name: row for row, name in enumerate(names)}
        self._path = path
        self._numbers = _mapped(path, max(len(self._rows), 1), "w+")
        self._gauges = {name: Gauge(self._numbers[row]) for name, row in self._rows.items()}
        self._numbers[:] = np.nan
        self._numbers[:, CLOCK_RATIO] = self._numbers[:, IS_WILLING] = 1.0
        self._numbers[:, FROZEN_S] = 0.0

    def __getitem__(self, name: str) -> Gauge:
        """Return a device's row."""
        return self._gauges[name]

    def address(self, name: str) -> GaugeAddress:
        """Return the location at which the device itself maps its row."""
        rows = self._numbers.shape[0]
        return GaugeAddress(path=str(self._path), row=self._rows[name], rows=rows)


def _mapped(path: Path, rows: int, mode: Literal["r+", "w+"]) -> npt.NDArray[np.float64]:
    return np.asarray(np.memmap(path, dtype=np.float64, mode=mode, shape=(rows, _COLUMNS)))
