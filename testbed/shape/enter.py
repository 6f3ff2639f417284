"""Launches the command: enters the sandbox, changes the user, executes the command.

`python -m fairbed.testbed.shape.enter PARENT SPEC COMMAND...` uses the exit statuses of env(1) if
it fails: 127 command not found, 126 command not executable, 125 sandbox cannot be entered.
"""

import os
import pwd
import signal
import sys
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from fairbed.testbed.backends.sandbox import Sandbox, enter
from fairbed.testbed.host.guard import die_with_parent

CANNOT_ENTER, CANNOT_RUN, NOT_FOUND = 125, 126, 127
"""Exit statuses."""


class EntrySpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a process enters its device."""

    sandbox: Sandbox | None
    """None is the sandbox of the parent."""
    folder: str
    """Working folder of the command."""
    user: str | None
    """None is the current user."""
    blocked: tuple[int, ...]
    """Signal mask of the command."""


def entry_argv(spec: EntrySpec, command: Sequence[str]) -> list[str]:
    """Return the command line of the launcher."""
    encoded = msgspec.json.encode(spec).decode()
    return [
        sys.executable,
        "-m",
        "fairbed.testbed.shape.enter",
        str(os.getpid()),
        encoded,
        *command,
    ]


def become_user(name: str) -> None:
    """Become another user, with the groups and the home folder of that user.

    Raises:
        KeyError: There is no such user.
        OSError: The kernel refused.
    """
    user = pwd.getpwnam(name)
    os.initgroups(user.pw_name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    os.environ.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)


def main(arguments: Sequence[str]) -> int:
    """Run `PARENT SPEC COMMAND...`; return an exit status only on failure."""
    parent, encoded, *command = arguments
    spec = msgspec.json.decode(encoded, type=EntrySpec)
    try:
        if spec.sandbox is not None:
            enter(spec.sandbox)
        os.chdir(spec.folder)  # before the user changes, as the new user may lack access
        if spec.user is not None:
            become_user(spec.user)
        die_with_parent(int(parent))  # last: the kernel resets it when the user changes
    except (KeyError, OSError, RuntimeError) as exc:
        return _print_error(f"{command[0]}: cannot enter the device: {exc}", CANNOT_ENTER)
    _restore_signals(spec.blocked)
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        return _print_error(f"{command[0]}: command not found; check the PATH", NOT_FOUND)
    except OSError as exc:
        return _print_error(f"{command[0]}: cannot be run, {exc.strerror}", CANNOT_RUN)


def _restore_signals(blocked: Sequence[int]) -> None:
    """Restore signal handlers and mask; signals that were ignored at the start stay ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _print_error(message: str, status: int) -> int:
    sys.stderr.write(f"fairbed: shape: {message}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
