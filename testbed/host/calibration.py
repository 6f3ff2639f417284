"""Measure the processor time of training steps and codecs on this machine, in a child process.

    python -m fairbed.testbed.host.calibration PARENT [FILE] < Probe in JSON > Measured in JSON

The child runs the agent's own training loop and coder, so that it counts the whole work of a
device. On a shared machine the processor time of the same step varies by a tenth within an hour:
with the clock, the other hardware thread of a core, the caches. Therefore the step of the task
alternates in short windows with the reference step, the same on every machine, and a cost is

    cost = median over windows of (step of the task / reference step beside it) * reference step

The ratio is far steadier than either time (`fairbed bench calibration`). With FILE, the result is
kept there: a second child with the same file waits, then reads it.

Some kernels count processor time in ticks of up to 10 ms, as User Mode Linux does: a step then
takes none, or ten times its time. There the time on the wall replaces it.

Between two models a device trains, sleeps and frees memory, so its caches hold no part of a model
when a codec starts. Therefore the caches are overwritten before each measurement of a codec.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
import numpy as np
from anyio.from_thread import start_blocking_portal
from msgspec import Struct

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.fleet.codec_agreement import CodecAgreement, encoded_version
from fairbed.coordinator.policy.config import ExchangeConfig, TrainingConfig
from fairbed.coordinator.state.registry import Device
from fairbed.coordinator.task.catalogue import load_task
from fairbed.device_agent import trainer
from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.coding import Coder
from fairbed.device_agent.engines.base import BucketEngine, Engine
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.engines.optimised import OptimisedGraphs
from fairbed.testbed.emulation.work import LengthCosts, StepCost, WorkCosts, fit_cost
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.guard import die_with_parent
from fairbed.testbed.host.memory import task_memory
from fairbed.testbed.host.slow_steps import named_if_slow
from fairbed.testbed.host.step_work import evaluation_work, step_and_frozen_work
from fairbed.wire.artifact import Artifact, TaskSpec, decode_artifact, encode_artifact
from fairbed.wire.chunks import manifest_of
from fairbed.wire.console import print_line
from fairbed.wire.messages import CODECS, Capabilities, Hyperparameters, Manifest, Packed, Train
from fairbed.wire.plugins import PluginError
from fairbed.wire.selfcheck import selfcheck_inputs
from fairbed.wire.tensors import vector_to_bytes

if TYPE_CHECKING:
    from fairbed.device_agent.local_training import GuardedRule

REPEATS = 15
"""Repetitions of each codec measurement; the result is their median."""

CACHE_BYTES = 64 << 20
"""Larger than the private and shared caches of a core."""

COARSE_TICK_S = 1e-3
"""Ticks of processor time that are too long for a step, seconds; usual ones take 1e-7."""

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


def work_clock(
    cpu: Callable[[], float] = time.thread_time, wall: Callable[[], float] = time.perf_counter
) -> Callable[[], float]:
    """Return the clock of processor time, or that on the wall if the former has coarse ticks."""
    began = now = cpu()
    while now == began:  # one tick at most
        now = cpu()
    return cpu if now - began < COARSE_TICK_S else wall


def _decode_s(sample: _CodecSample, spec: TaskSpec, blob: bytearray) -> float:
    coder = Coder()
    coder.keep(sample.before, sample.base)
    clock = work_clock()
    began = clock()
    coder.decode(sample.train, spec.layout, blob)
    return clock() - began


def _encode_s(sample: _CodecSample, spec: TaskSpec) -> float:
    coder = Coder()
    clock = work_clock()
    began = clock()
    coder.encode(sample.train, spec.layout, sample.model, sample.trained)
    return clock() - began


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


MODEL, SHAPE, CLASSES, BATCH = "cnn", (1, 28, 28), 10, 20
"""The reference step: 0.37 GFLOP, most of them in convolutions."""

MEASURE_S = 0.9
"""Time for training steps and the reference steps between them, and again for evaluation; the
lengths of a task with buckets share it."""

MIN_WINDOWS = 5
"""Fewest windows, even beyond `MEASURE_S`."""

WINDOW_S = 0.015
"""Shortest processor time of the steps of a window; a window has a step of each size."""

REFERENCE_STEPS = 4
"""Reference steps after a window; the first, whose caches are cold, is discarded."""

STEADY_SPREAD = 0.03
"""A result with a larger spread is measured again when it is next needed, and the steadier of the
two is kept."""

TIMEOUT_S = 300.0
"""Limit of one measurement, with the wait for those of other processes."""

LOCK = "calibration.lock"
"""File beside the results; the process that holds its lock measures."""

ALONE_S, LOCK_POLL_S = 120.0, 0.05
"""Longest wait for measurements of other processes, of 2 s each, and pause between two looks."""

MAX_KEPT_BYTES = 1 << 30
"""Limit of the optimised graphs of one measurement."""

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
        """Return the probe of a run; it has nothing of its data, which cost no step."""
        return cls(
            artifact=encode_artifact(msgspec.structs.replace(artifact, scale=None, labels=())),
            hyperparameters=training.hyperparameters(1),
            exchange=exchange,
            rule=training.rule,
            rule_options=training.local_options,
        )


class Measured(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Costs of a task on this machine, and the reference step that was measured beside them."""

    task: str
    batch_size: int
    costs: WorkCosts
    reference_s: float
    """Processor time of the reference step, seconds: the first decile of its windows."""
    spread_ratio: float
    """Half the distance of the quartiles of the windows, relative to their median: of the training
    step / reference step."""
    reference_spread_ratio: float
    """The same of the reference step alone."""
    measured_at: float
    """Seconds since 1970."""

    def scaled(self, reference_s: float) -> WorkCosts:
        """Return the costs with another reference step: that of this machine in its cache."""
        return self.costs.scaled(reference_s / self.reference_s)


def measure_now(probe: Probe, file: Path | None = None) -> Measured:
    """Return what `measure_in_child` returns, also where an event loop runs, as in a notebook."""
    with start_blocking_portal() as portal:
        return portal.call(measure_in_child, probe, file)


async def measure_in_child(probe: Probe, file: Path | None = None) -> Measured:
    """Return the costs on this machine, measured in a child process in about two seconds.

    Args:
        probe: The task.
        file: Keeps the result, if it can be written. Calls that name files in the same folder
            measure one after the other, and a steady result that is there already is returned.

    Raises:
        BackendError: The costs cannot be measured.
        PluginError: The local rule cannot be loaded, or breaks its contract.
    """
    command = [sys.executable, "-m", "fairbed.testbed.host.calibration", str(os.getpid())]
    command += [] if file is None else [str(file)]
    what = "the calibration of this machine" if file is None else partial(holder_of, file.parent)
    try:
        with named_if_slow(what, TIMEOUT_S), anyio.fail_after(TIMEOUT_S):
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
    return msgspec.json.decode(done.stdout, type=Measured)


def read_kept(file: Path) -> Measured | None:
    """Return the result in a file; None if there is none, or it is damaged."""
    with suppress(OSError, msgspec.DecodeError):
        found = msgspec.json.decode(file.read_bytes(), type=Measured)
        if found.reference_s > 0.0:
            return found
    return None


def measure(probe: Probe) -> Measured:
    """Run steps of two sizes alternately with the reference step, then the codecs.

    Raises:
        PluginError: The local rule cannot be loaded, or breaks its contract.
    """
    artifact = decode_artifact(probe.artifact)
    engine = open_own_engine(artifact)
    rule = None
    if probe.rule != "sgd":
        from fairbed.device_agent.local_training import make_rule

        rule = make_rule(probe.rule, probe.rule_options)
    reference = reference_step()
    engines = engine.engines if isinstance(engine, BucketEngine) else {0: engine}
    measured = list[tuple[int, _Windows, _Windows]]()
    for length, each in engines.items():
        duration_s = MEASURE_S / len(engines)
        training = _train_windows(each, probe.hyperparameters, rule, reference, duration_s)
        measured.append((length, training, _evaluation_windows(each, reference, duration_s)))
    reference_steps = [s for _, *windows in measured for each in windows for s in each.reference_s]
    reference_s = float(np.quantile(reference_steps, 0.1))
    _, training, evaluation = measured[-1]
    spread_ratio, (work, frozen_work) = training.spread_ratio, step_and_frozen_work(artifact)
    costs = WorkCosts(
        train=training.cost(reference_s),
        evaluate=evaluation.cost(reference_s),
        spread_ratio=spread_ratio,
        work=work,
        frozen_work=frozen_work,
        evaluation_work=evaluation_work(artifact),
        memory=task_memory(artifact, probe.artifact, probe.hyperparameters, work),
        load_s=open_work_s(probe.artifact),
        measured_at=time.time(),
        shorter=tuple(
            LengthCosts(
                length=length, train=train.cost(reference_s), evaluate=evaluate.cost(reference_s)
            )
            for length, train, evaluate in measured[:-1]
        ),
    )
    if probe.exchange is not None:
        decode_s, encode_s = codec_work_s(engine.spec, probe.exchange)
        costs = msgspec.structs.replace(costs, decode_s=decode_s, encode_s=encode_s)
    return Measured(
        task=engine.spec.name,
        batch_size=probe.hyperparameters.batch_size,
        costs=costs,
        reference_s=reference_s,
        spread_ratio=spread_ratio,
        reference_spread_ratio=_spread_ratio(reference_steps),
        measured_at=time.time(),
    )


def open_work_s(blob: bytes) -> float:
    """Return the processor time of opening a session of a task, seconds: the median of five.

    As in the cold start of a device, which has kept the optimised graph since it was prepared.
    """
    times_s = list[float]()
    with tempfile.TemporaryDirectory() as folder:
        kept = OptimisedGraphs(BlobCache(Path(folder), MAX_KEPT_BYTES))
        open_own_engine(decode_artifact(blob), optimised=kept)
        for _ in range(5):
            began = time.thread_time()
            open_own_engine(decode_artifact(blob), optimised=kept)
            times_s.append(time.thread_time() - began)
    return sorted(times_s)[len(times_s) // 2]


def reference_artifact() -> Artifact:
    """Return the task of the reference step."""
    return load_task(MODEL, SHAPE, CLASSES)


def reference_step() -> Callable[[], float]:
    """Return a function that returns the processor time of the reference step now, seconds."""
    engine = open_own_engine(reference_artifact())
    vector, x, y = selfcheck_inputs(engine.spec, seed=0, batch=BATCH)
    settings = TrainingConfig(batch_size=BATCH, learning_rate=_TINY_LEARNING_RATE)
    hyperparameters = settings.hyperparameters(1)
    hyperparameters = msgspec.structs.replace(hyperparameters, epochs=REFERENCE_STEPS)

    def run() -> float:
        timer = _StepTimer()
        trainer.train(engine, vector, x, y, hyperparameters, 0, timer, lambda: False)
        return float(np.median(timer.costs_s[BATCH][1:]))

    return run


def _spread_ratio(values: list[float]) -> float:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float(0.5 * (high - low) / middle)


class _StepTimer:
    """Records the processor time of each step; a `device_agent.host.Meter`."""

    def __init__(self) -> None:
        self.costs_s: dict[int, list[float]] = defaultdict(list)
        self._clock = work_clock()
        self._last = self._clock()

    def step(self, n_examples: int, length: int | None = None) -> None:
        now = self._clock()
        self.costs_s[n_examples].append(now - self._last)
        self._last = now

    def read(self, n_bytes: int) -> None:
        pass


class _Windows:
    """Windows of steps of two sizes, each followed by reference steps; a `Meter`."""

    def __init__(self, reference: Callable[[], float], duration_s: float) -> None:
        self.reference_s: list[float] = []
        """The reference step after each window."""
        self._ratios: dict[int, list[float]] = defaultdict(list)
        self._reference = reference
        self._deadline = time.monotonic() + duration_s
        self._before_s = reference()
        self._timer = _StepTimer()

    @property
    def spread_ratio(self) -> float:
        """See `Measured.spread_ratio`."""
        return _spread_ratio(self._ratios[max(self._ratios)])

    def step(self, n_examples: int, length: int | None = None) -> None:
        self._timer.step(n_examples)
        steps = self._timer.costs_s
        if len(steps) < 2 or sum(map(sum, steps.values())) < WINDOW_S:
            return
        after_s = self._reference()
        beside_s = 0.5 * (self._before_s + after_s)
        for size, costs_s in steps.items():
            warm_s = costs_s[1:] or costs_s
            self._ratios[size].append(float(np.median(warm_s)) / beside_s)
        self.reference_s.append(after_s)
        self._before_s = after_s
        self._timer = _StepTimer()

    def read(self, n_bytes: int) -> None:
        pass

    def is_enough(self) -> bool:
        return len(self.reference_s) >= MIN_WINDOWS and time.monotonic() >= self._deadline

    def cost(self, reference_s: float) -> StepCost:
        medians = [(n, float(np.median(r)) * reference_s) for n, r in sorted(self._ratios.items())]
        return fit_cost(*medians)


SMALLEST = 2
"""Examples of a mini-batch that is measured; batch normalisation has no variance of one."""


def _train_windows(
    engine: Engine,
    hyperparameters: Hyperparameters,
    rule: "GuardedRule | None",
    reference: Callable[[], float],
    duration_s: float,
) -> _Windows:
    size = min(hyperparameters.batch_size, hyperparameters.micro_batch or trainer.EVALUATION_BATCH)
    large = min(max(2 * SMALLEST, size), trainer.EVALUATION_BATCH)
    small = max(SMALLEST, large // 4)
    vector, x, y = selfcheck_inputs(engine.spec, seed=0, batch=large + small)
    settings = msgspec.structs.replace(
        hyperparameters,
        epochs=10_000,
        batch_size=large,
        learning_rate=_TINY_LEARNING_RATE,
        max_steps=None,
        micro_batch=None,
    )
    names = () if rule is None else (*rule.sent, *rule.kept)
    zero = np.zeros(engine.spec.layout.n_params, dtype=np.float32)
    vectors = {name: zero.copy() for name in names}
    windows = _Windows(reference, duration_s)
    trainer.train(
        engine,
        vector,
        x,
        y,
        settings,
        0,
        windows,
        windows.is_enough,
        rule=rule,
        vectors=vectors,
    )
    return windows


def _evaluation_windows(
    engine: Engine, reference: Callable[[], float], duration_s: float
) -> _Windows:
    batch = trainer.EVALUATION_BATCH + SMALL_EVALUATION
    vector, x, y = selfcheck_inputs(engine.spec, seed=0, batch=batch)
    windows = _Windows(reference, duration_s)
    while not windows.is_enough():
        trainer.evaluate(engine, vector, x, y, windows)
    return windows


def _measure_or_read(probe: Probe, file: Path) -> Measured:
    """Return the steady result in a file, or measure; keep the steadier of two results there."""
    with alone(file.parent):
        kept = read_kept(file)
        if kept is not None and kept.spread_ratio <= STEADY_SPREAD:
            return kept
        found = measure(probe)
        if kept is not None and kept.spread_ratio <= found.spread_ratio:
            return kept
        with suppress(OSError):
            partial = file.with_suffix(f".{os.getpid()}")
            partial.write_bytes(msgspec.json.encode(found))
            partial.replace(file)
        return found


@contextmanager
def alone(folder: Path, limit_s: float = ALONE_S) -> Iterator[None]:
    """Wait until no other process measures beside this one; does nothing in a read-only folder.

    After `limit_s` it measures beside the other one, which may be stopped or hung. The kernel frees
    the lock of a process that ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("a+b")
    except OSError:
        yield
        return
    give_up = time.monotonic() + limit_s
    with lock:
        with suppress(OSError):  # a file system without locks
            while not _try_lock(lock.fileno()):
                if time.monotonic() >= give_up:
                    break
                time.sleep(LOCK_POLL_S)
            else:
                os.ftruncate(lock.fileno(), 0)
                os.write(lock.fileno(), f"{os.getpid()}\n".encode())
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder_of(folder: Path) -> str:
    """Return what a calibration waits for, with the process that measures, if that is known."""
    what = "the calibration of this machine"
    try:
        pid = (folder / LOCK).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return what
    return f"{what} by process {pid}" if pid.isdigit() else what


def main() -> int:
    """Measure the probe on stdin.

    The first argument is the process id of the parent, the second, if any, the file that keeps
    the result.
    """
    die_with_parent(int(sys.argv[1]))
    probe = msgspec.json.decode(sys.stdin.buffer.read(), type=Probe)
    files = [Path(argument) for argument in sys.argv[2:]]
    try:
        found = _measure_or_read(probe, files[0]) if files else measure(probe)
    except PluginError as exc:
        print_line(str(exc))
        return PLUGIN_FAULT
    sys.stdout.write(msgspec.json.encode(found).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
