"""Errors of the tasks.

TaskError              a task is not available
├── UnknownTask        no shipped artifact fits, and it cannot be built here
├── Unsupported        the exporter does not support an operation of the model
└── WrongArtifact      an exported graph does not compute what torch computes
"""


class TaskError(Exception):
    """A task is not available."""


class UnknownTask(TaskError):
    """No shipped artifact fits the data, and it cannot be built here."""


class Unsupported(TaskError):
    """The exporter does not support an operation of the model."""


class WrongArtifact(TaskError):
    """An exported graph does not compute what torch computes."""
