"""Moves a process into the network namespace and the control groups of a device, before it runs.

A forked agent calls `enter`; `python -m fairbed.testbed.backends.sandbox PARENT SANDBOX PROGRAM
ARGUMENTS...` starts any other program. A process that cannot enter must not run: outside it would
be faster than the device without an error.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from fairbed.testbed.backends.network.enter import enter as enter_network
from fairbed.testbed.host.guard import die_with_parent


class Sandbox(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Control groups and network namespace of one device; sent to the process that enters."""

    procs: tuple[str, ...]
    """`cgroup.procs` files; a process joins a group by writing `0` to its file."""
    quota_folder: str
    """The control group that has the processor quota."""
    quota_version: Literal[1, 2]
    """Version of that control group."""
    network: str | None = None
    """File of the network namespace; None is that of the parent process."""
    host: str | None = None
    """`identity` of the host's network namespace, in which no device may run."""


def enter(sandbox: Sandbox) -> None:
    """Move this process, which must have one thread, and its later children into a sandbox.

    Raises:
        OSError: The kernel refused; the process may be partly inside and must end.
        RuntimeError: The network is the host's.
    """
    if sandbox.network is not None:
        assert sandbox.host is not None
        enter_network(Path(sandbox.network), sandbox.host)
    _join(sandbox, "0")


def admit(pid: int, sandbox: Sandbox) -> None:
    """Move another process into the control groups of a sandbox.

    Raises:
        OSError: The kernel refused; the process may be partly inside and must end.
    """
    _join(sandbox, str(pid))


def main(arguments: Sequence[str]) -> int:
    """Run `PARENT SANDBOX PROGRAM ARGUMENTS...`; return an exit status only on failure."""
    parent, encoded, *argv = arguments
    die_with_parent(int(parent))
    try:
        enter(msgspec.json.decode(encoded, type=Sandbox))
    except (OSError, RuntimeError) as exc:
        return _print_error(f"cannot enter: {exc}", 1)
    try:
        os.execvp(argv[0], argv)
    except OSError as exc:
        return _print_error(f"cannot run {argv[0]}: {exc.strerror}; is it on the PATH?", 127)


def _join(sandbox: Sandbox, process: str) -> None:
    for path in sandbox.procs:
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.write(descriptor, process.encode())
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, path) from exc
        finally:
            os.close(descriptor)


def _print_error(message: str, status: int) -> int:
    sys.stderr.write(f"sandbox: {message}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
