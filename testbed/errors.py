"""Errors of the testbed; each message is one line with the problem and what to do.

UsageError              the command line, or a file that it names, cannot be used: exit code 2
+-- LabError            a lab cannot be used, or refuses a request
RunError                the command failed: exit code 1
BrokerError             no broker could be started or reached
BackendError            this machine cannot run the fleet, or a process of the testbed has died
+-- BackendUnavailable  the backend that the experiment names does not work here
"""


class UsageError(Exception):
    """The command line, or a file that it names, cannot be used."""


class LabError(UsageError):
    """A lab cannot be used, or refuses a request."""


class RunError(Exception):
    """The command failed."""


class BrokerError(Exception):
    """No broker could be started or reached; the message is one line."""


class BackendError(Exception):
    """This machine cannot run the fleet, or a process of the testbed has died."""


class BackendUnavailable(BackendError):
    """A backend does not work on this machine, or not with this experiment."""


def innermost(exc: Exception) -> Exception:
    """Return the first error inside nested exception groups, in which task groups wrap errors."""
    nested = getattr(exc, "exceptions", ())
    return innermost(nested[0]) if nested and isinstance(nested[0], Exception) else exc
