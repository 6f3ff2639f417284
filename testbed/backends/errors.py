"""Errors of backends.

BackendError   the machine cannot run the fleet, or a part of the testbed has died
"""


class BackendError(Exception):
    """The fleet cannot be run; the message is one line and says what to do."""
