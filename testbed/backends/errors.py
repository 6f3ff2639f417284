"""Errors of backends.

BackendError            the machine cannot run the fleet, or a part of the testbed has died
+-- BackendUnavailable  the backend that was asked for does not work here
"""


class BackendError(Exception):
    """The fleet cannot be run; the message is one line and says what to do."""


class BackendUnavailable(BackendError):
    """A backend does not work on this machine, or not with this experiment."""
