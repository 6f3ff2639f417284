"""End child processes with the testbed, however the testbed ends.

`kill -9` runs no `finally`, so each child must notice by itself that its parent is gone:

* our own Python children call `die_with_parent` first;
* other programs (a broker) are started as `guarded([program, ...])`.

On Linux both request a signal from the kernel at the parent's death (`PR_SET_PDEATHSIG`), and a
guarded program replaces the guard, so no extra process remains. The signal is SIGKILL: after the
parent's death no process could kill a child that ignores SIGTERM, is stopped or hangs. On other
systems the guard stays as the program's parent, forwards SIGTERM, SIGINT and SIGHUP, and
kills the program when its own parent changes.

Three limits:

* The signal follows the death of the *thread* that forked. Start children from the main thread.
* A change of user or group clears the setting. A program that drops root privileges by itself
  (mosquitto, unless its `user` option names the user it was started as) must be configured not to,
  or be started with `stay=True`.
* Children do not inherit the setting: a child that starts children guards them too.

This file is also run by its path, with `python -I -S`, to start quickly: it imports only small
parts of the standard library, and no other module of Fairbed.
"""

import os
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
"""`prctl` option, from linux/prctl.h."""

_HAS_DEATH_SIGNAL = sys.platform == "linux"

WATCH_INTERVAL_S = 0.2
"""How often the parent is checked where the kernel does not signal its death; seconds."""


def guarded(argv: Sequence[str], *, stay: bool = False) -> list[str]:
    """Return the command that runs `argv` and ends with this process.

    Args:
        argv: Program and arguments; the program is looked up on the PATH.
        stay: Keep the guard as a parent on Linux too, for programs that change their user.
            End such a program by SIGTERM to the guard, never by SIGKILL.
    """
    flags = ["--stay"] if stay else []
    parent = str(os.getpid())
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), *flags, parent, "--", *argv]


def die_with_parent(parent: int) -> None:
    """End this process when its parent ends; returns at once.

    Args:
        parent: Process id of the parent, passed by the parent: if it died before this call, this
            process ends here.

    Raises:
        OSError: The kernel refused the request.
    """
    if _HAS_DEATH_SIGNAL:
        _request_death_signal()
    else:
        import threading

        threading.Thread(target=_watch, args=(parent,), name="guard", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _request_death_signal() -> None:
    import ctypes
    import signal

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")


def _watch(parent: int) -> None:
    import time

    while os.getppid() == parent:
        time.sleep(WATCH_INTERVAL_S)
    os._exit(1)


def _stay(argv: Sequence[str], parent: int) -> int:
    """Run `argv` as a child until the child or the parent ends; return the exit status."""
    import signal
    import subprocess
    from types import FrameType

    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)
    child = subprocess.Popen(argv)
    while os.getppid() == parent:
        try:
            status = child.wait(WATCH_INTERVAL_S)
            return status if status >= 0 else 128 - status
        except subprocess.TimeoutExpired:
            while received:
                child.send_signal(received.pop(0))
    child.kill()
    return 1


def main(arguments: Sequence[str]) -> int:
    """Run `[--stay] [PARENT] -- CMD...`; PARENT is by default the current parent."""
    try:
        cut = list(arguments).index("--")
        options, argv = list(arguments[:cut]), list(arguments[cut + 1 :])
        stay = bool(options) and options[0] == "--stay"
        numbers = [int(option) for option in options[stay:]]
        parent = numbers[0] if numbers else os.getppid()
        program = argv[0]
    except (ValueError, IndexError):
        return _print_error(f"need [--stay] [PARENT] -- CMD..., got {list(arguments)}", 2)
    try:
        if stay or not _HAS_DEATH_SIGNAL:
            return _stay(argv, parent)
        die_with_parent(parent)
        _restore_signals()
        os.execvp(program, argv)
    except OSError as error:
        return _print_error(f"cannot run {program}: {error.strerror}; is it on the PATH?", 127)


def _restore_signals() -> None:
    """Restore the signals that Python ignores; the program would inherit that."""
    import signal

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def _print_error(message: str, status: int) -> int:
    sys.stderr.write(f"guard: {message}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
