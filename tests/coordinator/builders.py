"""Small valid messages for the tests of the coordinator."""

import os

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
