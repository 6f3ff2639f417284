"""Independent random streams of the data, so that changing one draw leaves the others alone."""

from enum import IntEnum

import numpy as np


class Draw(IntEnum):
    """What is drawn; the values are part of what a seed means, so they never change."""

    GENERATE = 0
    """Examples of generated data."""
    SUBSAMPLE = 1
    """Which examples `max_examples` leaves."""
    PARTITION = 2
    """Which device holds which example."""
    SPLIT = 3
    """Which examples are held out; one more number follows, the device."""


def generator(seed: int, draw: Draw, *more: int) -> np.random.Generator:
    """Return the generator of one draw; the same arguments always give the same numbers."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(draw), *more)))
