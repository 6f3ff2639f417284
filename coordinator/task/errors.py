"""Errors of the tasks.

TaskError              a task cannot be had
├── UnknownTask        no shipped artifact fits, and it cannot be built here
├── Unsupported        the exporter does not know an operation of the model
└── WrongArtifact      an exported graph does not compute what torch computes
"""


class TaskError(Exception):
    """A task cannot be had."""


class UnknownTask(TaskError):
    """No shipped artifact fits the data, and it cannot be built here."""


class Unsupported(TaskError):
    """The exporter does not know an operation of the model."""


class WrongArtifact(TaskError):
    """An exported graph does not compute what torch computes."""
