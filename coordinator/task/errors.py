"""Errors of the tasks.

TaskError              a task is not available
├── UnknownTask        no shipped artifact fits, and it cannot be built here
├── Unsupported        the exporter does not support an operation of the model
│   └── Untrainable    torch cannot train it either
└── WrongArtifact      an exported graph does not compute what torch computes
"""

import re


class TaskError(Exception):
    """A task is not available."""


class UnknownTask(TaskError):
    """No shipped artifact fits the data, and it cannot be built here."""


class Unsupported(TaskError):
    """The exporter does not support an operation of the model."""


class Untrainable(Unsupported):
    """Torch cannot train the model either."""


def untrainable(name: str, problem: str) -> Untrainable | None:
    """Return the error for a failure of torch that no engine avoids; None if it is another one.

    Args:
        name: Name of the task.
        problem: Type and message of what torch raised, on one line.
    """
    if "modified by an inplace operation" not in problem:
        return None
    of = re.search(r"output \d+ of ([A-Za-z]+?)(Backward|\d|,|$)", problem)
    return Untrainable(
        f"{name}: forward() must not change in place a value that a gradient needs, got "
        f"{f'the output of {of[1]}' if of else 'one that it changes'}; write y = y * 2 for y *= 2, "
        "and torch.where for y[mask] = 0"
    )


class WrongArtifact(TaskError):
    """An exported graph does not compute what torch computes."""
