"""Errors of the agent.

AgentError
├── ConfigError     a flag or the configuration file breaks a rule
├── DataError       the device's own data cannot be used
├── AgentRefused    the coordinator or the broker refused this device for good
├── LabProblem      a lab refused a request or cannot be reached, or a file cannot be written
├── Renamed         the lab renamed this device; the agent starts again
├── NotPrepared     task or data cannot be obtained or used; another welcome may help
└── RoundFailed     this round cannot be finished; the next one may

EngineError            the training engine is missing, or cannot run this task
└── EngineMismatch     the results of the engine differ from the expected results of the task
"""


class AgentError(Exception):
    """Base of the agent's own errors; the message is one line."""


class ConfigError(AgentError):
    """A flag or the configuration file breaks a rule."""


class DataError(AgentError):
    """The device's own data cannot be used."""


class AgentRefused(AgentError):
    """The coordinator or the broker refused this device for good; a retry will not help."""


class LabProblem(AgentError):
    """A lab refused a request or cannot be reached, or a file of the identity cannot be written.

    Args:
        text: One line, with what to do.
        status: HTTP status of the refusal; None without an answer of the lab.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class Renamed(AgentError):
    """The lab renamed this device, and the configuration has the new name."""


class NotPrepared(AgentError):
    """Task or data cannot be obtained or used."""


class RoundFailed(AgentError):
    """A round cannot be finished; the reason is sent to the coordinator."""


class EngineError(Exception):
    """The training engine is missing, or cannot run a task."""


class EngineMismatch(EngineError):
    """The results of the engine differ from the expected results of the task."""


def one_line(exc: BaseException) -> str:
    """Return the message of an error as one line, or its type if it has no message."""
    while nested := getattr(exc, "exceptions", None):  # the first error of a group
        exc = nested[0]
    text = " ".join(str(exc).split())
    if isinstance(exc, MemoryError):
        return f"out of memory; {text or 'the model or the data is too large for this device'}"
    return text or type(exc).__name__
