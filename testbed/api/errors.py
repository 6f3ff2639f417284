"""Errors of the functions: each is a `UsageError` or a `RunError` with one line."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fairbed.coordinator.policy.decisions import FleetSizeError
from fairbed.coordinator.report.errors import (
    ExportError,
    FolderExistsError,
    NoFigureError,
    TableError,
)
from fairbed.coordinator.rounds.loop import FleetMissingError, NothingAggregatedError
from fairbed.coordinator.server.lease import AnotherCoordinatorError, NoEchoError
from fairbed.coordinator.store import RunNotFoundError, StoreError
from fairbed.coordinator.task.errors import TaskError, UnknownTask
from fairbed.device_agent.errors import EngineError
from fairbed.profiles.errors import ProfileError
from fairbed.testbed.errors import (
    BackendError,
    BackendUnavailable,
    BrokerError,
    RunError,
    UsageError,
)
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.install import what_to_install
from fairbed.wire.errors import TransportError
from fairbed.wire.plugins import PluginError

OPTIONS = ("cluster", "jobs", "out", "plain", "seed", "seeds", "set", "threads")
"""Options of the command line that are arguments of the functions."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Raise every error that has a message of one line as `UsageError` or `RunError`."""
    try:
        yield
    except (
        BackendUnavailable,
        DatasetError,
        ExperimentError,
        FolderExistsError,
        NoFigureError,
        ProfileError,
        RunNotFoundError,
        TableError,
        UnknownTask,
    ) as exc:
        raise UsageError(str(exc)) from exc
    except (
        AnotherCoordinatorError,
        NoEchoError,
        BackendError,
        BrokerError,
        EngineError,
        ExportError,
        FleetMissingError,
        FleetSizeError,
        NothingAggregatedError,
        PluginError,
        StoreError,
        TaskError,
        TransportError,
    ) as exc:
        raise RunError(str(exc)) from exc
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise RunError(without_errno(exc)) from exc


@contextmanager
def in_python() -> Iterator[None]:
    """As `one_line_errors`, with names of arguments in place of those of options.

    Raises:
        ImportError: A package of an extra is not installed.
    """
    try:
        with one_line_errors():
            yield
    except ModuleNotFoundError as exc:
        if (advice := what_to_install(exc)) is None:
            raise
        raise ImportError(advice, name=exc.name) from exc
    except (UsageError, RunError) as exc:
        raise type(exc)(arguments_for(OPTIONS, str(exc))) from exc.__cause__


def arguments_for(options: Iterable[str], text: str) -> str:
    """Return a message with names of arguments in place of those of options."""
    pattern = rf"--({'|'.join(options)})(?![\w-])"
    return re.sub(pattern, lambda match: match[1].replace("-", "_"), text)


def without_errno(exc: Exception) -> str:
    """Return the message of an error; that of an OSError about a file in Fairbed's form."""
    if isinstance(exc, OSError) and exc.filename and exc.strerror:
        return f"{exc.filename}: must be usable, got: {exc.strerror}; choose another with --out"
    return str(exc)
