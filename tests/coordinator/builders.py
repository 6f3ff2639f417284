"""Small valid messages and observations for the tests of the coordinator."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.estimation.base import CONTEXT, PHASES
from fairbed.coordinator.policy.selection import Observations
from fairbed.wire.chunks import manifest_of
from fairbed.wire.messages import (
    Capabilities,
    Context,
    Hello,
    Hyperparameters,
    Manifest,
    Offer,
    Phases,
    Train,
)

CAPABILITIES = Capabilities(
    cores=4,
    memory_bytes=1 << 30,
    machine="aarch64",
    python="3.11",
    engine="onnxruntime 1.31.1",
    engine_threads=1,
    agent="0.1.0",
)


def hello(boot: int = 1, n_k: int | None = None) -> Hello:
    """A device that joins."""
    return Hello(boot=boot, capabilities=CAPABILITIES, n_k=n_k)


def context(seq: int = 1, boot: int = 1, **changes: object) -> Context:
    """A device that is ready to train."""
    fields: dict[str, object] = {
        "mu_cores": 1.0,
        "downlink_bps": 8e6,
        "uplink_bps": 4e6,
        "link_age_s": 1.0,
        "is_ready": True,
        "n_k": 100,
    }
    return Context(boot=boot, seq=seq, **(fields | changes))  # type: ignore[arg-type]


def update_manifest(size_bytes: int = 400) -> Manifest:
    """An update that is about to be uploaded."""
    return Manifest(id=os.urandom(16), kind="update", size_bytes=size_bytes, chunk_bytes=32 * 1024)


def phases(train_s: float = 1.0) -> Phases:
    """Where a device spent its time."""
    return Phases(
        download_s=0.2,
        load_s=0.1,
        evaluate_s=0.0,
        train_s=train_s,
        train_cpu_s=train_s / 2,
        encode_s=0.01,
    )


def offer(round_id: int = 1, *, train_s: float = 1.0, manifest: Manifest | None = None) -> Offer:
    """A device that has trained."""
    return Offer(
        round=round_id,
        manifest=manifest or update_manifest(),
        model=MODEL.sha256 or b"",
        phases=phases(train_s),
        n_k=100,
        steps=5,
        was_cold=True,
        loss_before=2.3,
    )


MODEL = manifest_of(b"\0" * 400, "model")
TRAIN = Train(
    round=3,
    model=MODEL,
    hyperparameters=Hyperparameters(epochs=1, batch_size=20, learning_rate=0.1),
    seed=1,
    needs_loss=False,
    deadline_s=60.0,
)


@dataclass(frozen=True)
class Observation:
    """One exchange of `Observations`, with None for NaN."""

    row: int
    tau_s: float | None
    phases_s: tuple[float, ...] | None
    is_aggregated: bool
    timed_out: bool
    loss: float | None = None
    at_least_s: float | None = None
    context: Floats | None = None
    was_cold: bool = False
    wasted_s: float | None = None


def observations(seen: Sequence[Observation]) -> Observations:
    """Return single observations as columns."""
    no_phases, no_context = (np.nan,) * len(PHASES), (np.nan,) * CONTEXT
    phases = [no_phases if o.phases_s is None else o.phases_s for o in seen]
    contexts = [no_context if o.context is None else o.context for o in seen]
    return Observations(
        rows=np.array([o.row for o in seen], dtype=np.int64),
        tau_s=_column([o.tau_s for o in seen]),
        phases_s=np.array(phases, dtype=np.float64).reshape(-1, len(PHASES)),
        is_aggregated=np.array([o.is_aggregated for o in seen], dtype=np.bool_),
        timed_out=np.array([o.timed_out for o in seen], dtype=np.bool_),
        loss=_column([o.loss for o in seen]),
        at_least_s=_column([o.at_least_s for o in seen]),
        context=np.array(contexts, dtype=np.float64).reshape(-1, CONTEXT),
        was_cold=np.array([o.was_cold for o in seen], dtype=np.bool_),
        wasted_s=_column([o.wasted_s for o in seen]),
    )


def _column(values: Sequence[float | None]) -> Floats:
    return np.array(values, dtype=np.float64)  # None becomes NaN
