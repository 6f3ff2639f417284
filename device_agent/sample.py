"""Which examples a device evaluates when it is asked for the loss of one mini-batch."""

import numpy as np
from numpy.typing import NDArray


def drawn(n: int, examples: int | None, seed: int) -> NDArray[np.int64] | slice:
    """Return the places of distinct examples among `n`, ascending; all where that is no less.

    Args:
        n: Examples of the device.
        examples: How many it evaluates; None is all of them.
        seed: Picks them, as in `wire.messages.Ask`.
    """
    if examples is None or examples >= n:
        return slice(None)
    rng = np.random.Generator(np.random.PCG64(seed))
    return np.sort(rng.choice(n, examples, replace=False))
