"""Errors of reports; the message of each is one line.

ExportError          the files cannot be written
  FolderExistsError  the folder of the export has files already
NoFigureError        no such figure, or the runs lack its data
TableError           there is no such table or column, or it cannot be read in this way
"""


class ExportError(Exception):
    """The files cannot be written; one line states what to do."""


class FolderExistsError(ExportError):
    """The folder of the export has files already."""


class NoFigureError(Exception):
    """No such figure, or the runs lack its data."""


class TableError(ValueError):
    """There is no such table or column, or it cannot be read in this way."""
