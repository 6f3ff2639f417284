"""Errors of the testbed: the message is one line that says what to do.

UsageError              the command line, or a file that it names, cannot be used: exit code 2
RunError                the command failed: exit code 1
BackendError            the machine cannot run the fleet, or a part of the testbed has died
+-- BackendUnavailable  the backend that the experiment names does not work here
"""


class UsageError(Exception):
    """The command line or a file that it names cannot be used."""


class RunError(Exception):
    """The command failed."""


class BackendError(Exception):
    """The fleet cannot be run; the message is one line and says what to do."""


class BackendUnavailable(BackendError):
    """A backend does not work on this machine, or not with this experiment."""


def innermost(exc: Exception) -> Exception:
    """Return the first cause inside exception groups: task groups wrap what went wrong in them."""
    nested = getattr(exc, "exceptions", ())
    return innermost(nested[0]) if nested and isinstance(nested[0], Exception) else exc
