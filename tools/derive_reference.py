"""Derive the training step of the reference machine: python tools/derive_reference.py.

No published measurement has the time of a training step on an Intel N100 with onnxruntime, but its
High-Performance Linpack is published: 62.85 GFLOPS on 4 cores (LattePanda Mu, 25 W,
geerlingguy/top500-benchmark be7b670). This script measures two quantities alternately, in processor
time: the step, and the product of two double matrices, the main operation of Linpack. It assumes
that the step is slower on the N100 by the ratio of the two matrix rates.

Linpack keeps all cores busy, so one core alone is somewhat faster than its share; and small
convolutions use wide vectors less than large matrices do. Both make the true step shorter: the
result is right within a factor of 2, and ratios between devices are unaffected.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import time

import anyio
import numpy as np

from fairbed.testbed.host.calibration import BATCH, measure_in_child
from fairbed.testbed.host.speed import reference_probe

HPL_N100_FLOPS = 62.851e9
CORES_N100 = 4
SIZE = 768
ROUNDS = 7


def main() -> None:
    """Measure both alternately and print medians."""
    steps, rates = [], []
    for _ in range(ROUNDS):
        steps.append(anyio.run(measure_in_child, reference_probe()).reference_s)
        rates.append(product_flops())
    step_s, flops = float(np.median(steps)), float(np.median(rates))
    ratio = flops / (HPL_N100_FLOPS / CORES_N100)
    print(f"step of {BATCH} examples: {step_s * 1e3:.2f} ms of one core here ({spread(steps)})")
    print(f"double matrix product: {flops / 1e9:.1f} GFLOPS of one core here ({spread(rates)})")
    share = HPL_N100_FLOPS / CORES_N100
    print(f"one core of the N100: {share / 1e9:.1f} GFLOPS, {ratio:.2f} times less")
    print(f"reference step: {step_s * ratio * 1e3:.1f} ms")


def product_flops(seconds: float = 0.5) -> float:
    """Return the rate of one core in the product of two double matrices."""
    rng = np.random.Generator(np.random.PCG64(0))
    a, b = rng.random((SIZE, SIZE)), rng.random((SIZE, SIZE))
    a @ b
    count, start = 0, time.thread_time()
    while time.thread_time() - start < seconds:
        a @ b
        count += 1
    return 2.0 * SIZE**3 * count / (time.thread_time() - start)


def spread(values: list[float]) -> str:
    """Return the relative distances of the smallest and largest value from the median."""
    middle = float(np.median(values))
    return f"{min(values) / middle - 1:+.0%} to {max(values) / middle - 1:+.0%}"


if __name__ == "__main__":
    main()
