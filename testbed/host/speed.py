"""What training costs on this machine: measured once, and kept in the user's cache folder.

    core speed = REFERENCE_STEP_S / (processor time of the reference step here)

The reference step trains the shipped CNN in the agent's own training loop; `core speed` is the
speed of one core of this machine, in cores of the reference machine. The costs of a task are kept
relative to the reference step, so the same file costs the same in every run on this machine.

A result is valid for one kind of processor, the versions of the libraries, the code of the
training loop and, for a task, its artifact, settings and codecs. `fairbed doctor --calibrate`
measures everything again.
"""

import hashlib
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import anyio
import msgspec
from anyio.from_thread import start_blocking_portal
from msgspec import Struct

from fairbed.coordinator.policy.config import LOCAL_RULES, TrainingConfig
from fairbed.coordinator.task.catalogue import user_cache
from fairbed.coordinator.task.errors import TaskError
from fairbed.device_agent.errors import EngineError
from fairbed.device_agent.installed import engine_version, installed_version
from fairbed.testbed.emulation.work import WorkCosts
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.calibration import (
    BATCH,
    STEADY_SPREAD,
    Measured,
    Probe,
    measure_in_child,
    measure_now,
    read_kept,
    reference_artifact,
)
from fairbed.testbed.run_folder import WORK
from fairbed.wire.models import source_hash
from fairbed.wire.plugins import PluginError, is_path

REFERENCE_STEP_S = 0.017
"""Time of the step on one core of an Intel N100: derived, not measured, and right within a factor
of 2; see tools/derive_reference.py and docs/profiles.md."""

SIGNIFICANT_DIGITS = 3
"""Digits of `HostSpeed.core_speed`."""

_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "torch")
_CODE = (
    "device_agent/cache.py",
    "device_agent/coding.py",
    "device_agent/engines",
    "device_agent/local_training.py",
    "device_agent/peak_memory.py",
    "device_agent/trainer.py",
    "testbed/host/calibration.py",
    "testbed/host/memory.py",
    "testbed/host/step_work.py",
    "testbed/host/torch_work.py",
    "wire/codecs",
)
"""Files and folders of the code whose work is measured."""


class HostSpeed(Struct, frozen=True, kw_only=True):
    """The speed of this machine, from a measurement."""

    cpu: str
    cores: int
    engine: str
    step_s: float
    """Processor time of the reference step, seconds."""
    spread_ratio: float
    """Half the distance of the quartiles of the windows of the measurement, relative to their
    median."""
    measured_at: float
    """Seconds since 1970."""

    @property
    def core_speed(self) -> float:
        """Speed of one core, in cores of the reference machine."""
        return float(f"{REFERENCE_STEP_S / self.step_s:.{SIGNIFICANT_DIGITS}g}")


def host_speed(environ: Mapping[str, str]) -> HostSpeed:
    """Return the cached speed of this machine, or measure it in about two seconds.

    If the cache cannot be written, the next call measures again.

    Args:
        environ: Read for `XDG_CACHE_HOME` and `HOME` only.

    Raises:
        BackendError: The speed cannot be measured.
    """
    try:
        found = _reference(environ)
    except (EngineError, TaskError) as exc:
        raise BackendError(f"host speed: a training step must run here, got: {exc}") from exc
    return HostSpeed(
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        engine=engine_version(),
        step_s=found.reference_s,
        spread_ratio=found.reference_spread_ratio,
        measured_at=found.measured_at,
    )


def _reference(environ: Mapping[str, str]) -> Measured:
    file = cache_path(environ)
    return read_kept(file) or measure_now(reference_probe(), file)


async def work_costs(folder: Path, probe: Probe) -> WorkCosts:
    """Return the costs stored in a run's folder; store those of this machine if there are none.

    Raises:
        BackendError: The costs cannot be measured.
        PluginError: The local rule cannot be loaded, or breaks its contract.
        OSError: The costs cannot be stored.
    """
    path = anyio.Path(folder / WORK)
    try:
        return msgspec.json.decode(await path.read_bytes(), type=WorkCosts)
    except (FileNotFoundError, msgspec.DecodeError):
        costs = await machine_costs(probe, os.environ)
    await path.write_bytes(msgspec.json.encode(costs))
    return costs


async def machine_costs(probe: Probe, environ: Mapping[str, str]) -> WorkCosts:
    """Return the costs of a task on this machine, from the cache or by measuring them.

    Args:
        probe: The task.
        environ: Read for `XDG_CACHE_HOME` and `HOME` only.

    Raises:
        BackendError: The costs cannot be measured.
        PluginError: The local rule cannot be loaded, or breaks its contract.
    """
    file = costs_path(probe, environ)
    found = None if file is None else read_kept(file)
    if found is None or found.spread_ratio > STEADY_SPREAD:
        found = await measure_in_child(probe, file)
    reference = read_kept(cache_path(environ))
    if reference is None:
        try:
            reference = await measure_in_child(reference_probe(), cache_path(environ))
        except (EngineError, TaskError) as exc:
            raise BackendError(f"calibration: a training step must run here, got: {exc}") from exc
    return found.scaled(reference.reference_s)


def machine_costs_now(probe: Probe, environ: Mapping[str, str]) -> WorkCosts:
    """Return what `machine_costs` returns, also where an event loop runs, as in a notebook."""
    with start_blocking_portal() as portal:
        return portal.call(machine_costs, probe, environ)


def cached(environ: Mapping[str, str]) -> list[Measured]:
    """Return what the cache holds for this machine and these versions, without the reference."""
    files = sorted(cache_path(environ).parent.glob(f"costs-{_machine_digest()}-*.json"))
    return [found for file in files if (found := read_kept(file)) is not None]


def forget(environ: Mapping[str, str]) -> None:
    """Remove every cached measurement; ignores files that cannot be removed."""
    folder = cache_path(environ).parent
    for file in [*folder.glob("host-speed-*.json"), *folder.glob("costs-*.json")]:
        with suppress(OSError):
            file.unlink()


def cache_path(environ: Mapping[str, str]) -> Path:
    """Return the cache file of the reference step on this machine with these versions."""
    return user_cache(environ) / f"host-speed-{_machine_digest()}.json"


def costs_path(probe: Probe, environ: Mapping[str, str]) -> Path | None:
    """Return the cache file of the costs of a task; None if the code of its rule is unknown.

    What changes no cost has no part in it: the size of a step, and how many there are.
    """
    rule = b""
    if is_path(probe.rule):
        with suppress(PluginError):
            rule = source_hash(probe.rule)
    if not rule and probe.rule not in LOCAL_RULES:
        return None
    h = probe.hyperparameters
    training = msgspec.structs.replace(
        h, epochs=1, personal_epochs=min(1, h.personal_epochs), learning_rate=1.0, max_steps=None
    )
    parts = [
        probe.artifact,
        msgspec.json.encode([training, probe.exchange, probe.rule, probe.rule_options]),
        rule,
    ]
    digest = _digest(parts)
    return cache_path(environ).with_name(f"costs-{_machine_digest()}-{digest}.json")


@cache
def _machine_digest() -> str:
    """Return the hash of processor, library versions and code, 16 characters."""
    here = Path(__file__).resolve().parents[2]
    names = [cpu_model(), str(os.cpu_count()), platform.machine(), platform.python_version()]
    names += [f"{name} {installed_version(name)}" for name in _PACKAGES]
    files = [path for name in _CODE for path in _sources(here / name)]
    return _digest([*(name.encode() for name in names), *(file.read_bytes() for file in files)])


def _sources(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def _digest(parts: list[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()[:16]


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


def reference_probe() -> Probe:
    """Return the reference step as a task."""
    return Probe.of(reference_artifact(), TrainingConfig(batch_size=BATCH))
