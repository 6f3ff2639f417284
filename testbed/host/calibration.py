"""Measure the processor time of training steps and codecs on this machine, in a child process.

    python -m fairbed.testbed.host.calibration PARENT < Probe in JSON > WorkCosts in JSON

The child runs the agent's own training loop and coder, so that it counts the whole work of a
device. Between two models a device trains, sleeps and frees memory, so its caches hold no part of
a model when a codec starts. Therefore the caches are overwritten before each measurement.
"""

import os
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec
import numpy as np
from anyio.from_thread import start_blocking_portal
from msgspec import Struct

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.fleet.codec_agreement import CodecAgreement, encoded_version
from fairbed.coordinator.policy.config import ExchangeConfig, TrainingConfig
from fairbed.coordinator.state.registry import Device
from fairbed.device_agent import trainer
from fairbed.device_agent.coding import Coder
from fairbed.device_agent.engines.base import Engine
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.local_training import GuardedRule, make_rule
from fairbed.testbed.emulation.work import StepCost, WorkCosts, fit_cost
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.guard import die_with_parent
from fairbed.testbed.run_folder import WORK
from fairbed.wire.artifact import Artifact, TaskSpec, decode_artifact, encode_artifact
from fairbed.wire.chunks import manifest_of
from fairbed.wire.codecs import CODECS
from fairbed.wire.messages import Capabilities, Hyperparameters, Manifest, Packed, Train
from fairbed.wire.plugins import PluginError
from fairbed.wire.selfcheck import selfcheck_inputs
from fairbed.wire.tensors import vector_to_bytes

REPEATS = 15
"""Repetitions of each codec measurement; the result is their median."""

CACHE_BYTES = 64 << 20
"""Larger than the private and shared caches of a core."""

_CHUNK_BYTES = 65_536

ANY_DEVICE = Device(
    name="any",
    row=0,
    capabilities=Capabilities(
        cores=1,
        memory_bytes=1 << 30,
        machine="",
        python="",
        engine="",
        engine_threads=1,
        agent="",
        codecs=tuple(CODECS),
    ),
)
"""A device that supports every codec, as every agent of this version does."""


@dataclass(frozen=True, slots=True)
class _CodecSample:
    """A received model, and the model after training; vectors of shape (n_values,)."""

    train: Train
    before: Train
    """The request for the previous model version."""
    blob: bytes | None
    """The encoded model; None if it is sent unencoded."""
    base: Vector
    """The previous model version."""
    model: Vector
    trained: Vector


def codec_work_s(spec: TaskSpec, exchange: ExchangeConfig) -> tuple[float, float]:
    """Return the median cost of decoding a model and of encoding an update, core seconds.

    Args:
        spec: Description of the task.
        exchange: The codecs.

    Returns:
        Decoding (0 if models are sent unencoded), and encoding.
    """
    sample, cache = _codec_sample(spec, exchange), np.ones(CACHE_BYTES // 8)
    decoded, encoded = list[float](), list[float]()
    for _ in range(REPEATS):
        if sample.blob is not None:
            cache += 1.0
            decoded.append(_decode_s(sample, spec, bytearray(sample.blob)))
        cache += 1.0
        encoded.append(_encode_s(sample, spec))
    return float(np.median(decoded)) if decoded else 0.0, float(np.median(encoded))


def _decode_s(sample: _CodecSample, spec: TaskSpec, blob: bytearray) -> float:
    coder = Coder()
    coder.keep(sample.before, sample.base)
    began = time.thread_time()
    coder.decode(sample.train, spec.layout, blob)
    return time.thread_time() - began


def _encode_s(sample: _CodecSample, spec: TaskSpec) -> float:
    coder = Coder()
    began = time.thread_time()
    coder.encode(sample.train, spec.layout, sample.model, sample.trained)
    return time.thread_time() - began


def _codec_sample(spec: TaskSpec, exchange: ExchangeConfig) -> _CodecSample:
    """Return a model and two changes of it, each with a noise of 10 % of the values."""
    layout, rng = spec.layout, np.random.Generator(np.random.PCG64(0))
    agreement = CodecAgreement(exchange, layout, "calibration")
    base, _, _ = selfcheck_inputs(spec, seed=0, batch=1)
    model, codec = _changed(base, rng), agreement.down
    blob: bytes | None = None
    packed: Packed | None = None
    if codec is not None:
        is_delta = exchange.down == "delta"
        blob, model = encoded_version(codec, layout, model, base if is_delta else None, rng)
        packed = agreement.packed(manifest_of(blob, "model", _CHUNK_BYTES), _manifest(base))
    train = Train(
        round=1,
        model=_manifest(model),
        hyperparameters=Hyperparameters(epochs=1, batch_size=1, learning_rate=1.0),
        seed=0,
        needs_loss=False,
        deadline_s=1.0,
        coding=agreement.coding(ANY_DEVICE, packed),
    )
    before = msgspec.structs.replace(train, model=_manifest(base))
    return _CodecSample(train, before, blob, base, model, _changed(model, rng))


def _changed(vector: Vector, rng: np.random.Generator) -> Vector:
    noise = rng.standard_normal(len(vector), dtype=np.float32)
    changed: Vector = vector * (np.float32(1.0) + np.float32(0.1) * noise)
    return changed


def _manifest(vector: Vector) -> Manifest:
    return manifest_of(vector_to_bytes(vector), "model", _CHUNK_BYTES)


MEASURE_S = 0.4
"""Time for training steps, and again for evaluation steps."""

MIN_STEPS = 4
"""Fewest steps of each size, even beyond `MEASURE_S`; the first is discarded."""

TIMEOUT_S = 120.0

SMALL_EVALUATION = trainer.EVALUATION_BATCH // 4

PLUGIN_FAULT = 3
"""Exit status of the child if the local rule breaks its contract."""

_TINY_LEARNING_RATE = 1e-6
"""Hardly changes the model: only the cost of a step matters."""


class Probe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The task and codecs to measure."""

    artifact: bytes
    hyperparameters: Hyperparameters
    exchange: ExchangeConfig | None = None
    """Codecs to measure as well; None measures none."""
    rule: str = "sgd"
    """The local rule, which is part of a training step; sgd is none."""
    rule_options: dict[str, bool | int | float | str] = {}
    """Arguments of the rule."""

    @classmethod
    def of(
        cls, artifact: Artifact, training: TrainingConfig, exchange: ExchangeConfig | None = None
    ) -> "Probe":
        """Return the probe of a run."""
        return cls(
            artifact=encode_artifact(artifact),
            hyperparameters=training.hyperparameters(1),
            exchange=exchange,
            rule=training.rule,
            rule_options=training.local_options,
        )


async def work_costs(folder: Path, probe: Probe) -> WorkCosts:
    """Return the costs stored in a run's folder; measure and store them if there are none.

    Raises:
        BackendError: The costs cannot be measured.
        PluginError: The local rule cannot be loaded, or breaks its contract.
        OSError: The costs cannot be stored.
    """
    path = anyio.Path(folder / WORK)
    try:
        return msgspec.json.decode(await path.read_bytes(), type=WorkCosts)
    except (FileNotFoundError, msgspec.DecodeError):
        costs = await measure_in_child(probe)
    await path.write_bytes(msgspec.json.encode(costs))
    return costs


def measure_now(probe: Probe) -> WorkCosts:
    """Return what `measure_in_child` returns, also where an event loop runs, as in a notebook."""
    with start_blocking_portal() as portal:
        return portal.call(measure_in_child, probe)


async def measure_in_child(probe: Probe) -> WorkCosts:
    """Return the costs on this machine, measured in a child process in about a second.

    Raises:
        BackendError: The costs cannot be measured.
        PluginError: The local rule cannot be loaded, or breaks its contract.
    """
    command = [sys.executable, "-m", "fairbed.testbed.host.calibration", str(os.getpid())]
    try:
        with anyio.fail_after(TIMEOUT_S):
            done = await anyio.run_process(
                command, input=msgspec.json.encode(probe), stderr=subprocess.PIPE, check=False
            )
    except (OSError, TimeoutError) as exc:
        reason = f"no result in {TIMEOUT_S:g} s" if isinstance(exc, TimeoutError) else str(exc)
        raise BackendError(
            f"calibration: must measure a training step here, got {reason}; try again"
        ) from exc
    if done.returncode != 0:
        last_line = (done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
        if done.returncode == PLUGIN_FAULT:
            raise PluginError(last_line)
        raise BackendError(
            f"calibration: a training step must run here, got: {last_line}; test this machine "
            "with: fairbed doctor"
        )
    return msgspec.json.decode(done.stdout, type=WorkCosts)


def measure(probe: Probe) -> WorkCosts:
    """Run steps of two sizes alternately, then the codecs; return the median costs.

    Raises:
        PluginError: The local rule cannot be loaded, or breaks its contract.
    """
    engine = open_own_engine(decode_artifact(probe.artifact))
    rule = None if probe.rule == "sgd" else make_rule(probe.rule, probe.rule_options)
    costs = WorkCosts(
        train=_train_cost(engine, probe.hyperparameters, rule), evaluate=_evaluate_cost(engine)
    )
    if probe.exchange is None:
        return costs
    decode_s, encode_s = codec_work_s(engine.spec, probe.exchange)
    return msgspec.structs.replace(costs, decode_s=decode_s, encode_s=encode_s)


class _StepTimer:
    """Records the processor time of each step; a `device_agent.host.Meter`."""

    def __init__(self) -> None:
        self.costs_s: dict[int, list[float]] = defaultdict(list)
        self._deadline = time.monotonic() + MEASURE_S
        self._last = time.thread_time()

    def step(self, n_examples: int) -> None:
        now = time.thread_time()
        self.costs_s[n_examples].append(now - self._last)
        self._last = now

    def read(self, n_bytes: int) -> None:
        pass

    def is_enough(self) -> bool:
        counts = [len(costs) for costs in self.costs_s.values()]
        has_both = len(counts) == 2 and min(counts) >= MIN_STEPS
        return has_both and time.monotonic() >= self._deadline

    def cost(self) -> StepCost:
        medians = [(n, float(np.median(s[1:]))) for n, s in sorted(self.costs_s.items())]
        return fit_cost(*medians)


def _train_cost(
    engine: Engine, hyperparameters: Hyperparameters, rule: GuardedRule | None
) -> StepCost:
    large = min(max(2, hyperparameters.batch_size), trainer.EVALUATION_BATCH)
    vector, x, y = selfcheck_inputs(engine.spec, seed=0, batch=large + max(1, large // 4))
    settings = msgspec.structs.replace(
        hyperparameters,
        epochs=10_000,
        batch_size=large,
        learning_rate=_TINY_LEARNING_RATE,
        max_steps=None,
    )
    names = () if rule is None else (*rule.sent, *rule.kept)
    zero = np.zeros(engine.spec.layout.n_params, dtype=np.float32)
    vectors = {name: zero.copy() for name in names}
    timer = _StepTimer()
    trainer.train(
        engine,
        vector,
        x,
        y,
        settings,
        0,
        timer,
        timer.is_enough,
        rule=rule,
        vectors=vectors,
    )
    return timer.cost()


def _evaluate_cost(engine: Engine) -> StepCost:
    batch = trainer.EVALUATION_BATCH + SMALL_EVALUATION
    vector, x, y = selfcheck_inputs(engine.spec, seed=0, batch=batch)
    timer = _StepTimer()
    while not timer.is_enough():
        trainer.evaluate(engine, vector, x, y, timer)
    return timer.cost()


def main() -> int:
    """Measure the probe on stdin; the first argument is the process id of the parent."""
    die_with_parent(int(sys.argv[1]))
    probe = msgspec.json.decode(sys.stdin.buffer.read(), type=Probe)
    try:
        costs = measure(probe)
    except PluginError as exc:
        sys.stderr.write(f"{exc}\n")
        return PLUGIN_FAULT
    sys.stdout.write(msgspec.json.encode(costs).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
