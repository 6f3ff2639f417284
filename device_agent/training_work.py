"""The work of the training thread: it loads, evaluates, trains and encodes; every method blocks.

A warm device keeps session and data in memory; a cold device has freed both, so that `load_s`
measures a real cold start. A `Stopwatch` measures the phases as consecutive laps without gaps.
"""

import logging
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent import trainer
from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.coding import ReceivedModels, artifact_in
from fairbed.device_agent.engines.base import Engine, Examples, OpenEngine, self_check
from fairbed.device_agent.engines.choose import open_engine as open_by_kind
from fairbed.device_agent.engines.optimised import OptimisedGraphs
from fairbed.device_agent.errors import (
    AgentError,
    EngineError,
    NotPrepared,
    RoundFailed,
    one_line,
)
from fairbed.device_agent.examples import ExampleSource, Labelled, same_columns
from fairbed.device_agent.host import Host, Meter, Section
from fairbed.device_agent.jobs import (
    NO_TASK,
    EvaluationJob,
    EvaluationResult,
    OtherTask,
    PersonalResult,
    TrainedUpdate,
    TrainingJob,
)
from fairbed.device_agent.memory import release_memory, trim_heap
from fairbed.device_agent.state.lifecycle import Event
from fairbed.device_agent.trainer import TrainingDiverged, draw_examples
from fairbed.wire.artifact import Artifact, TaskSpec
from fairbed.wire.errors import DecodeError, EncodeError
from fairbed.wire.evaluation import Quality, Targets, positions_of
from fairbed.wire.labels import Classes
from fairbed.wire.messages import (
    EvaluateRequest,
    LocalTraining,
    LocalValues,
    Manifest,
    Personal,
    Train,
)
from fairbed.wire.plugins import PluginError
from fairbed.wire.scale import Scale, other_scale, scale_of
from fairbed.wire.tensors import Layout, with_values

if TYPE_CHECKING:
    from fairbed.device_agent.ditto import PersonalModel
    from fairbed.device_agent.local_training import GuardedRule, LocalRules
    from fairbed.device_agent.stored_vector import LocalValueStore, OptimiserStore

_log = logging.getLogger(__name__)

R = TypeVar("R")

_EXPECTED = (
    AgentError,
    EngineError,
    TrainingDiverged,
    DecodeError,
    EncodeError,
    PluginError,
    ValueError,
    OSError,
    MemoryError,
)
"""Errors that task, data, model or machine may cause; any other error is a bug."""


@dataclass(frozen=True, slots=True)
class _PreparedTask:
    manifest: Manifest
    spec: TaskSpec
    examples: ExampleSource
    n_k: int
    positions: int | None
    """Positions of the training examples that have a target; None with one each."""
    n_test: int
    scale: Scale | None
    """Of the training examples; None for tokens, and for data that the coordinator knows."""
    scale_problem: str
    """How it differs from that of the run, and what to do; empty if it does not."""


@dataclass(frozen=True, slots=True)
class _LoadedTask:
    engine: Engine
    x: Examples
    y: Targets
    held_out: Labelled | None
    """Held-out examples that were read with the others; None if they must be read."""


class _RoundStopped(Exception):
    """The round was stopped."""


class _StoppableMeter:
    """Passes units of work to the host; raises `_RoundStopped` after the round was stopped."""

    def __init__(self, meter: Meter, should_stop: Callable[[], bool]) -> None:
        self.inner = meter
        self._should_stop = should_stop

    def step(self, n_examples: int, length: int | None = None) -> None:
        self.inner.step(n_examples, length)
        if self._should_stop():
            raise _RoundStopped

    def read(self, n_bytes: int) -> None:
        self.inner.read(n_bytes)


class TrainingWork:
    """What the training thread of one device does, its session and data.

    The arguments are those of `TrainingThread`, which makes it.
    """

    def __init__(
        self,
        host: Host,
        cache: BlobCache,
        state: Path,
        open_engine: OpenEngine | None,
        threads: int,
        allowed_rules: Collection[str],
        min_noise_multiplier: float,
        allowed_models: Collection[str],
    ) -> None:
        self._min_noise_multiplier = min_noise_multiplier
        self._host = host
        self._cache = cache
        self._state = state
        self._allowed_rules = allowed_rules
        self._personal: PersonalModel | None = None
        self._local_rules: LocalRules | None = None
        self._local_values: LocalValueStore | None = None
        self._optimiser: OptimiserStore | None = None
        self._optimised = OptimisedGraphs(cache)
        self._open_engine = open_engine or partial(
            open_by_kind, models=allowed_models, optimised=self._optimised, cache=cache
        )
        self._threads = threads
        self.task: _PreparedTask | None = None
        """What was prepared: task and data are on this device and were checked."""
        self._loaded: _LoadedTask | None = None
        self._engine: weakref.ref[Engine] | None = None
        """The last engine that was opened; it is as large as the model, so it is not kept here."""
        self.models = ReceivedModels(host)

    @property
    def engine(self) -> Engine | None:
        """The last engine that was opened, if it is still in use."""
        return None if self._engine is None else self._engine()

    @property
    def is_warm(self) -> bool:
        """Session and data are in memory."""
        return self._loaded is not None

    def blob_for(self, train: Train | EvaluateRequest) -> Manifest:
        """Return the blob to download for a round: the packed model, or the model itself.

        Raises:
            RoundFailed: The blob does not fit the task.
        """
        if self.task is None:
            raise RoundFailed(NO_TASK)
        return self.models.blob_for(train, _layout_of(self.task.spec, train))

    def prepare(
        self, manifest: Manifest, source: Callable[[Artifact], ExampleSource | None]
    ) -> None:
        """Check task and data together, then free both: the first round has a cold start.

        Args:
            manifest: The task, in the cache.
            source: Returns the examples for a task.

        Raises:
            NotPrepared: Task or data cannot be used, or the engine computes wrong results.
            OtherTask: The task has a client.
        """
        self.task = None
        self._loaded = None
        try:
            artifact = artifact_in(self._cache, manifest)
            if artifact.client is not None:
                raise OtherTask
            engine = self._checked(artifact)
            examples = source(artifact)
            if examples is None:
                raise NotPrepared(
                    "data: the coordinator assigned no shard; start the agent with --data FILE.npz"
                )
            with self._host.pace.section("load") as meter:
                training, held_out = examples.load(meter)
            _check_data(engine, *training, columns=artifact.columns)
            n_k, n_test = len(training[1]), 0
            has_positions = bool(artifact.spec.y_shape)
            positions = int(positions_of(training[1]).sum()) if has_positions else None
            known = artifact.scale
            scale = None if known is None or not examples.is_own else scale_of(training[0])
            labels = [training[1]]
            del training
            held_out = held_out or examples.held_out()
            if held_out is not None:
                _check_data(engine, *held_out, name="test data", columns=artifact.columns)
                n_test = len(held_out[1])
                labels.append(held_out[1])
        except _EXPECTED as exc:
            raise NotPrepared(one_line(exc)) from exc
        doubt = Classes.of(artifact).doubt(labels) if examples.is_own else ""
        if doubt:
            _log.warning("data: %s", doubt)
        problem = "" if scale is None or known is None else other_scale(scale, known)
        if problem:
            _log.warning("data: %s", problem)
        self.task = _PreparedTask(
            manifest, artifact.spec, examples, n_k, positions, n_test, scale, problem
        )
        del engine, held_out
        release_memory()

    def close(self) -> None:
        """The task is now one with a client: keep nothing of this one."""
        self.task = None
        self.drop()

    def drop(self) -> None:
        """Free session and data, and return the memory to the system."""
        self._loaded = self.models.evaluated = None
        if self._personal is not None:
            self._personal.take_unscored()
        release_memory()

    def compute(self, job: TrainingJob) -> TrainedUpdate:
        """Verify, decode, load, evaluate, train and encode; the laps are on `job.watch`.

        Raises:
            RoundFailed: A step failed; the message names it.
        """
        return self._with_round_errors(lambda: self._run_round(job))

    def score(self, should_stop: Callable[[], bool]) -> PersonalResult:
        """Evaluate the personal model of the last round on the held-out examples.

        Raises:
            RoundFailed: The model cannot be evaluated; the message names the reason.
        """
        return self._with_round_errors(lambda: self._score(should_stop))

    def evaluate(self, job: EvaluationJob) -> EvaluationResult:
        """Verify, decode, load and evaluate; the laps are on `job.watch`.

        Raises:
            RoundFailed: A step failed; the message names it.
        """
        work = self._test if job.request.split == "test" else self._evaluate
        return self._with_round_errors(lambda: work(job))

    def _opened(self, artifact: Artifact) -> Engine:
        """Return a new engine, which the watchdog of the training thread watches.

        Raises:
            EngineError: It cannot run the task.
        """
        engine = self._open_engine(artifact, self._threads)
        self._engine = weakref.ref(engine)
        return engine

    def _checked(self, artifact: Artifact) -> Engine:
        """Return a new engine that computes the results of the task.

        If it does not with an optimised graph of the cache, the graph is optimised again.

        Raises:
            EngineError: It cannot run the task, or computes wrong results.
        """
        try:
            engine = self._opened(artifact)
            self_check(engine)
        except EngineError as exc:
            graphs = [task.train for task in (*artifact.shorter, artifact)]
            if not any([self._optimised.forget(graph) for graph in graphs]):
                raise
            _log.warning("engine: the optimised graph is made again: %s", exc)
            engine = self._opened(artifact)
            self_check(engine)
        return engine

    def _with_round_errors(self, work: Callable[[], R]) -> R:
        """Run `work`; convert any error to `RoundFailed`."""
        try:
            return work()
        except _RoundStopped:
            raise RoundFailed("stopped: the result is no longer needed") from None
        except NotPrepared as exc:
            self.task = self._loaded = None
            raise RoundFailed(one_line(exc)) from exc
        except TrainingDiverged as exc:
            text = one_line(exc)
            if self.task is not None and self.task.scale_problem:
                text = f"{text.partition(';')[0]}; {self.task.scale_problem}"
            raise RoundFailed(text) from exc
        except _EXPECTED as exc:
            raise RoundFailed(one_line(exc)) from exc
        except Exception as exc:
            # The outermost handler: a bug fails this round, not the device.
            _log.exception("unexpected error in a round")
            raise RoundFailed(f"internal error: {type(exc).__name__}: {one_line(exc)}") from exc

    def _run_round(self, job: TrainingJob) -> TrainedUpdate:
        task, train, watch = self.task, job.train, job.watch
        if task is None:
            raise NotPrepared(NO_TASK)
        layout = task.spec.layout
        if train.privacy is not None:
            from fairbed.device_agent.privacy import buffers_problem

            problem = buffers_problem(layout)
            if problem:
                raise RoundFailed(problem)
        model = self.models.of_round(job, _layout_of(task.spec, train))
        received = model.vector
        w_t = received[: layout.n_values]
        watch.lap("decode")
        # Each call of `progress` wakes the event loop: short phases are reported together.
        pending = [Event.DOWNLOADED]

        was_cold = self._loaded is None
        if was_cold:
            job.progress(pending)
            pending = []
        with self._section("load", job.should_stop) as meter:
            loaded = self._load(task, meter)
            if train.hyperparameters.augment:
                self._check_augment(train)
            rule = None if train.local is None else self._rule_for(train, train.local)
            vector = self._with_local_values(task, train.local_values, w_t, meter)
        watch.lap("load")
        pending.append(Event.LOADED)

        loss_before = None
        if train.needs_loss:
            job.progress(pending)
            pending = []
            with self._section("evaluate", job.should_stop) as meter:
                loss_before, _ = trainer.evaluate(loaded.engine, vector, loaded.x, loaded.y, meter)
        watch.lap("evaluate")
        job.progress([*pending, Event.EVALUATED])

        cpu_s = time.thread_time()
        with self._section("train", job.should_stop) as meter:
            before: dict[str, NDArray[np.float32]] = {}
            sent_vectors: dict[str, NDArray[np.float32]] = {}
            if rule is not None and train.local is not None:
                sent_vectors, before = self._vectors_of(task, rule, train.local, received, meter)
            state = None
            if train.hyperparameters.optimiser is not None:
                state = self._optimiser_state(task, train, meter)
            result = trainer.train(
                loaded.engine,
                vector,
                loaded.x,
                loaded.y,
                train.hyperparameters,
                train.seed,
                meter,
                job.should_stop,
                rule=rule,
                vectors={**sent_vectors, **before},
                state=state,
            )
        cpu_s = time.thread_time() - cpu_s
        if job.should_stop():
            raise _RoundStopped
        if self._local_rules is not None and train.local is not None:
            kept = before, result.kept
            self._local_rules.keep(_hash_of(task), train.local, train.round, *kept)
        if self._optimiser is not None and result.state is not None:
            self._optimiser.keep(_hash_of(task), train, state, result.state)
        if self._local_values is not None and train.local_values is not None:
            local, values = layout.local, train.local_values
            after = vector[local], result.vector[local]
            self._local_values.keep(_hash_of(task), values, train.round, *after)
        watch.lap("train")
        self._host.sensors.clock_ratio()  # records the clock while the processor is still busy

        if train.personal is not None:
            self._train_personal(task, loaded, train, train.personal, vector, job.should_stop)
        watch.lap("personal")

        with self._section("encode", job.should_stop):
            behaviour, local = self._host.behaviour, layout.local
            trained = with_values(result.vector, local, w_t[local])
            if train.privacy is not None:
                from fairbed.device_agent.privacy import privatised

                normals = self._host.noise.stream(train.seed)
                trained = privatised(w_t, trained, train.privacy, normals)
                trained = with_values(trained, local, w_t[local])
            sent = behaviour.update(w_t, trained, layout.n_params, train.seed)
            if result.returned:
                sent = np.concatenate([sent, *result.returned.values()])
            update = self.models.coder.encode(train, layout, w_t, sent)
        return TrainedUpdate(
            update=update,
            model=model.sha256,
            n_k=task.n_k,
            positions=task.positions,
            steps=result.steps,
            was_cold=was_cold,
            train_cpu_s=cpu_s,
            loss_before=_reported(task, loss_before),
            loss_train=_reported(task, result.loss_train) if train.privacy is None else None,
        )

    def _check_augment(self, train: Train) -> None:
        """Check that the owner of this device allows the functions that augment.

        Raises:
            RoundFailed: They are not allowed, or are of another version.
        """
        from fairbed.wire.augment import permission_problem

        if problem := permission_problem(train.hyperparameters.augment, self._allowed_rules):
            raise RoundFailed(problem)

    def _rule_for(self, train: Train, local: LocalTraining) -> "GuardedRule":
        """Return the local rule of a round.

        Raises:
            PluginError: This device does not allow it, lacks it, or has another version of it.
        """
        if self._local_rules is None:
            from fairbed.device_agent.local_training import LocalRules

            self._local_rules = LocalRules(self._allowed_rules, self._state)
        return self._local_rules.of(train, local)

    def _vectors_of(
        self,
        task: _PreparedTask,
        rule: "GuardedRule",
        local: LocalTraining,
        received: NDArray[np.float32],
        meter: Meter,
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[np.float32]]]:
        """Return the vectors that were sent to a rule, and those that it keeps, by name."""
        from fairbed.device_agent.local_training import sent_vectors

        assert self._local_rules is not None, "a rule is made by `_rule_for`"
        layout = task.spec.layout
        kept = self._local_rules.kept(_hash_of(task), local, rule, layout.n_params, meter)
        return sent_vectors(received, layout, rule), kept

    def _optimiser_state(
        self, task: _PreparedTask, train: Train, meter: Meter
    ) -> NDArray[np.float32] | None:
        """Return the state at which the optimiser goes on, shape (n_state,); None: at zero."""
        h = train.hyperparameters
        if not h.keeps_state:
            return None
        from fairbed.device_agent.optimiser import state_size
        from fairbed.device_agent.stored_vector import OptimiserStore

        self._optimiser = self._optimiser or OptimiserStore(self._state)
        size = state_size(h, task.spec.layout.n_params)
        return self._optimiser.load(_hash_of(task), train, size, meter)

    def _with_local_values(
        self,
        task: _PreparedTask,
        values: LocalValues | None,
        received: NDArray[np.float32],
        meter: Meter,
    ) -> NDArray[np.float32]:
        """Return a model, shape (n_values,), with the values that this device keeps.

        Raises:
            RoundFailed: The task has such values, and the message does not name them.
        """
        if not task.spec.layout.local.size:
            return received
        if values is None:
            raise RoundFailed(
                "model: the coordinator must name the run of the values that this device keeps, "
                "got none; update the coordinator"
            )
        if self._local_values is None:
            from fairbed.device_agent.stored_vector import LocalValueStore

            self._local_values = LocalValueStore(self._state)
        return self._local_values.put_into(received, task.spec, _hash_of(task), values, meter)

    def _train_personal(
        self,
        task: _PreparedTask,
        loaded: _LoadedTask,
        train: Train,
        personal: Personal,
        w_t: NDArray[np.float32],
        should_stop: Callable[[], bool],
    ) -> None:
        """Train the personal model v_k from its last value, and save it.

        If it diverges or cannot be saved, the global training goes on.
        """
        from fairbed.device_agent.ditto import PersonalModel, train_personal
        from fairbed.device_agent.stored_vector import StoredVector

        kept = self._personal = self._personal or PersonalModel(self._state)
        task_sha256 = _hash_of(task)
        with self._section("train", should_stop) as meter:
            old = kept.load(task_sha256, personal, train.round, len(w_t), meter)
        if old is not None and old.round == train.round:
            return
        start = kept.first(task.spec, personal, train.round, w_t) if old is None else old.vector
        with self._taking_turns(should_stop) as (meter, validating):
            try:
                trained = train_personal(
                    loaded.engine,
                    start,
                    w_t,
                    loaded.x,
                    loaded.y,
                    personal,
                    train.seed,
                    meter,
                    validating,
                    should_stop,
                )
            except TrainingDiverged as exc:
                _log.warning("personal model: kept as it was: %s", exc)
                trained = start
        if should_stop():
            raise _RoundStopped
        kept.keep(StoredVector(task_sha256, personal.run, train.round, trained))

    def _score(self, should_stop: Callable[[], bool]) -> PersonalResult:
        model = None if self._personal is None else self._personal.take_unscored()
        task, loaded = self.task, self._loaded
        if task is None or loaded is None or model is None:
            raise RoundFailed("personal model: no longer in memory")
        held_out = loaded.held_out or task.examples.held_out()
        if held_out is None or self._min_noise_multiplier:
            return PersonalResult(n=0, loss=0.0, quality=Quality())
        x, y = held_out
        with self._section("evaluate", should_stop) as meter:
            loss, quality = trainer.evaluate(loaded.engine, model.vector, x, y, meter)
        loss = trainer.reported_loss(task.spec, loss)
        return PersonalResult(n=len(y), loss=loss, quality=quality)

    def _evaluate(self, job: EvaluationJob) -> EvaluationResult:
        task, request, watch = self.task, job.request, job.watch
        self.models.evaluated = None
        if task is None:
            raise NotPrepared(NO_TASK)
        layout, should_stop = _layout_of(task.spec, request), job.should_stop
        model = self.models.downloaded(request, layout, job.model, watch)
        vector = model.vector[: task.spec.layout.n_values]
        watch.lap("decode")
        was_cold = self._loaded is None
        with self._section("load", should_stop) as meter:
            loaded = self._load(task, meter)
            vector = self._with_local_values(task, request.local_values, vector, meter)
        watch.lap("load")
        picked = draw_examples(len(loaded.y), request.examples, request.seed)
        x, y = loaded.x[picked], loaded.y[picked]
        with self._section("evaluate", should_stop) as meter:
            loss, _ = trainer.evaluate(loaded.engine, vector, x, y, meter)
        watch.lap("evaluate")
        self.models.evaluated = model
        loss = trainer.reported_loss(task.spec, loss)
        return EvaluationResult(loss=loss, n=len(y), was_cold=was_cold, model=model.sha256)

    def _test(self, job: EvaluationJob) -> EvaluationResult:
        """Evaluate a model on the test examples, and leave everything else as it was.

        A cold device opens a session of its own and stays cold; the model is not kept.
        """
        task, request, watch = self.task, job.request, job.watch
        if task is None:
            raise NotPrepared(NO_TASK)
        layout, should_stop = _layout_of(task.spec, request), job.should_stop
        model = self.models.downloaded(request, layout, job.model, watch)
        vector = model.vector[: task.spec.layout.n_values]
        watch.lap("decode")
        loaded = self._loaded
        with self._section("load", should_stop) as meter:
            vector = self._with_local_values(task, request.local_values, vector, meter)
            if loaded is None:
                engine = self._opened(artifact_in(self._cache, task.manifest))
                held_out = task.examples.held_out()
            else:
                engine = loaded.engine
                held_out = loaded.held_out or task.examples.held_out()
        watch.lap("load")
        loss, n, quality = 0.0, 0, Quality(correct=0)
        if held_out is not None:
            x, y = held_out
            with self._section("evaluate", should_stop) as meter:
                loss, quality = trainer.evaluate(engine, vector, x, y, meter)
            n = len(y)
            del x, y
        watch.lap("evaluate")
        del engine, held_out
        if loaded is None:
            release_memory()
        loss = trainer.reported_loss(task.spec, loss)
        return EvaluationResult(loss, n, loaded is None, model.sha256, quality)

    @contextmanager
    def _section(self, name: Section, should_stop: Callable[[], bool]) -> Iterator[Meter]:
        with self._host.pace.section(name) as meter:
            yield _StoppableMeter(meter, should_stop)

    @contextmanager
    def _taking_turns(
        self, should_stop: Callable[[], bool]
    ) -> Iterator[tuple[Meter, Callable[[], AbstractContextManager[Meter]]]]:
        """Enter a section of training, which is left for each validation and entered again.

        Yields:
            The meter of training, and what enters a validation.
        """
        with ExitStack() as section:
            meter = _StoppableMeter(
                section.enter_context(self._host.pace.section("train")), should_stop
            )

            def enter(name: Section) -> None:
                section.close()
                meter.inner = section.enter_context(self._host.pace.section(name))

            @contextmanager
            def validating() -> Iterator[Meter]:
                enter("evaluate")
                yield meter
                enter("train")

            yield meter, validating

    def _load(self, task: _PreparedTask, meter: Meter) -> _LoadedTask:
        if self._loaded is None:
            (x, y), held_out = task.examples.load(meter)
            artifact = artifact_in(self._cache, task.manifest)
            engine = self._opened(artifact)
            self._loaded = _LoadedTask(engine, x, y, held_out)
            trim_heap()
        return self._loaded


def _layout_of(spec: TaskSpec, request: Train | EvaluateRequest) -> Layout:
    """Return the layout of the model as it travels, with the vectors that follow it."""
    return spec.layout.with_vectors(request.coding.sent)


def _hash_of(task: _PreparedTask) -> bytes:
    assert task.manifest.sha256 is not None, "a task has a hash"
    return task.manifest.sha256


def _check_data(
    engine: Engine, x: Examples, y: Targets, name: str = "data", columns: str = ""
) -> None:
    """Check that the data fits the task.

    Raises:
        ValueError: A target does not fit the task, or a shape or dtype differs.
    """
    trainer.check_targets(engine.spec, y, name)
    if x.dtype != engine.spec.x_dtype or x[0].size != int(np.prod(engine.spec.x_shape)):
        raise ValueError(
            f"{name}: examples must be {engine.spec.x_dtype} {engine.spec.x_shape}, "
            f"got {x.dtype} {x.shape[1:]}{same_columns(columns)}"
        )
    trainer.check_tokens(engine.spec, x, name)
    engine.evaluate(np.zeros(engine.spec.layout.n_values, np.float32), x[:1], y[:1])


def _reported(task: _PreparedTask, loss: float | None) -> float | None:
    return None if loss is None else trainer.reported_loss(task.spec, loss)
