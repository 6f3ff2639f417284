"""Pages that hold tables of benchmarks: `--write FILE` replaces the text between two comments."""

import argparse
from collections.abc import Iterable
from pathlib import Path


def page(text: str) -> Path:
    """Return the path of a page; the type of `--write` in a parser, so before the benchmark runs.

    Raises:
        argparse.ArgumentTypeError: It cannot be read.
    """
    path = Path(text)
    try:
        path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "no UTF-8 text"
        raise argparse.ArgumentTypeError(
            f"must be a page that can be read, got {text}: {reason}; name one with the comments "
            "of this table"
        ) from exc
    return path


def placed(document: str, name: str, text: str) -> str:
    """Return a document with the text between `<!-- name -->` and `<!-- end -->` replaced.

    Raises:
        ValueError: The document has no such place.
    """
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"must have a place between {begin} and {end}, got none; add both lines")
    return f"{before}{begin}\n{text}\n{end}{after}"


def require_place(pages: Iterable[Path], name: str) -> None:
    """Check that each page has a place of this name, before the benchmark runs.

    Raises:
        SystemExit: One has none.
    """
    for path in pages:
        _placed(path, name, "")


def write_place(path: Path, name: str, text: str) -> None:
    """Replace the text of the place `name` of a page.

    Raises:
        SystemExit: The page has no such place.
    """
    path.write_text(_placed(path, name, text), encoding="utf-8")


def _placed(path: Path, name: str, text: str) -> str:
    try:
        return placed(path.read_text(encoding="utf-8"), name, text)
    except ValueError as exc:
        raise SystemExit(f"--write: {path}: {exc}") from exc
