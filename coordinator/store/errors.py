"""What can go wrong with a run store.

StoreError                 the store cannot be made, read or written; one line says what to do
├── RunInUseError          another process writes this run
├── RunNotFoundError       no such run
└── StoreVersionError      the store was written by a newer Fairbed
"""


class StoreError(Exception):
    """The run store cannot be made, read or written."""


class RunInUseError(StoreError):
    """Another process writes this run."""


class RunNotFoundError(StoreError):
    """No run answers to that name."""


class StoreVersionError(StoreError):
    """The store was written by a newer version."""
