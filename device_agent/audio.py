"""Read WAV files from a folder that has one folder of them per class."""

import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent.folders import FolderError, class_files
from fairbed.wire.preparation import AudioPreparation

_FIX = "convert it to PCM of 8, 16, 24 or 32 bits, or remove it"


@dataclass(frozen=True, slots=True)
class Audio:
    """Recordings with their labels."""

    x: NDArray[np.float32]
    """Samples between -1 and 1, the mean of the channels, shape (n, 1, samples)."""
    y: NDArray[np.str_]
    """Name of the folder of each, shape (n,)."""
    preparation: AudioPreparation
    notes: tuple[str, ...]
    """Lines about files that are left out, cut or padded."""
    users: NDArray[np.str_] | None = None
    """User of each, shape (n,): the folder in that of the class; None: there are none."""


def read_audio(
    folder: Path,
    check_size: Callable[[int], None],
    *,
    samples: int | None = None,
    rate_hz: int | None = None,
    min_classes: int = 1,
) -> Audio:
    """Return the recordings of a folder that has a folder for each class.

    All have one rate: nothing is resampled. A longer one is cut at its end, and a shorter one ends
    with zeros.

    Args:
        folder: Has a folder for each class, with recordings or a folder for each user.
        check_size: Called with the bytes of all samples before they are read.
        samples: Of an example; None: those of the longest recording.
        rate_hz: Samples per second; None: those of the first recording.
        min_classes: Least number of folders; a device may have recordings of one class.

    Raises:
        FolderError: The folder has another layout, or a recording cannot be read.
    """
    found = class_files(folder, "audio", min_classes)
    paths = [path for path, _ in found.pairs]
    x, preparation, notes = read_samples(paths, check_size, samples=samples, rate_hz=rate_hz)
    y = np.array([label for _, label in found.pairs])
    users = None if found.users is None else np.array(found.users)
    return Audio(x, y, preparation, (*found.notes, *notes), users)


def read_samples(
    paths: Sequence[Path],
    check_size: Callable[[int], None],
    *,
    samples: int | None = None,
    rate_hz: int | None = None,
) -> tuple[NDArray[np.float32], AudioPreparation, list[str]]:
    """Return recordings as x, (n, 1, samples), how they became it, and lines about it.

    Args:
        paths: The recordings.
        check_size: As for `read_audio`, likewise the others.
        samples: Of an example.
        rate_hz: Samples per second.

    Raises:
        FolderError: A recording cannot be read, or has another rate.
    """
    heads = [(path, *_head(path)) for path in paths]
    wanted = heads[0][1] if rate_hz is None else rate_hz
    for path, rate, _ in heads:
        if rate != wanted:
            of = "the task" if rate_hz is not None else f"{heads[0][0].name}, the first"
            rates = ", ".join(f"{rate:,}" for rate in sorted({rate for _, rate, _ in heads}))
            raise FolderError(
                path,
                f"must have the {wanted:,} samples per second of {of}, got {rate:,} (the folder "
                f"has {rates})",
                "resample the files to one rate",
            )
    lengths = np.array([n for *_, n in heads])
    length = int(lengths.max()) if samples is None else samples
    check_size(len(heads) * length * np.dtype(np.float32).itemsize)
    x = np.zeros((len(heads), 1, length), np.float32)
    for row, (path, _, n) in enumerate(heads):
        part = _samples(path, n)[:length]
        x[row, 0, : len(part)] = part
    notes = [
        f"{n:,} of {len(heads):,} recordings are {what} {length:,} samples, {length / wanted:.3g} s"
        for n, what in (
            (int((lengths > length).sum()), "cut to"),
            (int((lengths < length).sum()), "padded with zeros to"),
        )
        if n
    ]
    return x, AudioPreparation(rate_hz=wanted, samples=length), notes


def _opened(path: Path) -> wave.Wave_read:
    """Return a recording whose header was read.

    Raises:
        FolderError: It is no WAV file of whole numbers.
    """
    try:
        return wave.open(str(path), "rb")
    except (wave.Error, EOFError, OSError, RuntimeError) as exc:
        reason = " ".join(str(exc).split())[:200] or "an incomplete file"
        if reason.startswith("unknown format"):
            reason = {
                "3": "floats",
                "6": "A-law",
                "7": "mu-law",
                "65534": "an extended format",
            }.get(reason.rpartition(" ")[2], reason)
        raise FolderError(
            path, f"must be a readable .wav file of whole numbers (PCM), got {reason}", _FIX
        ) from exc


def _head(path: Path) -> tuple[int, int]:
    """Return samples per second and samples of a recording by its header."""
    with _opened(path) as file:
        rate, n, width = file.getframerate(), file.getnframes(), file.getsampwidth()
    if not n or not rate or not 1 <= width <= 4:
        raise FolderError(
            path,
            "must have samples of 8, 16, 24 or 32 bits and a rate, got "
            f"{n} samples of {8 * width} bits, {rate} per second",
            _FIX,
        )
    return rate, n


def _samples(path: Path, n: int) -> NDArray[np.float32]:
    """Return the samples of a recording, the mean of its channels, shape (n,).

    PCM of 8 bits is unsigned, that of more bits signed, little-endian.
    """
    with _opened(path) as file:
        channels, width = file.getnchannels(), file.getsampwidth()
        content = np.frombuffer(file.readframes(n), np.uint8)
    if content.size != n * channels * width:
        raise FolderError(
            path,
            f"must have {n:,} samples, as its header states, got "
            f"{content.size // (channels * width):,}",
            "replace or remove this cut file",
        )
    if width == 1:
        values = content.astype(np.float32) - np.float32(128.0)
    else:
        whole = np.zeros((n * channels, 4), np.uint8)
        whole[:, 4 - width :] = content.reshape(-1, width)  # the low bytes are zero
        values = whole.view("<i4")[:, 0].astype(np.float32) / np.float32(2.0 ** (8 * (4 - width)))
    scaled = values / np.float32(2.0 ** (8 * width - 1))
    mono: NDArray[np.float32] = scaled.reshape(n, channels).mean(axis=1, dtype=np.float32)
    return mono
