"""Hypothesis strategies that several test packages share, named for what they yield."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.selection.base import Candidates
from tests.coordinator.algorithms.aggregation.rounds import Reports

COARSE = st.integers(0, 6).map(lambda i: 0.25 * i)
"""Few distinct values that floats add without rounding: ties are the rule."""


@dataclass(frozen=True)
class P4Instance:
    """One instance of the per-round problem of RBCS-F."""

    tau_bar_s: Floats
    queues: Floats
    k: int
    V: float


@st.composite
def p4_instances(draw: st.DrawFn, max_devices: int = 8) -> P4Instance:
    """Yield small instances of P4, most of them with ties in times and in queues."""
    n = draw(st.integers(1, max_devices))
    times = draw(st.sampled_from([COARSE, st.floats(-2.0, 9.0)]))
    levels = draw(st.sampled_from([COARSE, st.floats(0.0, 9.0)]))
    return P4Instance(
        tau_bar_s=np.array(draw(st.lists(times, min_size=n, max_size=n))),
        queues=np.array(draw(st.lists(levels, min_size=n, max_size=n))),
        k=draw(st.integers(1, n)),
        V=draw(st.sampled_from([0.0, 0.5, 1.0, 4.0, 20.0])),
    )


@st.composite
def fleets(draw: st.DrawFn, max_devices: int = 12) -> Candidates:
    """Yield fleets at the instant of selection: ties, absent devices, devices never seen."""
    n = draw(st.integers(0, max_devices))
    is_available = draw(hnp.arrays(np.bool_, n))
    is_seen = draw(hnp.arrays(np.bool_, n))
    tau_hat_s = np.where(is_seen, draw(hnp.arrays(np.float64, n, elements=COARSE)), 0.0)
    share = draw(hnp.arrays(np.float64, n, elements=st.sampled_from([0.0, 0.5, 1.0])))
    return Candidates(
        round=draw(st.integers(1, 1000)),
        is_available=is_available,
        tau_hat_s=tau_hat_s,
        width_s=draw(hnp.arrays(np.float64, n, elements=COARSE)),
        transfer_hat_s=share * tau_hat_s,
        n_k=draw(hnp.arrays(np.int64, n, elements=st.integers(1, 500))),
        true_tau_s=draw(hnp.arrays(np.float64, n, elements=COARSE)),
    )


@st.composite
def client_models(draw: st.DrawFn, n_values: int = 5) -> Reports:
    """Yield the verified reports of one round, each from another row, with losses."""
    rows = draw(st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True))
    values = st.floats(-10.0, 10.0, width=32)
    return Reports(
        rows=np.array(rows, dtype=np.int64),
        n_k=draw(hnp.arrays(np.int64, len(rows), elements=st.integers(1, 500))),
        models=[draw(hnp.arrays(np.float32, n_values, elements=values)) for _ in rows],
        loss_before=draw(hnp.arrays(np.float64, len(rows), elements=st.floats(0.0, 20.0))),
        learning_rate=draw(st.sampled_from([0.01, 0.1, 1.0])),
    )
