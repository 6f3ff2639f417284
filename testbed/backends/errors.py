"""Errors of backends.

BackendError            the machine cannot run the fleet, or a part of the testbed has died
+-- BackendUnavailable  the backend that was asked for does not work here
"""


class BackendError(Exception):
    """The fleet cannot be run; the message is one line and says what to do."""


class BackendUnavailable(BackendError):
    """A backend does not work on this machine, or not with this experiment."""


def innermost(exc: Exception) -> Exception:
    """Return the first cause inside exception groups: task groups wrap what went wrong in them."""
    nested = getattr(exc, "exceptions", ())
    return innermost(nested[0]) if nested and isinstance(nested[0], Exception) else exc
