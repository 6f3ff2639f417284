"""The training speed of one core of this machine, in cores of the reference machine.

    core speed = REFERENCE_STEP_S / (processor time of the same step here)

The step trains the shipped CNN in the agent's own training loop. It is measured once per machine
in a child process, and stored in the user's cache folder.
"""

import hashlib
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from fairbed.coordinator.policy.config import TrainingConfig
from fairbed.coordinator.task.catalogue import load_task
from fairbed.coordinator.task.errors import TaskError
from fairbed.device_agent.engines.base import EngineError
from fairbed.device_agent.engines.onnx import engine_version
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.calibration import Probe, measure_now
from fairbed.wire.artifact import encode_artifact

MODEL, SHAPE, CLASSES, BATCH = "cnn", (1, 28, 28), 10, 20
"""The step: 0.37 GFLOP, most of them in convolutions."""

REFERENCE_STEP_S = 0.017
"""Time of the step on one core of an Intel N100: derived, not measured, and right within a factor
of 2; see tools/derive_reference.py and docs/profiles.md."""

SIGNIFICANT_DIGITS = 3
"""Digits of `HostSpeed.core_speed`."""


class HostSpeed(Struct, frozen=True, kw_only=True):
    """A measurement, as stored in the cache."""

    cpu: str
    cores: int
    engine: str
    step_s: float
    """Processor time of the step, seconds."""

    @property
    def core_speed(self) -> float:
        """Speed of one core, in cores of the reference machine."""
        return float(f"{REFERENCE_STEP_S / self.step_s:.{SIGNIFICANT_DIGITS}g}")


def host_speed(environ: Mapping[str, str]) -> HostSpeed:
    """Return the cached speed of this machine, or measure it in about a second.

    If the cache cannot be written, the next call measures again.

    Args:
        environ: Read for `XDG_CACHE_HOME` and `HOME` only.

    Raises:
        BackendError: The speed cannot be measured.
    """
    try:
        return _cached_or_measured(environ)
    except (EngineError, TaskError) as exc:
        raise BackendError(f"host speed: a training step must run here, got: {exc}") from exc


def _cached_or_measured(environ: Mapping[str, str]) -> HostSpeed:
    path = cache_path(environ)
    with suppress(OSError, msgspec.DecodeError):
        found = msgspec.json.decode(path.read_bytes(), type=HostSpeed)
        if found.step_s > 0.0:
            return found
    train = measure_now(probe()).train
    speed = HostSpeed(
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        engine=engine_version(),
        step_s=train.seconds(BATCH),
    )
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(msgspec.json.encode(speed))
        partial.replace(path)
    return speed


def cache_path(environ: Mapping[str, str]) -> Path:
    """Return the cache file of this type of machine and this engine."""
    key = "\n".join([cpu_model(), str(os.cpu_count()), engine_version(), platform.machine()])
    root = environ.get("XDG_CACHE_HOME") or str(
        Path(environ.get("HOME", "~")).expanduser() / ".cache"
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return Path(root) / "fairbed" / f"host-speed-{digest}.json"


def cpu_model() -> str:
    """Return the model name of the processor."""
    with suppress(OSError, UnicodeDecodeError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        fields = dict(line.partition(":")[::2] for line in reversed(lines) if ":" in line)
        fields = {key.strip(): value.strip() for key, value in fields.items()}
        words = [fields.get(key, "") for key in ("model name", "cpu family", "model", "CPU part")]
        if any(words):
            return " ".join(word for word in words if word)
    return platform.processor() or platform.machine()


def probe() -> Probe:
    """Return the step to measure."""
    hyperparameters = TrainingConfig(batch_size=BATCH).hyperparameters(1)
    artifact = encode_artifact(load_task(MODEL, SHAPE, CLASSES))
    return Probe(artifact=artifact, hyperparameters=hyperparameters)
