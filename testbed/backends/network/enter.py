"""Get inside a network namespace, and never act on the host's by mistake.

`python -m fairbed.testbed.backends.network.enter PARENT HOST PATH -- CMD...` runs CMD inside the
namespace
at PATH, and ends with PARENT. HOST is the `identity` of the host's namespace. What runs inside
sees no link of the host, so no wrong name can touch one; that it is really inside is checked here,
before CMD exists.
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
        OSError: There is none at the path.
    """
    found = path.stat()
    return f"{found.st_dev}:{found.st_ino}"


def enter(path: Path, host: str) -> None:
    """Move this thread, and what it starts from now on, into a network namespace.

    Args:
        path: Of the namespace.
        host: `identity` of the host's, which is refused.

    Raises:
        OSError: There is none, or the kernel refuses.
        RuntimeError: It is the host's.
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
        raise RuntimeError(f"{path}: is not where we are after setns; do not go on")


def main() -> None:
    """Enter, then become the command."""
    parent, host, path, _, *command = sys.argv[1:]
    die_with_parent(int(parent))
    enter(Path(path), host)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
