"""The way in: becomes the guest, inside its sandbox, as the user it shall be, and nothing before.

`python -m fairbed.testbed.shape.enter PARENT PASSAGE COMMAND...` has the exit statuses of env(1)
for a command that cannot be run: 127 there is none, 126 it cannot be run, 125 the way in is closed.
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
    """What becomes of a process on its way in."""

    sandbox: Sandbox | None
    """None is no sandbox: it stays where we are."""
    folder: str
    """In which the command starts."""
    user: str | None
    """None stays who we are."""
    blocked: tuple[int, ...]
    """Signals that the command finds blocked."""


def entry_argv(passage: EntrySpec, command: Sequence[str]) -> list[str]:
    """Return the program that becomes the command."""
    told = msgspec.json.encode(passage).decode()
    return [sys.executable, "-m", "fairbed.testbed.shape.enter", str(os.getpid()), told, *command]


def become_user(name: str) -> None:
    """Be another user from now on, with the groups and the home of that one.

    Raises:
        KeyError: There is no such user.
        OSError: We may not.
    """
    user = pwd.getpwnam(name)
    os.initgroups(user.pw_name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    os.environ.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)


def main(arguments: Sequence[str]) -> int:
    """Run `PARENT PASSAGE COMMAND...`; return only if that is impossible."""
    parent, told, *command = arguments
    passage = msgspec.json.decode(told, type=EntrySpec)
    try:
        if passage.sandbox is not None:
            enter(passage.sandbox)
        os.chdir(passage.folder)  # before a change of user, who may not be allowed to
        if passage.user is not None:
            become_user(passage.user)
        die_with_parent(int(parent))  # last: a change of user makes the kernel forget it
    except (KeyError, OSError, RuntimeError) as exc:
        return _complain(f"{command[0]}: must get into its device, got: {exc}", CANNOT_ENTER)
    _restore_signals(passage.blocked)
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        return _complain(f"{command[0]}: no such command; is it on the PATH?", NOT_FOUND)
    except OSError as exc:
        return _complain(f"{command[0]}: cannot be run, {exc.strerror}", CANNOT_RUN)


def _restore_signals(blocked: Sequence[int]) -> None:
    """Undo what Python and we have done to signals; what was ignored before us stays so."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _complain(message: str, status: int) -> int:
    sys.stderr.write(f"fairbed: shape: {message}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
