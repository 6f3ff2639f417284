"""The examples of a device as .npy files, which a client maps into its memory."""

import os
from pathlib import Path

import numpy as np

from fairbed.device_agent.examples import ExampleSource, Labelled
from fairbed.device_agent.host import Meter


def write_examples(
    source: ExampleSource, folder: Path, meter: Meter
) -> tuple[dict[str, str], int, int]:
    """Write the examples of a device.

    Args:
        source: The examples.
        folder: Receives the files, which may not exist yet.
        meter: Counts what is read.

    Returns:
        The paths by name (x, y, x_test, y_test), and the counts of training and test examples.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
        AgentError: The examples cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    training, held_out = source.load(meter)
    files, n_k, n_test = _write(folder, training, ""), len(training[1]), 0
    del training
    held_out = held_out or source.held_out()
    if held_out is not None and len(held_out[1]):
        files.update(_write(folder, held_out, "_test"))
        n_test = len(held_out[1])
    return files, n_k, n_test


def _write(folder: Path, examples: Labelled, suffix: str) -> dict[str, str]:
    files = dict[str, str]()
    for name, array in zip(("x", "y"), examples, strict=True):
        path = folder / f"{name}{suffix}.npy"
        scratch = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with scratch.open("wb") as file:
                np.save(file, array, allow_pickle=False)
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
        files[f"{name}{suffix}"] = str(path.absolute())
    return files
