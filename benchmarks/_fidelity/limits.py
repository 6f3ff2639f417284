"""Limits of each backend: largest errors and costs. Pure."""

from fairbed.testbed.backends.choice import BackendName

SHARES = (0.05, 0.10, 0.25, 0.50, 1.0, 1.5)
"""Shares of a core."""

STEPS_S = (0.005, 0.020, 0.100)
"""Processor time of a step."""

RATES_BPS = (0.1e6, 1e6, 10e6, 50e6, 100e6, 500e6)

BLOCKS = (64 << 10, 256 << 10, 1 << 20)
"""Bytes."""

DELAYS_S = (0.02, 0.1)
"""One way."""

CPU, STEP, GOODPUT, TRANSFER = 0.03, 0.05, 0.03, 0.03
FAST_GOODPUT = 0.05
"""Beyond 100 Mbit/s."""

SLOW_TRANSFER = 0.05
"""Through a proxy."""

TRACE_VOLUME, TRACE_SECOND = 0.02, 0.05
DELAY_S = {"namespace": 2e-3, "container": 2e-3, "process": 3e-3}
"""At the 95th percentile."""

DRIVER_CORES = 0.05
SET_UP_S, CONNECTED_S, TEAR_DOWN_S = 3.0, 15.0, 2.0
"""For 100 devices in namespaces; for 30 in containers the time until they are connected."""

RETRY_S = 1.0
"""A stream resumes within the length of a hole plus this time after its end: TCP doubles its
retransmission time."""

SHARE_OF_CELL = 0.03
"""Of each of several streams in a cell."""

LOSS = 0.10
"""Relative."""

QUEUES_S = (0.05, 0.2, 1.0)
"""Depths of a queue."""

QUEUE = 0.15
"""Of the delay under load. CUBIC keeps a queue 92.5 % full on average."""


BURST_SHARES = (0.33, 0.8)
"""Speeds at which bursts are measured."""

TICK_S = 4e-3
"""The kernel notices an exhausted quota at its next tick: 250 of them per second here."""

PROCESS_CREDIT_S, CONTROL_S = 0.01, 0.02
"""Idle credit and interval of the pacer of `fairbed shape` at full speed."""

MIN_SLEEP_S = {"namespace": 0.01, "container": 0.01, "process": 0.1}
"""Shortest sleep of an agent's pacing."""

BURST_MARGIN = 1.1
"""Paced work ends with a whole step; timers of a pacer are late."""


def burst(backend: BackendName, share: float, *, is_paced: bool, is_start: bool = False) -> float:
    """Return the longest burst after a pause, by the rules of quota and pacing, seconds.

    A credit of c lasts c / (1 - share) at full speed, because it grows meanwhile. The pacer of
    `fairbed shape` limits the credit at its first reading after the begin of a burst, and ends the
    burst at its first reading after the end of the credit: each up to an interval later.
    """
    if is_paced:
        return BURST_MARGIN * MIN_SLEEP_S[backend] * share / (1.0 - share)
    if backend == "process":
        return BURST_MARGIN * (PROCESS_CREDIT_S * share / (1.0 - share) + 2.0 * CONTROL_S)
    return 0.01 * share / (1.0 - share) + TICK_S


def goodput(backend: BackendName, rate_bps: float) -> float | None:
    """Return the limit of the error of a rate; None without a limit."""
    if backend == "process":
        return GOODPUT if rate_bps <= 50e6 else None
    if rate_bps > 100e6:
        return FAST_GOODPUT
    return GOODPUT


def transfer(backend: BackendName, n_bytes: int) -> float | None:
    """Return the limit of the error of a transfer time; None without a limit.

    The burst of a shaper, 3200 bytes, is a noticeable part of 64 KB.
    """
    if backend == "process":
        return SLOW_TRANSFER
    return TRANSFER if n_bytes >= 256 << 10 else None


def step(backend: BackendName, cpu_s: float) -> float | None:
    """Return the limit of the error of the time of a step; None without a limit."""
    return STEP if backend != "process" and cpu_s >= 0.020 else None
