"""Errors of the run store.

StoreError                 the store cannot be made, read or written; one line states what to do
├── RunInUseError          another process writes this run
├── RunNotFoundError       no such run
└── StoreVersionError      the database has another format: a newer Fairbed, or another program
    ├── OldStoreError      an older Fairbed wrote the store
    └── EmptyStoreError    the writer died before it made the tables
"""


class StoreError(Exception):
    """The run store cannot be made, read or written."""


class RunInUseError(StoreError):
    """Another process writes this run."""


class RunNotFoundError(StoreError):
    """No run has that name."""


class StoreVersionError(StoreError):
    """The database has another format: a newer Fairbed or another program wrote it."""


class OldStoreError(StoreVersionError):
    """An older Fairbed wrote the store."""


class EmptyStoreError(StoreVersionError):
    """The database has no tables: its writer died before it made them."""
