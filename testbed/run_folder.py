"""What a run may leave in its folder, and what becomes of it when the run never began."""

import shutil
from pathlib import Path

from testbed.endpoint import FILE as ENDPOINT

LOG = "run.log"
"""What a run says that a TUI started: opened and, when the run never began, removed by the TUI."""

WORK = "work.json"
"""What steps of training cost on this machine: a resumed run goes on with the same devices."""

GAUGES = "gauges"
"""What devices and their backend tell each other while they run; gone afterwards."""

OWN = {
    LOG,
    ENDPOINT,
    WORK,
    GAUGES,
    "broker.log",
    "cache",
    "experiment.toml",
    "lock",
    "logs",
    "models",
}
"""Names of what a run writes before its first row."""


def strangers(folder: Path) -> list[str]:
    """Return what a folder holds that no run wrote, sorted; nothing if there is no folder.

    Raises:
        OSError: It is no folder, or cannot be read.
    """
    try:
        return sorted({path.name for path in folder.iterdir()} - OWN)
    except FileNotFoundError:
        return []


def is_untouched(folder: Path) -> bool:
    """Tell whether no run has written to a folder yet.

    Raises:
        OSError: It is no folder, or cannot be read.
    """
    return not folder.exists() or all(path.name == LOG for path in folder.iterdir())


def clear(folder: Path, *, with_log: bool = False) -> None:
    """Remove what a run wrote that never began, and the folder if that was all."""
    for name in OWN if with_log else OWN - {LOG}:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
