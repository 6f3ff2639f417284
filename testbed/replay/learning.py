"""The model of a replay: devices train it, the rule merges updates, an evaluator scores it.

Models and updates pass the codecs of the run, as in a live run.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Accumulator, Note, Stack
from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints, Vector
from fairbed.coordinator.fleet.codec_agreement import CodecAgreement, encoded_version
from fairbed.coordinator.policy.config import CoordinatorConfig, ExchangeConfig
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.ports import Evaluator, Score
from fairbed.coordinator.rounds.merging import measured_in
from fairbed.coordinator.rounds.update_store import UpdateStore
from fairbed.device_agent.coding import ENCODING
from fairbed.device_agent.engines.base import Engine
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.privacy import SeededNoise, privatised
from fairbed.device_agent.trainer import TrainingDiverged, draw_examples, evaluate, reported_loss
from fairbed.testbed.emulation.malicious import Attack, MaliciousDevice
from fairbed.testbed.experiment.shards import first_model, task_of
from fairbed.testbed.replay.cohort.base import CohortJob, CohortResult, Trainer
from fairbed.testbed.replay.cohort.choose import make_trainer
from fairbed.testbed.replay.cohort.devices import DeviceTrainer, Unpaced
from fairbed.testbed.replay.cohort.ordered import free_cores
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.testbed.replay.device_vectors import (
    STARTS_BYTES,
    DeviceVectors,
    LocalValues,
    RuleCohort,
    optimiser_states,
)
from fairbed.testbed.replay.engine.training import Learned, PersonalScoreOf, VersionBatch
from fairbed.testbed.replay.personal import PersonalCohort
from fairbed.testbed.replay.setup import ReplaySetup
from fairbed.testbed.run.evaluation import FleetEvaluator
from fairbed.testbed.run.memory import check_parts
from fairbed.wire.artifact import Artifact, TaskSpec
from fairbed.wire.codecs import encode_with_feedback, pack, unpack
from fairbed.wire.errors import DecodeError, EncodeError
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.tensors import Layout, vector_from_bytes, vector_to_bytes

if TYPE_CHECKING:
    from fairbed.testbed.replay.cohort.base import CohortHelpers


class Codings:
    """Applies the codecs; keeps the residual that top-k adds to a device's next update.

    Every device supports every codec. Vectors of the local rule are not encoded.

    Args:
        config: The codecs.
        layout: Layout of the model.
        vector_counts: Vectors of the local rule that follow a model, and that follow an update.
    """

    def __init__(
        self, config: ExchangeConfig, layout: Layout, vector_counts: tuple[int, int]
    ) -> None:
        agreement = CodecAgreement(config, layout, "replay", vector_counts)
        self._layout = layout
        self.update_layout = agreement.up_layout
        """Layout of an update with the vectors that follow it."""
        self._up, self._down = agreement.up, agreement.down
        self._has_feedback, self._is_delta = config.up == "top-k", config.down == "delta"
        self._residuals: dict[int, Vector] = {}

    def version(self, vector: Vector, old: Vector | None, rng: np.random.Generator) -> Vector:
        """Return a model, shape (n_values,), as devices decode it.

        Args:
            vector: The model.
            old: The previous version; None for the first.
            rng: Random numbers of stochastic rounding.
        """
        if self._down is None or (self._is_delta and old is None):
            return vector
        base = old if self._is_delta else None
        try:
            return encoded_version(self._down, self._layout, vector, base, rng)[1]
        except EncodeError:
            return vector  # the model is sent unpacked

    def update(self, row: int, seed: int, sent: Vector, trained: Vector) -> Vector:
        """Return the model that the coordinator decodes from an update that it merges.

        Args:
            row: The device.
            seed: Seed of its training.
            sent: w_t, shape (n_values,).
            trained: w_k after local training, and the vectors that follow it, shape (n_values
                and more,).

        Raises:
            EncodeError: A change is too large for the codec.
        """
        if self._up is None:
            return trained
        n = self._layout.n_params
        rng = np.random.default_rng(np.random.SeedSequence([seed, ENCODING]))
        with np.errstate(over="ignore"):  # the codec refuses values that are not finite
            change = trained[:n] - sent[:n]
        if self._has_feedback:
            residual = self._residuals.get(row)
            payload, self._residuals[row] = encode_with_feedback(self._up, change, residual, rng)
        else:
            payload = self._up.encode(change, rng)
        blob = pack(self._up, n, payload, trained[n:])
        return unpack(blob, self._up, self.update_layout, sent)

    def updates(
        self, rows: Ints, seeds: Ints, sent: Vector, trained: Vector
    ) -> tuple[Vector, Bools]:
        """Return the models of K devices as `update` does, and which of them can be encoded.

        Args:
            rows: The devices, shape (K,).
            seeds: Seeds of their training, shape (K,).
            sent: w_t, shape (n_values,).
            trained: Models after local training, and the vectors that follow them, shape (K,
                n_values and more); not changed.
        """
        is_coded = np.ones(len(rows), dtype=np.bool_)
        if self._up is None:
            return trained, is_coded
        models = trained.copy()
        for at, (row, seed) in enumerate(zip(rows.tolist(), seeds.tolist(), strict=True)):
            try:
                models[at] = self.update(row, seed, sent, trained[at])
            except EncodeError:
                is_coded[at] = False
        return models, is_coded

    def to_state(self) -> list[Any]:
        """Return the residual of each device, for the checkpoint."""
        return [[row, residual.tobytes()] for row, residual in sorted(self._residuals.items())]

    def load_state(self, state: list[Any]) -> None:
        """Take over a state that `to_state` returned."""
        self._residuals = {row: np.frombuffer(data, dtype=np.float32).copy() for row, data in state}


class BatchLosses:
    """Losses of one mini-batch per device, which `cpow-d` queries; computed by the devices' engine.

    Args:
        artifact: The task.
        shards: The training data.
    """

    def __init__(self, artifact: Artifact, shards: Shards) -> None:
        self._artifact, self._shards = artifact, shards
        self._engine: Engine | None = None
        """Opened by the first query; most replays have no query."""

    def of(
        self,
        model_of: Callable[[int], Vector],
        devices: Sequence[int],
        seeds: Sequence[int],
        examples: int,
    ) -> Floats:
        """Return the mean loss on a mini-batch of each device, nats, shape (K,).

        Args:
            model_of: Returns the model as a device has it, shape (n_values,).
            devices: Numbers of their shards.
            seeds: Seeds that draw the examples of each device.
            examples: Size of a mini-batch.

        Returns:
            The losses; infinite where one is not finite.
        """
        engine = self._engine = self._engine or open_own_engine(self._artifact)
        losses = []
        for device, seed in zip(devices, seeds, strict=True):
            x, y = self._shards.whole(device)
            picked = draw_examples(len(y), examples, seed)
            try:
                loss, _ = evaluate(engine, model_of(device), x[picked], y[picked], Unpaced())
            except TrainingDiverged:
                loss = np.inf
            losses.append(reported_loss(self._artifact.spec, loss))
        return np.array(losses, dtype=np.float64)


class Learning:
    """Local training and merging in a replay; a `testbed.replay.engine.training.Cohort`.

    Row n of the fleet holds shard n. No result depends on the number of threads.

    Args:
        decisions: Merge updates, and seed the order of mini-batches.
        trainer: Trains as the devices do.
        evaluator: Scores the model.
        vector: The model before round 1, shape (n_values,).
        folder: Folder for the models of a round, if the rule needs all of them at once.
        batch_losses: Evaluates mini-batches for loss queries; None where there are none.
        attacks: Behaviour of each malicious device, by its row.
        personal: Trains the personal models; None if there are none.
        rule: The devices' half of the local rule; None if there is none.
        positions: Positions of the training examples of each device that have a target, shape (N,),
            the weights of its updates; None with one each.
        part_sizes: Examples that each device computes at once, shape (N,); None: as the round has.
        local: Values of the model that each device keeps; None if there are none.
        states: State of the optimiser of each device; None if none is kept.
    """

    def __init__(
        self,
        decisions: Decisions,
        trainer: Trainer,
        evaluator: Evaluator,
        vector: Vector,
        folder: Path,
        batch_losses: BatchLosses | None = None,
        attacks: Mapping[int, Attack] | None = None,
        personal: PersonalCohort | None = None,
        rule: RuleCohort | None = None,
        positions: Ints | None = None,
        part_sizes: Ints | None = None,
        local: LocalValues | None = None,
        states: DeviceVectors | None = None,
    ) -> None:
        self._positions, self._part_sizes = positions, part_sizes
        self._malicious = {row: MaliciousDevice(one) for row, one in (attacks or {}).items()}
        self._decisions = decisions
        self._config: CoordinatorConfig = decisions.config
        self._trainer = trainer
        self._evaluator = evaluator
        layout, counts = trainer.spec.layout, decisions.vector_counts
        self._codings = Codings(self._config.exchange, layout, counts)
        self._vector = self._codings.version(vector, None, decisions.encoding_stream(0))
        self._folder = folder
        self._batch_losses = batch_losses
        self._personal = personal
        self._rule, self._local, self._states = rule, local, states
        self._privacy, self._noise = decisions.config.privacy.request(), SeededNoise()
        self.personal_scores: list[PersonalScoreOf] = []
        """What `score_personal` found since the last call of `train`."""
        self._before: dict[int, Vector] = {}
        """Earlier model versions that devices in flight still train, by number."""
        self.evaluate_s = 0.0
        """Duration of the last evaluation, seconds of this machine."""
        self.notes: tuple[Note, ...] = ()
        """What the merge of the last round states."""

    @property
    def vector(self) -> Vector:
        """The current model, shape (n_values,)."""
        return self._vector

    @property
    def spec(self) -> TaskSpec:
        """The task."""
        return self._trainer.spec

    def remarks(self) -> list[str]:
        """Return what this training does otherwise than devices, as lines."""
        if self._config.training.micro_batch is None or isinstance(self._trainer, DeviceTrainer):
            return []
        return [
            f"training.micro_batch: this replay trains by {self._trainer.name}, which computes "
            "whole mini-batches: its models differ from those of devices by rounding"
        ]

    def train(
        self,
        round_id: int,
        version: int,
        batches: Sequence[VersionBatch],
        needed: Collection[int],
    ) -> list[Learned]:
        """Train devices, each from its model version, and merge a part into the next version.

        An update of an earlier version enters the current model by the rule for late updates. A
        device whose training diverges has no update and reports no loss.

        Args:
            round_id: The round that merges.
            version: Number of the current model version.
            batches: Devices that completed local training, by the round of their dispatch.
            needed: Versions that devices in flight still train.

        Returns:
            The reports of each batch.

        Raises:
            PluginError: A plug-in breaks its contract.
        """
        self.personal_scores, self.notes = [], ()
        if not batches:
            self._before = self._kept(needed)
            return []
        layout = self._trainer.spec.layout
        accumulator = self._decisions.begin_merge(
            round_id,
            self._vector,
            layout.n_params,
            lambda: UpdateStore(self._folder, self._codings.update_layout.n_values),
            layout.local,
        )
        learned, added = list[Learned](), list[tuple[Learned, Ints]]()
        for batch in batches:
            base = self._vector if batch.version == version else self._before[batch.version]
            rebase = partial(self._rebased, base=base, staleness=version - batch.version)
            learned.append(Learned.nothing(len(batch.rows)))
            for places in self._train(batch, base, accumulator, rebase, learned[-1]):
                added.append((learned[-1], places))
            if self._personal is not None:
                self._train_personal(self._personal, batch, base, learned[-1].has_diverged)
        self._before = self._kept(needed)
        if any(places.size for _, places in added):
            if version in needed:
                self._before[version] = self._vector
            rng = self._decisions.encoding_stream(round_id)
            merge = accumulator.finish()
            self.notes = merge.notes
            measured = iter(measured_in(merge))
            for one, places in added:
                for at in places.tolist():
                    one.merged[at] = next(measured)
            self._vector = self._codings.version(merge.vector, self._vector, rng)
        return learned

    def _train(
        self,
        batch: VersionBatch,
        base: Vector,
        accumulator: Accumulator,
        rebase: Callable[[Vector], Vector],
        learned: Learned,
    ) -> Iterator[Ints]:
        """Train one batch from `base`, shape (n_values,); merge its part after `rebase`.

        Yields:
            Positions in the batch of the updates that were added to the merge, in that order.
        """
        rows = batch.rows.tolist()
        needs_loss = self._decisions.aggregator.needs_loss
        before = None
        if needs_loss:
            before = self._reported(batch.rows, self._losses(base, rows))
        seeds = self._decisions.training_seeds(batch.round, batch.rows)
        jobs = self._drawn(self._jobs(rows, seeds), batch)
        hyperparameters = self._config.training.hyperparameters(batch.round)
        for results in self._results(base, jobs, hyperparameters):
            at, has_failed = results.at, results.has_failed
            learned.has_diverged[at] = learned.has_failed[at] = has_failed
            if self._privacy is None:
                trained = self._reported(batch.rows[at], results.loss_train)
                learned.losses[at] = trained if before is None else before[at]
            is_merged = batch.is_merged[at] & ~has_failed
            models = results.vectors
            if self._local is not None:
                models = self._local.without(models, base)
            models = self._with_noise(seeds[at], base, models, is_merged)
            models = self._sent(batch.rows[at], seeds[at], base, models, has_failed)
            sent, models = at[is_merged], _of(models, is_merged)
            places = np.flatnonzero(is_merged)
            if self._rule is not None:
                models = self._rule.updates(models, results, places)
            models, is_coded = self._codings.updates(batch.rows[sent], seeds[sent], base, models)
            learned.has_failed[sent[~is_coded]] = True
            arrived, places, models = sent[is_coded], places[is_coded], _of(models, is_coded)
            is_accepted = self._checked(batch.rows[arrived], arrived, models, learned)
            arrived, models = arrived[is_accepted], rebase(_of(models, is_accepted))
            if self._rule is not None:
                self._rule.keep(batch.rows[arrived], results, places[is_accepted])
            if self._local is not None:
                self._local.keep(batch.rows[arrived], results.vectors[places[is_accepted]])
            if self._states is not None and results.states is not None:
                states = results.states[places[is_accepted]]
                for row, state in zip(batch.rows[arrived].tolist(), states, strict=True):
                    self._states.keep(row, state)
            losses = None if before is None else before[arrived]
            rows, weights = batch.rows[arrived], batch.n_k[arrived]
            if self._positions is not None:
                weights = self._positions[rows]
            accumulator.add_all(Stack(rows, weights, models, losses))
            yield arrived
        learned.losses[learned.has_failed] = np.nan

    def _jobs(self, rows: Sequence[int], seeds: Ints) -> list[CohortJob]:
        """Return the training of some devices, with seeds of shape (K,)."""
        sizes = self._part_sizes
        return [
            CohortJob(row, seed, None if sizes is None else int(sizes[row]))
            for row, seed in zip(rows, seeds.tolist(), strict=True)
        ]

    def _drawn(self, jobs: list[CohortJob], batch: VersionBatch) -> list[CohortJob]:
        """Return jobs with the passes and steps that their devices draw in a round."""
        work = self._decisions.local_work
        if work is None:
            return jobs
        drawn = work.drawn(batch.round, batch.rows)
        return [
            replace(
                job,
                epochs=None if drawn.epochs is None else int(drawn.epochs[at]),
                max_steps=None if drawn.max_steps is None else int(drawn.max_steps[at]),
            )
            for at, job in enumerate(jobs)
        ]

    def _results(
        self, base: Vector, jobs: Sequence[CohortJob], hyperparameters: Hyperparameters
    ) -> Iterator[CohortResult]:
        """Train devices from `base`, shape (n_values,), with the local rule, if there is one.

        Each begins with the values of the model that it keeps, if there are some, and goes on at
        the state of its optimiser.
        """
        local, kept = self._local, self._states
        if local is None and kept is None:
            yield from self._trained(base, jobs, hyperparameters, None, None)
            return
        bytes_each = base.nbytes if kept is None else base.nbytes + kept.nbytes
        size = max(1, STARTS_BYTES // bytes_each)
        for begin in range(0, len(jobs), size):
            part = jobs[begin : begin + size]
            rows = [job.device for job in part]
            starts = None if local is None else local.starts(rows, base)
            states = None if kept is None else kept.starts(rows)
            for result in self._trained(base, part, hyperparameters, starts, states):
                yield replace(result, at=result.at + begin)

    def _trained(
        self,
        base: Vector,
        jobs: Sequence[CohortJob],
        hyperparameters: Hyperparameters,
        starts: Vector | None,
        states: Vector | None,
    ) -> Iterator[CohortResult]:
        """Train devices from `starts`, shape (K, n_values), or all from `base`."""
        if self._rule is None:
            return self._trainer.train(base, jobs, hyperparameters, starts, None, states)
        half = self._decisions.local_half
        n = self._trainer.spec.layout.n_params
        sent = np.zeros(0, dtype=np.float32) if half is None else half.vectors(n)
        return self._rule.train(self._trainer, base, jobs, hyperparameters, sent, starts, states)

    def _reported(self, rows: Ints, losses: Floats) -> Floats:
        """Return the losses that devices report, shape (K,), instead of those that they found."""
        if not self._malicious:
            return losses
        columns = zip(rows.tolist(), losses.tolist(), strict=True)
        reported = [
            self._malicious[row].loss(x) if row in self._malicious and np.isfinite(x) else x
            for row, x in columns
        ]
        return np.array(reported, dtype=np.float64)

    def _with_noise(self, seeds: Ints, base: Vector, trained: Vector, is_merged: Bools) -> Vector:
        """Return the models that devices encode, shape (K, n_values): clipped and with noise.

        Args:
            seeds: Seeds of their training, shape (K,).
            base: w_t, shape (n_values,).
            trained: Models after local training, shape (K, n_values); not changed.
            is_merged: Whether the model is used, shape (K,); the others are returned as they are.
        """
        if self._privacy is None:
            return trained
        models: Vector = trained.copy()
        for at in np.flatnonzero(is_merged).tolist():
            normals = self._noise.stream(int(seeds[at]))
            models[at] = privatised(base, trained[at], self._privacy, normals)
        return models

    def _sent(
        self, rows: Ints, seeds: Ints, base: Vector, trained: Vector, has_failed: Bools
    ) -> Vector:
        """Return the models that devices send, shape (K, n_values), without vectors of the rule.

        Args:
            rows: The devices, shape (K,).
            seeds: Seeds of their training, shape (K,).
            base: w_t, shape (n_values,).
            trained: Models after local training, shape (K, n_values); not changed.
            has_failed: Whether there is no update, shape (K,).
        """
        if not any(row in self._malicious for row in rows.tolist()):
            return trained
        models: Vector = trained.copy()
        n = self._trainer.spec.layout.n_params
        for at, (row, seed) in enumerate(zip(rows.tolist(), seeds.tolist(), strict=True)):
            if row in self._malicious and not has_failed[at]:
                models[at] = self._malicious[row].update(base, trained[at], n, seed)
        return models

    def _checked(self, rows: Ints, places: Ints, models: Vector, learned: Learned) -> Bools:
        """Return which models the coordinator accepts, shape (K,); honest ones are finite.

        Args:
            rows: The devices, shape (K,).
            places: Their positions in the batch, shape (K,).
            models: The models that arrived, with the vectors that follow them.
            learned: Receives why a model is rejected.
        """
        is_accepted = np.ones(len(rows), dtype=np.bool_)
        for at, row in enumerate(rows.tolist()):
            if row in self._malicious:
                try:
                    vector_from_bytes(vector_to_bytes(models[at]), models.shape[1])
                except DecodeError as exc:
                    learned.rejections[places[at]] = str(exc)
                    is_accepted[at] = False
        return is_accepted

    def _train_personal(
        self, personal: PersonalCohort, batch: VersionBatch, w_t: Vector, has_diverged: Bools
    ) -> None:
        """Train the personal models of a batch; a device whose update diverged has stopped."""
        config = self._config
        rows = batch.rows[~has_diverged]
        seeds = self._decisions.training_seeds(batch.round, rows)
        jobs = self._jobs(rows.tolist(), seeds)
        request = config.personalisation.request(
            config.training, batch.round, run="replay", init_seed=config.first_seed
        )
        personal.train(w_t, jobs, request, batch.round)

    def score_personal(self) -> None:
        """Score the personal models that have changed since the last call."""
        may_send = self._privacy is None or self._privacy.scores
        if self._personal is not None and may_send:
            self.personal_scores = self._personal.scores()

    def _kept(self, needed: Collection[int]) -> dict[int, Vector]:
        """Return the earlier model versions that are still needed."""
        return {old: vector for old, vector in self._before.items() if old in needed}

    def _rebased(self, models: Vector, base: Vector, staleness: int) -> Vector:
        """Return updates of an earlier version, shape (K, n_values), on the current version."""
        if not staleness:
            return models
        rebased = np.empty_like(models)
        for at, model in enumerate(models):
            rebased[at] = self._decisions.staleness_rule.rebased(
                model,
                base=base,
                now=self._vector,
                n_params=self._trainer.spec.layout.n_params,
                staleness=staleness,
            )
        return rebased

    def losses(self, rows: Sequence[int]) -> Floats:
        """Return F_k(w_t) of the current model on the training data of each row, nats, shape (K,).

        A loss that is not finite is infinite.
        """
        return self._losses(self._vector, rows)

    def _losses(self, vector: Vector, rows: Sequence[int]) -> Floats:
        """Return F_k of a model, with the values that each device keeps, nats, shape (K,)."""
        if self._local is None:
            return self._trainer.losses(vector, rows)
        own = (self._trainer.losses(self._local.of(row, vector), [row]) for row in rows)
        return np.array([loss for [loss] in own], dtype=np.float64)

    def queried_losses(self, round_id: int, rows: Ints, examples: int | None) -> Floats:
        """Return the losses that a query of a round finds, nats, shape (K,).

        A loss that is not finite is infinite. `examples` is the size of the mini-batch that each
        device draws; None is its whole training set.
        """
        devices = rows.tolist()
        if examples is None:
            return self._reported(rows, self.losses(devices))
        seeds = [self._decisions.query_seed(round_id, row) for row in devices]
        assert self._batch_losses is not None, "a query of mini-batches needs their losses"
        own = self._local
        found = self._batch_losses.of(
            (lambda _: self._vector) if own is None else (lambda row: own.of(row, self._vector)),
            devices,
            seeds,
            examples,
        )
        return self._reported(rows, found)

    def evaluate(self) -> Mapping[str, Score]:
        """Return the scores of the current model on each device's held-out data, by name."""
        started = time.perf_counter()
        scores = self._evaluator.evaluate(self._vector)
        self.evaluate_s = time.perf_counter() - started
        return scores

    def to_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without the current model."""
        before = [[version, vector.tobytes()] for version, vector in self._before.items()]
        malicious = [[row, device.to_state()] for row, device in self._malicious.items()]
        personal = None if self._personal is None else self._personal.to_state()
        return {
            "owed": self._codings.to_state(),
            "before": before,
            "malicious": malicious,
            "personal": personal,
            "rule": None if self._rule is None else self._rule.kept.to_state(),
            "local": None if self._local is None else self._local.kept.to_state(),
            "states": None if self._states is None else self._states.to_state(),
        }

    def load_state(self, vector: Vector, state: dict[str, Any]) -> None:
        """Restore the model, shape (n_values,), and the state of a checkpoint."""
        self._vector = vector
        self._codings.load_state(state["owed"])
        for row, saved in state["malicious"]:
            self._malicious[row].load_state(saved)
        if self._personal is not None:
            self._personal.load_state(state["personal"])
        if self._rule is not None:
            self._rule.kept.load_state(state["rule"])
        if self._local is not None:
            self._local.kept.load_state(state["local"])
        if self._states is not None:
            self._states.load_state(state["states"])
        self._before = {
            version: np.frombuffer(vector, dtype=np.float32).copy()
            for version, vector in state["before"]
        }

    def close(self) -> None:
        """End all threads."""
        self._trainer.close()


def _of(models: Vector, is_wanted: Bools) -> Vector:
    """Return the wanted ones of K models, shape (K, n_values); no copy if all are wanted."""
    return models if is_wanted.all() else models[is_wanted]


def make_learning(
    setup: ReplaySetup,
    folder: Path,
    threads: int | None = None,
    helpers: "CohortHelpers | None" = None,
) -> Learning:
    """Return the model and the training of a replay before round 1.

    Args:
        setup: The setup, with model, training and data; shard n belongs to row n.
        folder: Folder of the run.
        threads: Devices trained at the same time, None for one per core; the results do not
            depend on it.
        helpers: Hosts that train a part of each cohort, with the same results.

    Raises:
        ExperimentError: `[replay] engine` cannot train this model, or noise does not cover it.
        DatasetError: Model and data do not fit.
        TaskError: The model is not available.
        EngineError: The engine cannot run it.
        PluginError: The local rule cannot be loaded.
    """
    experiment, data = setup.experiment, setup.data
    assert data is not None, "a replay that trains has data"
    threads, dataset = threads or free_cores(), data.dataset
    artifact = setup.artifact or task_of(experiment, dataset)
    experiment.check_layout(artifact.spec.layout)
    check_parts(experiment, artifact)
    if experiment.training.augment:
        from fairbed.testbed.run.augment import check_augment

        check_augment(experiment, artifact)
    with ExitStack() as undo:  # what follows may raise, and the trainer may have processes
        trainer = make_trainer(artifact, data, experiment.replay.engine, threads, helpers)
        undo.callback(trainer.close)
        vector, local = first_model(experiment, artifact), None
        if artifact.spec.layout.local.size:
            local = LocalValues(artifact.spec.layout, vector)
        own = None if local is None else local.of
        evaluator = FleetEvaluator(data, artifact, threads=threads, model_of=own)
        batches = BatchLosses(artifact, Shards(data, artifact.spec.x_shape))
        is_personal = experiment.personalisation.is_on
        personal = PersonalCohort(trainer, artifact, data, vector) if is_personal else None
        training, rule = experiment.training, None
        if training.rule != "sgd":
            n_params = artifact.spec.layout.n_params
            rule = RuleCohort(training.rule, training.local_options, n_params)
        undo.pop_all()
    return Learning(
        setup.decisions,
        trainer,
        evaluator,
        vector,
        folder,
        batches,
        attacks=setup.attacks,
        personal=personal,
        rule=rule,
        positions=Shards(data, artifact.spec.x_shape).positions,
        part_sizes=setup.part_sizes,
        local=local,
        states=optimiser_states(training, artifact.spec.layout),
    )
