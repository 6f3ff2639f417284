"""Enters a network namespace, and makes sure that it is not the host's.

`python -m fairbed.testbed.backends.network.enter PARENT HOST PATH -- CMD...` runs CMD inside the
namespace at PATH and ends with PARENT. HOST is the `identity` of the host's namespace. CMD cannot
access links of the host, so a wrong name cannot change one; this module checks that before CMD
runs.
"""

import ctypes
import os
import sys
from pathlib import Path

from fairbed.testbed.host.guard import die_with_parent

CLONE_NEWNET = 0x40000000
"""From linux/sched.h."""

OWN = Path("/proc/self/ns/net")


def identity(path: Path = OWN) -> str:
    """Return the identity of a network namespace.

    Raises:
        OSError: There is no namespace at the path.
    """
    found = path.stat()
    return f"{found.st_dev}:{found.st_ino}"


def enter(path: Path, host: str) -> None:
    """Move this thread and its later children into a network namespace.

    Args:
        path: Path of the namespace.
        host: `identity` of the host's namespace, which is refused.

    Raises:
        OSError: There is no namespace at the path, or the kernel refuses.
        RuntimeError: The namespace is the host's.
    """
    wanted = identity(path)
    if wanted == host:
        raise RuntimeError(f"{path}: must not be the host's network namespace, got {wanted}")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"{path}: setns: {os.strerror(error)}")
    finally:
        os.close(descriptor)
    if identity(Path("/proc/thread-self/ns/net")) != wanted:
        raise RuntimeError(f"{path}: must be the current network namespace after setns, is not")


def main() -> None:
    """Enter, then become the command."""
    parent, host, path, _, *command = sys.argv[1:]
    die_with_parent(int(parent))
    enter(Path(path), host)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
