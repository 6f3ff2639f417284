"""Download the files of a published data set from the place that its table names.

A server is never trusted: what it sends is counted, unpacked within bounds, and compared by
checksum before a file has its name.
"""

import gzip
import hashlib
import http.client
import os
import ssl
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.datasets.published_files import difference, find, unpacked
from fairbed.testbed.experiment.published import PUBLISHED, Archive, PublishedFile, how_to_get
from fairbed.wire.printable import one_line

WAIT_S = 30.0
"""Longest wait for a connection, or for more of a file."""
CHUNK = 1 << 16
SLACK_BYTES = 1 << 12
"""That packing may add to a file which does not shrink."""
MAX_MEMBERS = 1_000
MAX_MEMBER_BYTES = 1 << 30
_CHOICE = "try again, or give another place with --from"


def fetch(
    name: str,
    folder: Path,
    *,
    place: str | None = None,
    limit_s: float = 600.0,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[str]:
    """Download what a folder lacks of a data set; yield a line about each file.

    Args:
        name: The data set.
        folder: Of its files; it is created.
        place: Address of a folder with the files, instead of that of the publisher.
        limit_s: Longest time for a file.
        now: Returns monotonic seconds.

    Raises:
        DatasetError: There is no such place, a file there or here is another one, or the time or
            the size is above its limit.
    """
    published = PUBLISHED[name]
    if not published.is_fetched:
        raise DatasetError(
            name, "must have a place from which it may be fetched, got none", how_to_get(name)
        )
    with _written(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if published.archive is not None:
        yield from _archive(name, folder, published.archive, place, limit_s, now)
        return
    for file in published.files:
        here = find(folder, file.name)
        if here is not None:
            content = unpacked(here, file.size_bytes, "remove it, or choose another --folder")
            if problem := difference(file, content):
                raise DatasetError(str(here), problem, "remove it, or choose another --folder")
            yield f"{here.name}: is here, as published"
            continue
        address = _address(file.url, place)
        with _download(
            address, folder, file.size_bytes + SLACK_BYTES, now() + limit_s, now
        ) as part:
            is_packed = _check(address, part, file)
            path = folder / (file.name + (".gz" if is_packed else ""))
            with _written(path):
                part.replace(path)
        yield f"{path.name}: {file.size_bytes:,} bytes, as published"


def _address(url: str, place: str | None) -> str:
    """Return the address of a file."""
    address = url if place is None else f"{place.rstrip('/')}/{PurePosixPath(url).name}"
    if urlsplit(address).scheme not in ("http", "https"):
        raise DatasetError(
            "--from",
            f"must be an address http:// or https://, got {one_line(address, 80)!r}",
            "correct it",
        )
    return address


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise DatasetError(
            str(path), f"must be writable, got: {exc.strerror or exc}", "choose another --folder"
        ) from exc


@contextmanager
def _download(
    address: str, folder: Path, most_bytes: int, until_s: float, now: Callable[[], float]
) -> Iterator[Path]:
    """Download a file into a folder for as long as the context lasts."""
    part = folder / f".{os.getpid()}.part"
    try:
        with _written(part):
            stream = part.open("wb")
        with stream, _reported(address), _opener().open(address, timeout=WAIT_S) as answer:
            count = 0
            while chunk := answer.read1(CHUNK):
                count += len(chunk)
                if count > most_bytes:
                    raise DatasetError(
                        address, f"must have at most {most_bytes:,} bytes, got more", _CHOICE
                    )
                if now() > until_s:
                    raise DatasetError(
                        address,
                        f"must arrive before its time is over, got {count:,} bytes by then",
                        "give more time with --timeout",
                    )
                with _written(part):
                    stream.write(chunk)
        yield part
    finally:
        part.unlink(missing_ok=True)


def _opener() -> urllib.request.OpenerDirector:
    """Return what opens addresses of the web alone: no file, no ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


@contextmanager
def _reported(address: str) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as exc:
        if isinstance(exc, DatasetError):
            raise
        if isinstance(exc, urllib.error.HTTPError):
            exc.close()
        reason = f"HTTP {exc.code}" if isinstance(exc, urllib.error.HTTPError) else str(exc)
        reason = one_line(reason or type(exc).__name__, 120)
        raise DatasetError(address, f"must be reachable, got: {reason}", _CHOICE) from exc


def _check(address: str, part: Path, file: PublishedFile) -> bool:
    """Check the content of a file; return whether it is packed."""
    content = part.read_bytes()
    is_packed = content.startswith(b"\x1f\x8b")
    if is_packed:
        try:
            with gzip.open(part, "rb") as stream:
                content = stream.read(file.size_bytes + 1)
        except (EOFError, OSError, zlib.error) as exc:
            raise DatasetError(address, f"must be an intact gz file, got: {exc}", _CHOICE) from exc
    if problem := difference(file, content):
        raise DatasetError(address, problem, _CHOICE)
    return is_packed


def _archive(
    name: str,
    folder: Path,
    archive: Archive,
    place: str | None,
    limit_s: float,
    now: Callable[[], float],
) -> Iterator[str]:
    """Download a tar file and write its data files into a folder."""
    if any(folder.glob(f"*{archive.suffix}*")):
        yield f"{folder}: files *{archive.suffix} are here; `fairbed data verify {name}` reads them"
        return
    address = _address(archive.url, place)
    with _download(address, folder, archive.size_bytes, now() + limit_s, now) as part:
        with part.open("rb") as stream:
            digest = hashlib.md5(usedforsecurity=False)
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
        if digest.hexdigest() != archive.md5:
            raise DatasetError(
                address,
                f"md5 must be {archive.md5}, as published, got {digest.hexdigest()}",
                _CHOICE,
            )
        try:
            with tarfile.open(part, "r:gz") as members:
                found = islice(members, MAX_MEMBERS)
                chosen = [
                    member
                    for member in found
                    if member.isreg()
                    and member.name.endswith(archive.suffix)
                    and member.size <= MAX_MEMBER_BYTES
                ]
                for member in chosen:
                    stream_of = members.extractfile(member)
                    assert stream_of is not None, "it is a file"
                    path = folder / PurePosixPath(member.name).name
                    with _written(path):
                        path.write_bytes(stream_of.read())
                    yield f"{path.name}: {member.size:,} bytes"
        except (tarfile.TarError, EOFError, zlib.error) as exc:
            raise DatasetError(address, f"must be an intact tar file, got: {exc}", _CHOICE) from exc
    if not chosen:
        raise DatasetError(address, f"must hold files *{archive.suffix}, got none", _CHOICE)
