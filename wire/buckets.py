"""Buckets: sequences of tokens are padded to one of a few lengths, not all to the longest.

A bucket is a length. A sequence belongs to the shortest bucket that holds it: all its tokens up to
the last one that is not padding (token 0), and all its labels, if each token has one.

A mini-batch is padded to the longest bucket among its sequences. So an epoch orders them by bucket
and cuts that order: as many mini-batches as without buckets, and few that mix two of them.
"""

import numpy as np
from numpy.typing import NDArray

from fairbed.wire.artifact import TaskSpec
from fairbed.wire.evaluation import Targets
from fairbed.wire.preparation import PADDING

Ints = NDArray[np.int64]

CANDIDATES = 512
"""Most lengths among which `best_buckets` chooses."""


def sequence_lengths(x: NDArray[np.generic], y: Targets, *, has_labels: bool) -> Ints:
    """Return the tokens of each sequence without the padding at its end, shape (n,).

    Args:
        x: Tokens, shape (n, T, ...).
        y: Targets, shape (n, *y_shape).
        has_labels: Each token has a label, y has the shape (n, T, ...); -1 is none.
    """
    is_used = (x != PADDING).reshape(*x.shape[:2], -1).any(axis=2)
    if has_labels:
        is_used |= (y >= 0).reshape(*y.shape[:2], -1).any(axis=2)
    last = is_used.shape[1] - is_used[:, ::-1].argmax(axis=1)
    return np.where(is_used.any(axis=1), last, 0).astype(np.int64)


def buckets_of(spec: TaskSpec, x: NDArray[np.generic], y: Targets) -> Ints | None:
    """Return the bucket of each example as a length, shape (n,); None for a task without buckets.

    Args:
        spec: The task.
        x: Examples, shape (n, *x_shape).
        y: Targets, shape (n, *y_shape).
    """
    if not spec.buckets:
        return None
    lengths = sequence_lengths(x, y, has_labels=spec.labels_tokens)
    return np.array(spec.buckets)[np.searchsorted(spec.buckets, lengths)]


def cut_batches(order: Ints, buckets: Ints | None, size: int) -> list[Ints]:
    """Return the mini-batches of an epoch: indices of examples, shape (B,) each.

    The examples go by bucket, those of one bucket in the given order, and are cut into
    ceil(n / size) mini-batches. These come in the order of their first example in `order`, so that
    lengths alternate.

    Args:
        order: A random order of n examples, shape (n,).
        buckets: Bucket of each example, shape (n,); None: all are in one.
        size: Examples of a mini-batch; the last one that is cut may be smaller.
    """
    n = len(order)
    if buckets is None:
        return [order[start : start + size] for start in range(0, n, size)]
    by_bucket = np.argsort(buckets[order], kind="stable")
    parts = [by_bucket[start : start + size] for start in range(0, n, size)]
    return [order[part] for part in sorted(parts, key=lambda part: int(part.min()))]


def count_batches(counts: Ints, size: int) -> tuple[Ints, Ints]:
    """Return how many mini-batches of an epoch each bucket has, and how many examples are in them.

    Args:
        counts: Examples of each device in each bucket, shape (N, L), shortest bucket first.
        size: Examples of a mini-batch.

    Returns:
        Mini-batches that `cut_batches` pads to each bucket, and examples of these mini-batches,
        shape (N, L) both.
    """
    ends: Ints = np.cumsum(counts, axis=1)
    n = ends[:, -1:]
    batches = np.where(ends == n, -(-n // size), ends // size)
    examples = np.minimum(batches * size, n)
    first = np.zeros((len(counts), 1), np.int64)
    return np.diff(batches, axis=1, prepend=first), np.diff(examples, axis=1, prepend=first)


def best_buckets(lengths: Ints, count: int, longest: int) -> tuple[int, ...]:
    """Return at most `count` buckets that need the least padding, ascending.

        min over b_1 < ... < b_L = longest   of   sum_i b(i),   b(i) = min {b : b >= length_i}

    Above `CANDIDATES` different lengths, only that many quantiles of them may be buckets.

    Args:
        lengths: Length of each sequence, at least 1, shape (n,).
        count: Number of buckets, at least 1.
        longest: The longest bucket, at least the longest length.
    """
    found = np.unique(lengths)
    if len(found) > CANDIDATES:
        shares = np.arange(1, CANDIDATES + 1) / CANDIDATES
        found = np.unique(np.quantile(lengths, shares, method="higher"))
    ends = np.append(found[found < longest], longest)
    below = np.append(0, np.searchsorted(np.sort(lengths), ends, side="right"))
    # cost[i, j]: tokens of the sequences between end i - 1 and end j, padded to end j.
    cost = (below[1:] - below[:-1, np.newaxis]) * ends
    cost = np.where(np.arange(len(ends)) >= np.arange(len(ends))[:, np.newaxis], cost, np.inf)
    total, before = cost[0], list[NDArray[np.intp]]()
    for _ in range(min(count, len(ends)) - 1):
        sums = np.append(0.0, total[:-1])[:, np.newaxis] + cost
        before.append(sums.argmin(axis=0))
        total = sums.min(axis=0)
    chosen, at = [longest], len(ends) - 1
    for starts in reversed(before):
        at = int(starts[at]) - 1
        if at < 0:
            break
        chosen.append(int(ends[at]))
    return tuple(reversed(chosen))
