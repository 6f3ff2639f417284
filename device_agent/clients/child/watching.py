"""A process that watches code of the user, and ends all that it has started, however it ends.

    PYTHON watching.py FOLDER PROGRAM ARGUMENTS

    starter -- pipe --> watcher -- PROGRAM with the code of the user -- what that starts

Standard input is a pipe that the starter holds open. The watcher is the parent, and the subreaper,
of the program: a daemon that leaves its tree becomes a child of the watcher. So nothing outlives
the starter, the program or an import that does not return, also after SIGKILL. At the end the
watcher removes FOLDER (empty: none) with its files, and exits as the program did.

The watcher stays small: it is forked before anything but this file is imported. This file runs in
any interpreter from Python 3.10, with the standard library alone, on Linux; elsewhere PROGRAM runs
without a watcher.
"""

import ctypes
import os
import select
import signal
import sys
import time
import types
from contextlib import suppress

if "fairbed" not in sys.modules:  # run by its path: the modules beside it, without their packages
    package = types.ModuleType("fairbed")
    package.__path__ = [os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))]
    sys.modules["fairbed"] = package

from fairbed.device_agent.clients.child.processes import children, kill_tree

WATCH_S = 0.25
"""Interval at which the watcher looks for its starter, beside the end of the pipe."""

END_S = 5.0
"""Longest time in which the watcher tries to end what is left."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""From linux/prctl.h."""


def be_watched(folder: str) -> None:
    """Fork: return in the child, with an empty standard input; the parent watches it and ends.

    Args:
        folder: Removed by the parent before it ends; may be empty.

    Raises:
        OSError: The kernel refused a request.
    """
    if sys.platform != "linux":
        return
    starter, watcher = os.getppid(), os.getpid()
    request_kernel(PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child:
        status = _watch(child, starter)
        if folder:
            _remove(folder)
        _end_like(status)
    request_kernel(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != watcher:
        os._exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def request_kernel(option: int, value: int) -> None:
    """Request something for this process of the kernel, by `prctl`.

    Raises:
        OSError: It is refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def _watch(child: int, starter: int) -> int:
    """Wait for the end of the child or of the starter; return the status of the ended child."""
    _close_all_but_input()
    wake, wakes = os.pipe()
    for end in (wake, wakes):
        os.set_blocking(end, False)

    def note(number: int, frame: types.FrameType | None) -> None:
        if number != signal.SIGCHLD:
            with suppress(OSError):
                os.kill(child, number)

    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(0, 0)  # its end alone
    poll.register(wake, select.POLLIN)
    status = _reap(child)
    while status is None and os.getppid() == starter:
        found = dict(poll.poll(WATCH_S * 1000))
        if wake in found:
            with suppress(OSError):
                os.read(wake, 4096)
        status = _reap(child)
        if 0 in found:
            break
    ends = time.monotonic() + END_S
    while (left := children(os.getpid())) and time.monotonic() < ends:
        for pid in left:
            kill_tree(pid)
        status = _reap(child, status)
    return int(signal.SIGKILL) if status is None else status


def _close_all_but_input() -> None:
    """Close what the child has, too: the other sides must see the end of the child."""
    for name in os.listdir("/proc/self/fd"):
        if int(name):
            with suppress(OSError):
                os.close(int(name))


def _reap(child: int, status: int | None = None) -> int | None:
    """Wait for all children that have ended; return the status of one of them, if it has ended."""
    with suppress(ChildProcessError):
        while True:
            pid, found = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            status = found if pid == child else status
    return status


def _end_like(status: int) -> None:
    """End this process with the status of another one."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(1)


def _remove(folder: str) -> None:
    with suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def main(arguments: list[str]) -> None:
    """Run `FOLDER PROGRAM ARGUMENTS`."""
    folder, *sys.argv = arguments
    be_watched(folder)
    import runpy  # not in the watcher

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
