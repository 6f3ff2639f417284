"""Errors of the testbed; each message is one line with the problem and what to do.

UsageError              the command line, or a file that it names, cannot be used: exit code 2
+-- LabError            a lab cannot be used, or refuses a request
RunError                the command failed: exit code 1
+-- NoDeviceError       no device of a replay is available for too long
BrokerError             no broker could be started or reached
BackendError            this machine cannot run the fleet, or a process of the testbed has died
+-- ClusterError        a Ray cluster cannot be joined or used
|   +-- HostLostError   a process on a host, or the host, is gone
+-- BackendUnavailable  the backend that the experiment names does not work here
"""

import traceback
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parents[1])
"""Folder of the code of Fairbed."""


class _OneLineError(Exception):
    """An error whose message is all that a user needs."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the message, and where the code of the user failed."""
        lines = [f"{type(self).__name__}: {self}"]
        first: BaseException = self
        while first.__cause__ is not None:
            first = first.__cause__
        frames = traceback.extract_tb(first.__traceback__)
        if frames and not frames[-1].filename.startswith(_PACKAGE):
            lines.append(f"  {frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line}")
        return lines


class UsageError(_OneLineError):
    """The command line, or a file that it names, cannot be used."""


class LabError(UsageError):
    """A lab cannot be used, or refuses a request."""


class RunError(_OneLineError):
    """The command failed."""


class NoDeviceError(RunError):
    """No device of a replay is available for too long."""


class BrokerError(Exception):
    """No broker could be started or reached; the message is one line."""


class BackendError(Exception):
    """This machine cannot run the fleet, or a process of the testbed has died."""


class ClusterError(BackendError):
    """A Ray cluster cannot be joined or used."""


class HostLostError(ClusterError):
    """A process on a host of a cluster is gone, or the host is; its work can be done again."""


class BackendUnavailable(BackendError):
    """A backend does not work on this machine, or not with this experiment."""
