"""The work of the training thread for a task with a client; every method blocks.

It has the methods of `training_work.TrainingWork`, which `worker.py` calls. The client runs in a
process of its own (`process.py`): this side keeps models, codecs, noise, state and limits. A warm
device keeps that process; a cold one has ended it, so that `load_s` has imports and constructor.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.clients.allowed import client_code
from fairbed.device_agent.clients.child.frames import Header, Parts
from fairbed.device_agent.clients.data import write_examples
from fairbed.device_agent.clients.process import (
    ClientCode,
    ClientFailed,
    ClientProcess,
    ClientServer,
    ClientStopped,
)
from fairbed.device_agent.coding import ReceivedModel, ReceivedModels, artifact_in
from fairbed.device_agent.config import AllowedClient
from fairbed.device_agent.engines.base import Engine
from fairbed.device_agent.errors import AgentError, NotPrepared, RoundFailed, one_line
from fairbed.device_agent.examples import ExampleSource
from fairbed.device_agent.host import Host
from fairbed.device_agent.jobs import (
    NO_TASK,
    ClientAbout,
    EvaluationJob,
    EvaluationResult,
    OtherTask,
    PersonalResult,
    Stopwatch,
    TrainedUpdate,
    TrainingJob,
)
from fairbed.device_agent.memory import release_memory
from fairbed.device_agent.state.lifecycle import Event
from fairbed.device_agent.stored_vector import ByteStore, StoredBytes
from fairbed.wire.artifact import Artifact, ClientSource
from fairbed.wire.errors import DecodeError, EncodeError
from fairbed.wire.evaluation import Quality
from fairbed.wire.messages import (
    MAX_MAGNITUDE,
    MAX_RECORDS_BYTES,
    MAX_VECTOR_BYTES,
    EvaluateRequest,
    Manifest,
    Train,
)
from fairbed.wire.printable import one_line as printed
from fairbed.wire.scale import Scale
from fairbed.wire.tensors import Layout, vector_from_bytes

_log = logging.getLogger(__name__)

R = TypeVar("R")

STATE = "client state"
"""What `ClientSource.state_bytes` bounds; it names the file."""

FILES = "client-files"
"""Folder beside the state in which the client works."""

ACCURACY = "accuracy"
"""Metric of an evaluation that is the share of correct examples."""

LOSS = "loss"
"""Metric of a training that is its mean loss."""

STEPS = "steps"
"""Metric of a training that is the number of its mini-batches."""

MAX_METRICS, MAX_METRIC_NAME = 64, 64
"""Bounds of `wire.messages.Metrics`."""

PREPARE_S = 300.0
"""Longest time of the first start of a client, for which no deadline counts: half of that of a
preparation (`Timeouts.prepare_s`), so that this is the reason that is shown."""

_EXPECTED = (AgentError, DecodeError, EncodeError, ValueError, OSError, MemoryError)
"""Errors that task, data, model or machine may cause; any other error is a bug."""


@dataclass(frozen=True, slots=True)
class _Task:
    manifest: Manifest
    layout: Layout
    source: ClientSource
    code: ClientCode
    about: ClientAbout
    folder: str
    """Own data of the device for this client; empty without any."""
    files: Mapping[str, str]
    """Examples of the device as .npy files, by name."""
    n_k: int
    n_test: int
    has_evaluate: bool
    scale: Scale | None = None
    """Only native training uses it."""

    @property
    def sha256(self) -> bytes:
        """Hash of the task."""
        assert self.manifest.sha256 is not None, "a task has a hash"
        return self.manifest.sha256


class ClientWork:
    """What the training thread of one device does for a client.

    Args:
        host: The machine.
        cache: Tasks and data on the disk.
        state: Folder of what stays on the device, which may not exist yet.
        threads: Threads of one training step.
        allowed: The clients that the owner allows, by name.
        about: Returns what the client learns of its device and run, at a preparation.
        is_unneeded: Whether the preparation in progress is no longer needed.
    """

    engine: Engine | None = None
    """A client has none: the wait for it ends it."""

    def __init__(
        self,
        host: Host,
        cache: BlobCache,
        state: Path,
        threads: int,
        allowed: Mapping[str, AllowedClient],
        about: Callable[[], ClientAbout],
        is_unneeded: Callable[[], bool],
    ) -> None:
        self._host, self._cache, self._threads = host, cache, threads
        self._store = ByteStore(state, STATE)
        self._files = state.absolute() / FILES
        self._allowed, self._about_device, self._is_unneeded = allowed, about, is_unneeded
        self.models = ReceivedModels(host)
        self.task: _Task | None = None
        """What was prepared: task and code are on this device and were checked."""
        self._server: ClientServer | None = None
        self._process: ClientProcess | None = None

    @property
    def is_warm(self) -> bool:
        """The client is in memory."""
        return self._process is not None

    def blob_for(self, train: Train | EvaluateRequest) -> Manifest:
        """Return the blob to download for a round: the packed model, or the model itself.

        Raises:
            RoundFailed: The blob does not fit the task, or the request is not one for a client.
        """
        if self.task is None:
            raise RoundFailed(NO_TASK)
        if problem := _not_for_clients(train):
            raise RoundFailed(problem)
        return self.models.blob_for(train, self.task.layout, has_raw=True)

    def prepare(
        self, manifest: Manifest, source: Callable[[Artifact], ExampleSource | None]
    ) -> None:
        """Check permission, code and data, and construct the client once, then end it.

        Args:
            manifest: The task, in the cache.
            source: Returns the examples for a task; None without any.

        Raises:
            NotPrepared: The client is not allowed, or does not start.
            OtherTask: The task has no client.
        """
        self.task = None
        self.close()
        try:
            artifact = artifact_in(self._cache, manifest)
            if artifact.client is None:
                raise OtherTask
            self.task = self._prepared(manifest, artifact, artifact.client, source)
        except ClientFailed as exc:
            _log_lines(exc)
            raise NotPrepared(one_line(exc)) from exc
        except ClientStopped:
            raise NotPrepared(
                f"client: must start within {PREPARE_S:g} s; correct what its constructor waits for"
            ) from None
        except _EXPECTED as exc:
            raise NotPrepared(one_line(exc)) from exc
        finally:
            self.close()

    def _prepared(
        self,
        manifest: Manifest,
        artifact: Artifact,
        client: ClientSource,
        source: Callable[[Artifact], ExampleSource | None],
    ) -> _Task:
        layout, sizes = artifact.spec.layout, 0
        for array in client.arrays:
            sizes += math.prod(array.shape) * array.dtype.startswith("float")
        if sizes != layout.n_values:
            raise NotPrepared(
                f"task: the floats of the client must be the {layout.n_values} values of the "
                f"layout, got {sizes}; update the coordinator"
            )
        code = client_code(client, self._allowed, self._threads)
        own = self._allowed[client.name].data
        folder = "" if own is None else str(Path(own).expanduser().absolute())
        files, n_k, n_test = dict[str, str](), 0, 0
        examples = source(artifact)
        if examples is not None and not artifact.spec.x_shape:
            _log.warning(
                "client %s: the run has no data, so that of this device (--data) is not read; for "
                "a client set clients.%s.data in agent.toml",
                client.name,
                client.name,
            )
        elif examples is not None:
            with self._host.pace.section("load") as meter:
                files, n_k, n_test = write_examples(examples, self._cache.folder / "client", meter)
        until, about = time.monotonic() + PREPARE_S, self._about_device()
        task = _Task(
            manifest, layout, client, code, about, folder, files, n_k, n_test, has_evaluate=False
        )
        opened = self._start(task, lambda: self._is_unneeded() or time.monotonic() > until)
        own_n = opened.get("n")
        if not n_k:
            n_k = own_n if type(own_n) is int and own_n > 0 else 1
        return replace(task, n_k=n_k, has_evaluate=opened.get("has_evaluate") is True)

    def drop(self) -> None:
        """End the client, and return the memory to the system."""
        self.models.evaluated = None
        self.close()
        release_memory()

    def close(self) -> None:
        """End the client and its server."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def compute(self, job: TrainingJob) -> TrainedUpdate:
        """Verify, decode, load, train and encode; the laps are on `job.watch`.

        Raises:
            RoundFailed: A step failed; the message names it.
        """
        return self._with_round_errors(lambda: self._run_round(job))

    def score(self, should_stop: Callable[[], bool]) -> PersonalResult:
        """A client has no personal model.

        Raises:
            RoundFailed: Always.
        """
        raise RoundFailed("personal model: a client has none")

    def evaluate(self, job: EvaluationJob) -> EvaluationResult:
        """Verify, decode, load and evaluate; the laps are on `job.watch`.

        Raises:
            RoundFailed: A step failed; the message names it.
        """
        return self._with_round_errors(lambda: self._evaluate(job))

    def _with_round_errors(self, work: Callable[[], R]) -> R:
        """Run `work`; convert any error to `RoundFailed`."""
        try:
            return work()
        except ClientStopped:
            self._end_process()  # its state has what no round has
            raise RoundFailed("stopped: the client was ended") from None
        except ClientFailed as exc:
            self._end_process()
            _log_lines(exc)
            raise RoundFailed(one_line(exc)) from exc
        except NotPrepared as exc:
            self.task = None
            raise RoundFailed(one_line(exc)) from exc
        except _EXPECTED as exc:
            self._end_process()
            raise RoundFailed(one_line(exc)) from exc
        except Exception as exc:
            # The outermost handler: a bug fails this round, not the device.
            _log.exception("unexpected error in a round")
            self._end_process()
            raise RoundFailed(f"internal error: {type(exc).__name__}: {one_line(exc)}") from exc

    def _end_process(self) -> None:
        """End the client, whose state in memory may be wrong; the next round starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    # The process.

    def _start(self, task: _Task, should_stop: Callable[[], bool]) -> Header:
        """Start the client and open it; return what it answers.

        Raises:
            ClientFailed: The code cannot be loaded, or the constructor raised.
            ClientStopped: It should stop.
        """
        place = self._host.clients
        address, server = place.address, self._server
        if address is None:
            if server is None or not server.is_alive:
                server = self._server = ClientServer(task.code)
            address = server.address
        state = self._store.load_bytes(task.sha256, task.about.run)
        self._files.mkdir(parents=True, exist_ok=True)
        process = ClientProcess(
            address,
            groups=place.groups,
            network=place.network,
            threads=self._threads,
            most=2 * MAX_VECTOR_BYTES + task.source.state_bytes,
            work=self._files,
        )
        try:
            process.await_fork(should_stop, server)
            if server is None:
                place.imported(process.import_cpu_s)
            with place.running(process.pid):
                opened, _ = process.request(
                    self._about(task),
                    {"state": b"" if state is None else state.content},
                    should_stop,
                    task.source.grace_s,
                )
        except BaseException:
            process.close()
            raise
        self._process = process
        return opened

    def _about(self, task: _Task) -> dict[str, Any]:
        about, source = task.about, task.source
        return {
            "do": "open",
            "device": about.device,
            "number": about.number,
            "count": about.count,
            "run": about.run,
            "folder": task.folder,
            "options": dict(source.options),
            "is_list": source.is_list,
            "weighted_by": source.weighted_by,
            "examples": dict(task.files),
            "arrays": [[array.name, array.dtype, list(array.shape)] for array in source.arrays],
        }

    def _started(self, task: _Task, should_stop: Callable[[], bool]) -> ClientProcess:
        if self._process is None:
            self._start(task, should_stop)
        assert self._process is not None
        return self._process

    # Rounds and evaluations.

    def _run_round(self, job: TrainingJob) -> TrainedUpdate:
        task, train, watch = self.task, job.train, job.watch
        if task is None:
            raise NotPrepared(NO_TASK)
        if problem := _not_for_clients(train) or _not_private(train, task):
            raise RoundFailed(problem)
        model = self.models.of_round(job, task.layout)
        watch.lap("decode")
        was_cold = self._process is None
        job.progress([Event.DOWNLOADED])
        process = self._started(task, job.should_stop)
        watch.lap("load")
        watch.lap("evaluate")
        watch.lap("personal")  # of which there is none, so that the rest of fit is of `encode`
        job.progress([Event.LOADED, Event.EVALUATED])
        header = {
            "do": "fit",
            "round": train.round,
            "seed": train.seed,
            "deadline_s": self._left_s(train.deadline_s, watch),
            "hyperparameters": msgspec.structs.asdict(train.hyperparameters),
        }
        answer, parts = self._requested(process, header, model, train.config, job.should_stop)
        _lap("train", watch, answer)
        self._host.sensors.clock_ratio()  # records the clock while the processor is still busy
        n_k, metrics = _count(answer, 0 if task.source.kind == "flower" else 1), _metrics(answer)
        if job.should_stop():
            raise ClientStopped
        with self._host.pace.section("encode"):
            update, raw_bytes = self._encoded(task, train, model, parts)
        self._keep_state(task, train, parts)  # last: a round that fails leaves the old state
        self.task = replace(task, n_k=max(1, n_k))
        is_private = train.privacy is not None
        loss_train = metrics.get(LOSS)
        return TrainedUpdate(
            update=update,
            model=model.sha256,
            n_k=n_k,
            positions=None,
            steps=_steps(metrics),
            was_cold=was_cold,
            train_cpu_s=_seconds(answer.get("cpu_s")),
            loss_before=_loss_before(train, task.source.loss_metric, metrics),
            loss_train=None if is_private or loss_train is None or loss_train < 0 else loss_train,
            raw_bytes=raw_bytes,
            metrics={} if is_private else metrics,
        )

    def _left_s(self, deadline_s: float, watch: Stopwatch) -> float:
        """Return the seconds of this machine until a deadline."""
        return max(0.0, deadline_s - watch.elapsed_s) * self._host.clients.dilation

    def _requested(
        self,
        process: ClientProcess,
        header: Mapping[str, Any],
        model: ReceivedModel,
        config: bytes,
        should_stop: Callable[[], bool],
    ) -> tuple[Header, Parts]:
        assert self.task is not None
        begun_s = time.monotonic()
        with self._host.clients.running(process.pid):
            answer, parts = process.request(
                header,
                {"vector": model.vector.view(np.uint8).data, "raw": model.raw, "config": config},
                should_stop,
                self.task.source.grace_s,
            )
            answer["total_s"] = time.monotonic() - begun_s  # before an emulated device catches up
        if answer.get("is") != "done":
            raise ValueError("client: must answer with a result")
        warnings = answer.get("warnings")
        for line in warnings[:8] if isinstance(warnings, list) else []:
            _log.warning("client: %s", printed(str(line), 200))
        return answer, parts

    def _encoded(
        self, task: _Task, train: Train, model: ReceivedModel, parts: Parts
    ) -> tuple[memoryview, int]:
        """Return the update as it is sent, and how many bytes of it are raw."""
        w_t, layout = model.vector, task.layout
        trained = vector_from_bytes(parts.get("vector", memoryview(b"")), layout.n_values)
        raw = parts.get("raw", memoryview(b""))
        if raw.nbytes + layout.size_bytes > MAX_VECTOR_BYTES:
            raise RoundFailed(
                f"client: its arrays must have at most {MAX_VECTOR_BYTES:,} bytes, got "
                f"{raw.nbytes + layout.size_bytes:,}"
            )
        if train.privacy is not None:
            from fairbed.device_agent.privacy import privatised

            normals = self._host.noise.stream(train.seed)
            trained = privatised(w_t, trained, train.privacy, normals)
        if layout.n_values:
            trained = self._host.behaviour.update(w_t, trained, layout.n_params, train.seed)
        update = self.models.coder.encode(train, layout, w_t, trained)
        if raw.nbytes:
            update = memoryview(b"".join([update, raw]))
        return update, raw.nbytes

    def _keep_state(self, task: _Task, train: Train, parts: Parts) -> None:
        state = parts.get("state", memoryview(b""))
        most = task.source.state_bytes
        if state.nbytes > most:
            raise RoundFailed(
                f"client: its state must have at most {most:,} bytes, got {state.nbytes:,}; keep "
                "less of it"
            )
        if state.nbytes or self._store.load_bytes(task.sha256, task.about.run) is not None:
            self._store.save_bytes(
                StoredBytes(task.sha256, task.about.run, train.round, bytes(state))
            )

    def _evaluate(self, job: EvaluationJob) -> EvaluationResult:
        """Evaluate a model; a test leaves a cold device cold, a loss query keeps the model."""
        task, request, watch = self.task, job.request, job.watch
        if task is None:
            raise NotPrepared(NO_TASK)
        if problem := _not_for_clients(request):
            raise RoundFailed(problem)
        is_test = request.split == "test"
        if not is_test:
            self.models.evaluated = None
        model = self.models.downloaded(request, task.layout, job.model, watch)
        watch.lap("decode")
        was_cold = self._process is None
        if not task.has_evaluate:
            if not is_test:
                raise RoundFailed(
                    f"client: {task.source.path} must have the method evaluate(arrays, config) for "
                    "a query of losses, got none"
                )
            watch.lap("load")
            watch.lap("evaluate")
            return EvaluationResult(0.0, 0, was_cold, model.sha256)
        process = self._started(task, job.should_stop)
        watch.lap("load")
        header = {
            "do": "evaluate",
            "round": request.round,
            "seed": request.seed,
            "deadline_s": self._left_s(request.limit_s, watch),
            "split": request.split,
        }
        answer, parts = self._requested(process, header, model, request.config, job.should_stop)
        _lap("evaluate", watch, answer)
        if is_test and was_cold:
            self.close()
        if not is_test:
            self.models.evaluated = model
        return _evaluation(answer, parts, was_cold, model.sha256)


def _log_lines(exc: ClientFailed) -> None:
    """Log the last lines of a client."""
    for line in exc.lines:
        _log.warning("client: | %s", line)


def _not_for_clients(request: Train | EvaluateRequest) -> str:
    """Return which part of a request a client cannot have; empty if there is none."""
    coding = request.coding
    if request.local_values is not None:
        return "local values: a task with a client must have none; the client keeps state itself"
    if coding.sent or coding.returned or (isinstance(request, Train) and request.local is not None):
        return "local rule: a task with a client must have none; the client trains itself"
    if isinstance(request, Train) and request.personal is not None:
        return "personal model: a task with a client must have none; the client keeps state itself"
    return ""


def _not_private(train: Train, task: _Task) -> str:
    """Return why a client cannot train with noise; empty if it can."""
    if train.privacy is None:
        return ""
    others = [array.name for array in task.source.arrays if not array.dtype.startswith("float")]
    if train.model.raw_bytes or others or not task.source.arrays:
        name = others[0] if others else "records of the app"
        return f"privacy: every array of a client must be of floats, got {name:.60}, without noise"
    from fairbed.device_agent.privacy import buffers_problem

    return buffers_problem(task.layout)


def _loss_before(train: Train, name: str, metrics: Mapping[str, float]) -> float | None:
    """Return F_k(w_t) by the metric that the experiment names.

    Raises:
        RoundFailed: It is missing.
    """
    if not train.needs_loss:
        return None
    if not name:
        raise RoundFailed(
            "client: the rule of the run needs the loss before training; name the metric of fit "
            "that has it in training.loss_metric"
        )
    if not 0.0 <= metrics.get(name, math.nan) <= MAX_MAGNITUDE:
        raise RoundFailed(
            f"client: fit must return the metric {name:.60}, a loss from 0 (training.loss_metric), "
            f"got {metrics.get(name, 'none')}"
        )
    return metrics[name]


def _lap(name: str, watch: Stopwatch, answer: Header) -> None:
    """End the lap of a request: joining arrays belongs to `decode`, splitting to the next lap."""
    total_s = max(1e-9, _seconds(answer.get("total_s")))
    decode_ratio = _seconds(answer.get("decode_s")) / total_s
    watch.lap_in_parts(name, "decode", decode_ratio, _seconds(answer.get("work_s")) / total_s)


def _seconds(value: Any) -> float:
    """Return a duration of a client, which may be anything, as seconds."""
    is_number = type(value) in (int, float) and math.isfinite(value)
    return max(0.0, float(value)) if is_number else 0.0


def _count(answer: Header, least: int) -> int:
    found = answer.get("n")
    if type(found) is not int or not least <= found < 1 << 53:
        raise ValueError(f"client: n_examples must be a whole number from {least}")
    return found


def _metrics(answer: Header) -> dict[str, float]:
    """Return the metrics of an answer that can be sent."""
    found, kept = answer.get("metrics"), dict[str, float]()
    for name, value in found.items() if isinstance(found, dict) else ():
        is_number = type(value) in (int, float) and abs(value) <= MAX_MAGNITUDE
        if is_number and 0 < len(name) <= MAX_METRIC_NAME and name.isprintable():
            kept[name] = float(value)
    return dict(list(kept.items())[:MAX_METRICS])


def _steps(metrics: Mapping[str, float]) -> int:
    """Return the mini-batches of a training, if the client counts them; else 0."""
    found = metrics.get(STEPS, 0.0)
    return int(found) if 0.0 <= found < 1 << 40 and found == int(found) else 0


def _evaluation(
    answer: Header, parts: Parts, was_cold: bool, model_sha256: bytes
) -> EvaluationResult:
    """Return the result of an evaluation.

    Raises:
        ValueError: A number of it is wrong.
        RoundFailed: Its records are too large.
    """
    n, metrics, loss = _count(answer, 0), _metrics(answer), answer.get("loss")
    loss = 0.0 if loss is None else loss  # a ClientApp may measure none
    if type(loss) not in (int, float) or not 0.0 <= loss <= MAX_MAGNITUDE:
        raise ValueError("client: the loss of evaluate must be a number from 0")
    records = bytes(parts.get("records", b""))
    if len(records) > MAX_RECORDS_BYTES:
        raise RoundFailed(
            f"client: the records of an evaluation must have at most {MAX_RECORDS_BYTES:,} bytes, "
            f"got {len(records):,}"
        )
    accuracy = metrics.get(ACCURACY, math.nan)
    quality = Quality(correct=round(accuracy * n)) if 0.0 <= accuracy <= 1.0 else None
    return EvaluationResult(
        float(loss) if n else 0.0, n, was_cold, model_sha256, quality, metrics, records
    )
