"""Training data of a device: a shard from the cache, or a file or folder of its own."""

import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import psutil
from numpy.typing import NDArray

from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.engines.base import Examples
from fairbed.device_agent.errors import DataError, NotPrepared
from fairbed.device_agent.host import Meter
from fairbed.wire.evaluation import Targets
from fairbed.wire.labels import Classes, LabelError, plain_labels, shortened
from fairbed.wire.messages import HeldOut, Manifest
from fairbed.wire.preparation import (
    AudioPreparation,
    EmptyText,
    MaskPreparation,
    Preparation,
    TextPreparation,
    tokens_of,
)
from fairbed.wire.shard import decode_shard, split, split_validation, strata

MIN_DIVIDED = 2
"""Least examples of which one can be held out."""


Labelled: TypeAlias = tuple[Examples, Targets]
"""Examples x, shape (n, *x_shape), and their targets y, shape (n, *y_shape)."""


def same_columns(columns: str) -> str:
    """Return what to do about x of another size beside a table (`Artifact.columns`)."""
    return columns and f"; x must have the columns of the run's table in this order: {columns}"


class ExampleSource(Protocol):
    """Source of the training examples for a cold device."""

    is_own: bool
    """The coordinator does not know the examples."""

    def load(self, meter: Meter) -> tuple[Labelled, Labelled | None]:
        """Read the training examples; blocks on the disk.

        The second value are the held-out examples if they were read with the others anyway; None
        if `held_out` has to be called.
        """
        ...

    def held_out(self) -> Labelled | None:
        """Read examples that must not be trained on; None if there are none."""
        ...


class CachedShard:
    """A shard from the coordinator, kept in the cache."""

    is_own = False

    def __init__(self, cache: BlobCache, manifest: Manifest) -> None:
        self._cache = cache
        self._manifest = manifest
        self._holds_out = True
        """Unknown before it was read."""

    def load(self, meter: Meter) -> tuple[Labelled, None]:
        """Read the shard from the cache.

        Raises:
            NotPrepared: The file is missing or corrupt.
            DecodeError: The file is not a shard.
        """
        blob = self._read()
        meter.read(len(blob))
        shard = decode_shard(blob)
        self._holds_out = shard.held_out is not None
        return shard.arrays(), None

    def held_out(self) -> Labelled | None:
        """Read the held-out examples of the shard, if it has some.

        Raises:
            NotPrepared: The file is missing or corrupt.
            DecodeError: The file is not a shard.
        """
        held_out = decode_shard(self._read()).held_out if self._holds_out else None
        return None if held_out is None else held_out.arrays()

    def _read(self) -> bytes:
        blob = self._cache.get(self._manifest)
        if blob is None:
            raise NotPrepared(
                "data: the shard is missing or corrupt on disk; the device downloads it again"
            )
        return blob


class OwnData:
    """Examples in an `.npz` file, or files in a folder, which never leave the device.

    x is float (unchanged), uint8 (pixels, divided by 255) or integer (tokens); y are labels of the
    classes of a task, or targets of regression, in the shape of the task. Pictures have the name of
    their folder as label. Text, pictures with masks, and audio are read as the task states.
    Test examples are the arrays `x_test` and `y_test`; without them a share of x and y, stratified
    by class, drawn with a seed and the name of the device, so always the same.

    Args:
        path: The file or folder.
        classes: Of the task; None: the file can be checked and counted, not loaded.
        held_out: Share and seed of the test examples; None: without `x_test` there are none.
        device: Name of the device.
        preparation: Of the task; None: of arrays or pictures, or the files are only counted.
        is_autoencoder: The targets are x, so that y is not needed.
    """

    is_own = True

    def __init__(
        self,
        path: Path,
        classes: Classes | None = None,
        held_out: HeldOut | None = None,
        device: str = "",
        preparation: Preparation | None = None,
        is_autoencoder: bool = False,
    ) -> None:
        self.notes: tuple[str, ...] = ()
        """Lines about files that the last reading has left out, cut or padded."""
        self._preparation = preparation
        self._is_autoencoder = is_autoencoder
        self.path = path
        self._classes = classes
        self._held_out = held_out
        self._device = device

    def load(self, meter: Meter) -> tuple[Labelled, Labelled | None]:
        """Read the training examples, and the test examples among them.

        Raises:
            DataError: The file cannot be read, or its arrays break a rule.
        """
        x, y = self._read("x", "y")
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        meter.read(sum(file.stat().st_size for file in files if file.is_file()))
        targets = self._targets("y", y)
        has_tests = self._has_tests()
        if has_tests and not self._validates:
            return (_checked_x(self.path, x, len(y)), targets), None
        training, evaluated = self._divided(targets, has_tests=has_tests)
        held_out = self._rows(x, targets, evaluated) if len(evaluated) else None
        return self._rows(x, targets, training), held_out

    def held_out(self) -> Labelled | None:
        """Read the examples on which models are evaluated; None if there are none.

        Raises:
            DataError: The file cannot be read, or its arrays break a rule.
        """
        has_tests = self._has_tests()
        if has_tests and not (self._held_out and self._held_out.evaluates == "validation"):
            x, y = self._read("x_test", "y_test")
            return _checked_x(self.path, x, len(y)), self._targets("y_test", y)
        x, y = self._read("x", "y")
        targets = self._targets("y", y)
        _, evaluated = self._divided(targets, has_tests=has_tests)
        return self._rows(x, targets, evaluated) if len(evaluated) else None

    def count(self) -> int:
        """Return the number of examples in `x`, and check the file.

        Windows of texts are known with the task only: before it, the texts have at most as many
        examples as bytes, and other files are examples.

        Raises:
            DataError: It cannot be read, or its arrays break a rule.
        """
        kind = self._kind()
        if self._preparation is None and kind not in ("arrays", "pictures"):
            return self._count_files(kind)
        n, *_ = [len(y) for _, y in self.unread()]
        return n

    def _kind(self) -> str:
        """Return what the path has: `arrays`, or a `folders.Kind`."""
        from fairbed.device_agent.folders import folder_kind

        if self.path.is_dir():
            kind = folder_kind(self.path)
            is_text = isinstance(self._preparation, TextPreparation) and kind == "pictures"
            return "text" if is_text else kind  # texts may have any suffix
        return "text" if self.path.suffix.lower() == ".txt" else "arrays"

    def _count_files(self, kind: str) -> int:
        from fairbed.device_agent.folders import MASKS, class_files
        from fairbed.device_agent.texts import read_texts

        if kind == "text":
            texts = read_texts(self.path, None).texts
            return max(1, sum(len(text.encode()) for text in texts))
        if kind == "masks":
            return max(1, sum(1 for _ in (self.path / MASKS).rglob("*.png")))
        return len(class_files(self.path, "audio", 1).pairs)

    def unread(self) -> Iterator[tuple[Examples, NDArray[Any]]]:
        """Yield x with the labels as they are in the file, then `x_test` if there is one.

        Raises:
            DataError: The file cannot be read, or its arrays break a rule.
        """
        for part in ("", "_test") if self._has_tests() else ("",):
            x, y = self._read(f"x{part}", f"y{part}")
            with _named_array(self.path, f"y{part}"):
                plain_labels(y)
            yield _checked_x(self.path, x, len(y)), y

    def _targets(self, name: str, y: NDArray[Any]) -> Targets:
        assert self._classes is not None, "a file is loaded for a task"
        with _named_array(self.path, name):
            return self._classes.targets(y)

    def _rows(self, x: NDArray[Any], y: Targets, rows: NDArray[np.int64]) -> Labelled:
        return _checked_x(self.path, x[rows], len(rows)), y[rows]

    @property
    def _validates(self) -> bool:
        return self._held_out is not None and self._held_out.validation > 0.0

    def _divided(
        self, y: Targets, *, has_tests: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows that train and those on which models are evaluated.

        Args:
            y: Targets of x.
            has_tests: The file has test examples beside x, which has none then. One example alone
                is for training.
        """
        rows, held_out = np.arange(len(y)), self._held_out
        if held_out is None or len(y) < MIN_DIVIDED:
            return rows, rows[:0]
        _, classes = np.unique(strata(y), return_inverse=True)
        seed = np.random.SeedSequence([held_out.seed, *self._device.encode()])
        rng, training, tests = np.random.default_rng(seed), rows, rows[:0]
        if not has_tests:
            training, tests = split(rows, classes, held_out.fraction, rng)
        if not self._validates:
            return training, tests
        training, validation = split_validation(
            training, classes[training], held_out.validation, held_out.fold, rng
        )
        return training, validation if held_out.evaluates == "validation" else tests

    def _has_tests(self) -> bool:
        try:
            # Opened here: numpy leaves its own handle open when the archive is damaged.
            with (
                _zipped(self.path).open("rb") as file,
                np.load(file, allow_pickle=False) as arrays,
            ):
                return not {"x_test", "y_test"}.isdisjoint(arrays.files)
        except Exception:  # those of `_read`, which reports them
            return False

    def _check_size(self, archive: zipfile.ZipFile | None) -> None:
        """Refuse arrays that do not fit into memory before they are unpacked.

        The reader of an entry stops at the announced size.

        Raises:
            DataError: They need more than the free memory.
        """
        if archive is not None:
            self._check_free(sum(entry.file_size for entry in archive.infolist()))
            if problem := expansion_problem(archive):
                raise DataError(f"{self.path}: {problem}")

    def _check_free(self, needed: int) -> None:
        """Refuse examples of so many bytes if they need more than the free memory.

        Raises:
            DataError: They do.
        """
        free = psutil.virtual_memory().available
        if needed > free:
            raise DataError(
                f"{self.path}: the arrays must fit into the free memory of this device, "
                f"{free / 2**20:,.0f} MiB, got {needed / 2**20:,.0f} MiB; use fewer examples"
            )

    def _files(self, kind: str) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Read texts, pictures or recordings.

        Raises:
            DataError: A file cannot be read, or they are not what the task has.
        """
        how = self._preparation
        kinds = {TextPreparation: "text", MaskPreparation: "masks", AudioPreparation: "audio"}
        expected = "pictures" if how is None else kinds[type(how)]
        if kind != expected:
            raise DataError(
                f"{self.path}: must be {expected}{' or arrays' if how is None else ''}, as the "
                f"run's data, got {kind}; convert the files, or join a run that reads them"
            )
        if isinstance(how, TextPreparation):
            return self._texts(how)
        if isinstance(how, AudioPreparation):
            from fairbed.device_agent.audio import read_audio

            found = read_audio(
                self.path, self._check_free, samples=how.samples, rate_hz=how.rate_hz
            )
            self.notes = found.notes
            return found.x, found.y
        return self._pictures(how)

    def _texts(self, how: TextPreparation) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        from fairbed.device_agent.texts import read_texts

        found = read_texts(self.path, how.target)
        try:
            tokens = tokens_of(how, found.texts, self._check_free)
        except EmptyText as exc:
            row, problem, what_to_do = exc.args
            raise DataError(f"{found.files[row]}: {problem}; {what_to_do}") from exc
        self.notes = found.notes
        if tokens.cut:
            cut = f"{tokens.cut:,} of {len(found.texts):,} texts are cut to {how.length} tokens"
            self.notes = (*found.notes, cut)
        if tokens.y is not None:
            return tokens.x, tokens.y
        assert found.labels is not None, "the target is the label"
        return tokens.x, found.labels[tokens.texts]

    def _pictures(
        self, how: MaskPreparation | None
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        from fairbed.device_agent.pictures import read_masked, read_pictures

        try:
            if how is None:
                found = read_pictures(self.path, self._check_free)
            else:
                found = read_masked(self.path, how, self._check_free)
            self.notes = found.notes
            return found.x, found.y
        except ImportError as exc:
            raise DataError(
                f"{self.path}: pillow must be installed to read pictures, got none; run: "
                f"{sys.executable} -m pip install pillow"
            ) from exc

    def _read(self, x_name: str, y_name: str) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        kind = self._kind()
        x, y = self._files(kind) if kind != "arrays" else self._arrays(x_name, y_name)
        if self._is_autoencoder and not isinstance(self._preparation, TextPreparation):
            y = _checked_x(self.path, x, len(x))
        return x, y

    def _arrays(self, x_name: str, y_name: str) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        if self.path.suffix != ".npz":
            raise DataError(
                f"{self.path}: must be an .npz file with arrays x and y, or a folder that has a "
                "folder of pictures for each class, got another file; write it with "
                "numpy.savez(FILE, x=..., y=...)"
            )
        try:
            # Opened here: numpy leaves its own handle open when the archive is damaged.
            with (
                _zipped(self.path).open("rb") as file,
                np.load(file, allow_pickle=False) as arrays,
            ):
                wanted = [x_name] if self._is_autoencoder else [x_name, y_name]
                if set(wanted) - set(arrays.files):
                    raise DataError(
                        f"{self.path}: must hold arrays {' and '.join(wanted)}, got "
                        f"{shortened(sorted(arrays.files)) or 'none'}"
                    )
                self._check_size(arrays.zip)
                x, y = arrays[x_name], arrays[wanted[-1]]
                if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
                    raise DataError(
                        f"{self.path}: {x_name} and {y_name} must be arrays, got another entry; "
                        "write the file with numpy.savez(FILE, x=..., y=...)"
                    )
        except DataError:
            raise
        except Exception as exc:  # numpy, zipfile and tokenize: their errors share no base class
            known = exc.strerror if isinstance(exc, OSError) else None
            reason = known or " ".join(str(exc).split())[:200] or type(exc).__name__
            raise DataError(
                f"{self.path}: must be a readable .npz file, got: {reason}; check the path"
            ) from exc
        if x.ndim < 2 or not y.ndim or len(x) != len(y) or len(y) == 0:
            remedy = "; remove both to hold out a share of x" if x_name == "x_test" else ""
            raise DataError(
                f"{self.path}: {x_name} must be (n, ...) and {y_name} (n,) or (n, ...) with one "
                f"n >= 1, got {x.shape}, {y.shape}{remedy}"
            )
        return x, y


MAX_EXPANSION = 100
"""Most bytes of an archive per byte of its file, above `MAX_EXPANDED_BYTES`: pictures of one colour
have about 50, zeros 1,030."""

MAX_EXPANDED_BYTES = 256 << 20


def expansion_problem(archive: zipfile.ZipFile) -> str:
    """Return why an archive must not be unpacked; empty if nothing is wrong.

    A few bytes may expand to gigabytes, which fit into the memory but are no examples. The sizes
    are those of the archive's list, at which the reader of an entry stops.
    """
    entries = archive.infolist()
    expanded = sum(entry.file_size for entry in entries)
    packed = sum(entry.compress_size for entry in entries)
    if expanded <= MAX_EXPANDED_BYTES or expanded <= MAX_EXPANSION * packed:
        return ""
    return (
        f"arrays above {MAX_EXPANDED_BYTES >> 20} MiB must have at most {MAX_EXPANSION} times the "
        f"bytes of their file, got {expanded / 2**20:,.0f} MiB from {packed / 2**20:,.1f} MiB; "
        "write them with numpy.savez, which does not compress"
    )


def _zipped(path: Path) -> Path:
    """Return the path of a zip archive; numpy would try to unpickle any other file."""
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise DataError(
                f"{path}: must be an .npz file, got something else; write it with "
                "numpy.savez(FILE, x=..., y=...)"
            )
    return path


def _checked_x(path: Path, x: NDArray[np.generic], n: int) -> Examples:
    if x.dtype == np.uint8:
        pixels: NDArray[np.float32] = x.astype(np.float32) / np.float32(255.0)
        return pixels
    if x.dtype.kind == "f":
        values = x.astype(np.float32)
        if not np.isfinite(values).all():
            raise DataError(f"{path}: every value of x must be a finite float32, got NaN or inf")
        return values
    if x.dtype.kind in "iu":
        return x.astype(np.int64)
    raise DataError(f"{path}: x must be float, uint8 or integer, got {x.dtype} for {n} examples")


@contextmanager
def _named_array(path: Path, name: str) -> Iterator[None]:
    """Name file and array in an error about labels."""
    try:
        yield
    except LabelError as exc:
        problem, what_to_do = exc.args
        raise DataError(f"{path}: {name}{problem.removeprefix('y')}; {what_to_do}") from exc
