"""How long a client waits before it tries again."""

import random
from collections.abc import Callable


def full_jitter(
    rng: random.Random, base_s: float = 0.1, cap_s: float = 5.0
) -> Callable[[int], float]:
    """Return a backoff: seconds to wait before the n-th retry in a row, n from 0.

    The wait is uniform between half of `base_s` and `base_s` x 2^(n + 1), at most `cap_s`, so a
    fleet that lost its broker comes back spread out, and a single hiccup costs 50 to 200 ms.

    Source:
        Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015 ("full jitter").
    """

    def backoff(retry: int) -> float:
        return rng.uniform(base_s / 2, min(cap_s, base_s * 2.0 ** min(retry + 1, 30)))

    return backoff
