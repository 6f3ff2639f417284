"""Runs a command whose clocks are shifted, as after a restart of the machine; Linux, as root.

    python -m benchmarks._chaos.clock SECONDS -- COMMAND...

The command gets a time namespace of its own: its monotonic clock and its boot clock are `SECONDS`
later than those of this machine (earlier, if negative). The command keeps the process id.
"""

import ctypes
import os
import sys
from collections.abc import Sequence

CLONE_NEWTIME = 0x80
"""Flag of unshare(2)."""


def shifted(argv: Sequence[str], shift_s: int) -> list[str]:
    """Return the command that runs `argv` with clocks that are `shift_s` later."""
    return [sys.executable, "-m", "benchmarks._chaos.clock", str(shift_s), "--", *argv]


def main(arguments: Sequence[str]) -> None:
    """Shift the clocks and run the command in place of this process.

    Raises:
        OSError: The kernel refused, as without root.
    """
    shift_s, _, *argv = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWTIME) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"unshare(CLONE_NEWTIME): {os.strerror(error)}")
    with open("/proc/self/timens_offsets", "w", encoding="ascii") as file:
        file.write(f"monotonic {shift_s} 0\nboottime {shift_s} 0\n")
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(sys.argv[1:])
