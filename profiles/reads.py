"""Notes the files that profiles, links and traces are read from, for the provenance of a run."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from os.path import abspath, dirname, realpath, sep

_NOTES: ContextVar[dict[str, str] | None] = ContextVar("fairbed_noted_files", default=None)

_SHIPPED = realpath(dirname(__file__)) + sep


@contextmanager
def noted() -> Iterator[dict[str, str]]:
    """Note the files that are read while the context lasts.

    Yields:
        SHA-256 of the content that was read, by absolute path; without files that ship.
    """
    notes: dict[str, str] = {}
    token = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(token)


def note(path: str, content: bytes) -> None:
    """Note that a file has been read, inside `noted`."""
    notes = _NOTES.get()
    if notes is not None and not realpath(path).startswith(_SHIPPED):
        notes[abspath(path)] = hashlib.sha256(content).hexdigest()
