"""Trains cohorts with torch: one vectorised call for many models, on a GPU if there is one.

This is the only module of the replay that needs torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from fairbed.coordinator.algorithms.arrays import Floats, Ints, Vector
from fairbed.device_agent.engines.torch import target_losses
from fairbed.device_agent.errors import EngineError
from fairbed.device_agent.optimiser import count_of, write_count
from fairbed.device_agent.trainer import GradientAt
from fairbed.testbed.replay.cohort.base import (
    CohortJob,
    CohortPart,
    CohortResult,
    CohortRule,
    own_states,
    steps_of,
)
from fairbed.testbed.replay.cohort.batches import Batches, augmented, by_positions, longest_first
from fairbed.testbed.replay.cohort.progress import Progress
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.wire.artifact import TaskSpec
from fairbed.wire.evaluation import Targets, mean_weights, positions_of
from fairbed.wire.local_training import Step, Trained
from fairbed.wire.messages import Hyperparameters, Optimiser
from fairbed.wire.plugins import users_code
from fairbed.wire.schedule import rate_factors
from fairbed.wire.selfcheck import Examples, run_selfcheck
from fairbed.wire.tensors import BYTES_PER_VALUE

CHUNK_BYTES = 1 << 30
"""Limit of the models and gradients of one chunk."""

CHUNK_DEVICES = 128
"""Limit of the devices of one chunk; it bounds the activations, which depend on the model."""

LOSS_ROWS = 1024
"""Examples whose losses are computed at a time."""

Parts: TypeAlias = dict[str, torch.Tensor]


class TorchTrainer:
    """Trains a cohort by `vmap` of the gradient, in chunks.

        g_k = d/dw sum_i w_ki l(f(w_k, x_ki), y_ki),   w_ki = 1 / sum_j c_kj, 0 for padding

    with the positions c_kj of example j, 1 if it has one target.

    One thread, no reduced precision, deterministic kernels: the same seeds give the same bits.

    Args:
        model: The module of the task; it must have no buffers.
        spec: The task.
        shards: The training data.
        accelerator: Name of a torch device, such as `cpu` or `cuda`.

    Raises:
        SelfCheckFailed: The results differ from those of the task.
    """

    def __init__(
        self, model: nn.Module, spec: TaskSpec, shards: Shards, accelerator: str = "cpu"
    ) -> None:
        assert spec.layout.n_values == spec.layout.n_params, "buffers are not vectorised"
        self.name = f"torch on {accelerator}"
        self.spec = spec
        self._shards = shards
        self._device = torch.device(accelerator)
        self._model = model.to(self._device).train()
        torch.set_num_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        self._gradients = vmap(grad_and_value(self._loss))
        run_selfcheck(spec, self._one)

    def train(
        self,
        vector: Vector,
        jobs: Sequence[CohortJob],
        hyperparameters: Hyperparameters,
        starts: Vector | None = None,
        rule: CohortRule | None = None,
        states: Vector | None = None,
    ) -> Iterator[CohortResult]:
        """Yield the results of all jobs, those with more steps first."""
        n_k = self._shards.n_k[[job.device for job in jobs]].tolist()
        cohort = CohortPart(range(len(jobs)), jobs, hyperparameters, starts, rule, states)
        order = longest_first(n_k, steps_of(n_k, jobs, hyperparameters))
        vectors = 3 + hyperparameters.n_moments + (0 if rule is None else rule.n_results)
        fits = CHUNK_BYTES // (BYTES_PER_VALUE * vectors * vector.size)
        size = min(CHUNK_DEVICES, max(1, fits))
        for start in range(0, len(order), size):
            chunk = order[start : start + size]
            part = cohort.take(chunk)
            params = (
                self._tensor(vector).repeat(len(chunk), 1)
                if part.starts is None
                else self._tensor(part.starts)
            )
            chunk_rule = None if part.rule is None else _HostRule(part.rule, vector)
            yield self._train(params, self._tensor(vector), part, chunk_rule)

    def losses(self, vector: Vector, devices: Sequence[int]) -> Floats:
        """Return F_k(w), nats per example, shape (K,); infinite where it is not finite."""
        return np.array([self._mean_loss(vector, device) for device in devices])

    def close(self) -> None:
        """Do nothing: there are no threads."""

    def _train(
        self,
        params: torch.Tensor,
        anchor: torch.Tensor,
        part: CohortPart,
        rule: "_HostRule | None",
    ) -> CohortResult:
        """Train the models `params`, shape (G, n_params), in place."""
        jobs, hyperparameters, chunk = part.jobs, part.hyperparameters, part.at
        rows = [self._shards.rows(job.device) for job in jobs]
        steps = steps_of([len(one) for one in rows], jobs, hyperparameters)
        seeds, augmenter = [job.seed for job in jobs], None
        if hyperparameters.augment:
            from fairbed.wire.augment import Augmenter

            augmenter = Augmenter(hyperparameters.augment, self.spec)
        batches = Batches(seeds, rows, hyperparameters, steps)
        states, lengths = own_states(part, params.shape[1]), np.array(steps, dtype=np.int64)
        descent = _Descent(params, hyperparameters, anchor, states, lengths)
        progress = Progress(batches.steps, lambda i: self._shards.take(rows[i])[0])
        for step in range(progress.last):
            active = progress.active(step)
            batch = batches.next(active)
            x, y = self._shards.take(batch.index)
            other, shares = None, None
            if augmenter is not None:
                shaped = x.reshape(*batch.index.shape, *self.spec.x_shape)
                x, y, other, shares = augmented(augmenter, batch, shaped, y, seeds)
            batch = by_positions(batch, y)
            mini_batch = _MiniBatch(x, y, batch.weights, other, shares)
            gradient, loss = self._gradient_of(params[:active], mini_batch)
            losses = loss.double().cpu().numpy()
            progress.record(step, batch, losses)
            if rule is not None:
                gradient_at = partial(self._gradient_at, mini_batch)
                rule.apply(params[:active], gradient, losses, hyperparameters, gradient_at)
            descent.step(gradient, active)
        models = params.cpu().numpy()
        states = descent.states(lengths)
        if rule is None:
            return progress.results(chunk, models, {}, {}, states)
        kept, returned = rule.end(models, progress.steps, hyperparameters)
        return progress.results(chunk, models, kept, returned, states)

    def _gradient_of(
        self, params: torch.Tensor, mini_batch: "_MiniBatch"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients, shape (A, n_params), and the losses, shape (A,)."""
        at = mini_batch
        gradient, loss = self._gradient(params, at.x, at.y, at.weights)
        if at.other is None or at.shares is None:
            return gradient, loss
        share = self._tensor(at.shares.astype(np.float32))
        gradient_2, loss_2 = self._gradient(params, at.x, at.other, at.weights)
        mixed = share[:, None] * gradient + (1.0 - share[:, None]) * gradient_2
        return mixed, share * loss + (1.0 - share) * loss_2

    def _gradient_at(self, mini_batch: "_MiniBatch", params: Vector) -> tuple[Floats, Vector]:
        """Return losses and gradients of mini-batches at other parameters; see `Step`."""
        gradient, loss = self._gradient_of(self._tensor(params), mini_batch)
        return loss.double().cpu().numpy(), gradient.cpu().numpy()

    def _gradient(
        self, params: torch.Tensor, x: Vector | Ints, y: Targets, w: Vector
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients, shape (A, n_params), and the losses, shape (A,)."""
        shaped = x.reshape(*w.shape, *self.spec.x_shape)
        parts: Parts
        with users_code(self._failed):
            parts, loss = self._gradients(
                self._parts(params), self._tensor(shaped), self._tensor(y), self._tensor(w)
            )
        flat = [parts[t.name].reshape(len(params), -1) for t in self.spec.layout.tensors]
        return torch.cat(flat, dim=1), loss

    def _loss(
        self, parts: Parts, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor
    ) -> torch.Tensor:
        output = functional_call(self._model, parts, (x,))
        losses = target_losses(output, y, self.spec)
        return (losses.flatten(1).sum(1) * w if losses.dim() > 1 else losses * w).sum()

    def _mean_loss(self, vector: Vector, device: int) -> float:
        rows, total, seen = self._shards.rows(device), 0.0, 0
        parts = {k: v[0] for k, v in self._parts(self._tensor(vector)[None]).items()}
        with torch.no_grad():
            for start in range(0, len(rows), LOSS_ROWS):
                x, y = self._shards.take(rows[start : start + LOSS_ROWS])
                shaped, one = self._tensor(x.reshape(-1, *self.spec.x_shape)), self._tensor(y)
                with users_code(self._failed):
                    loss = self._loss(parts, shaped, one, torch.ones(len(y)).to(one.device))
                total += float(loss)
                seen += int(positions_of(y).sum())
        return max(0.0, total / seen) if np.isfinite(total) else np.inf

    def _failed(self, problem: str) -> EngineError:
        return EngineError(
            f"{self.spec.name}: torch must be able to train several models at once (vmap), got "
            f'{problem}; set replay.engine = "device"'
        )

    def _parts(self, params: torch.Tensor) -> Parts:
        """Return each tensor of each model as a view, shape (A, *shape)."""
        return {
            t.name: params[:, t.offset : t.offset + t.size].view(-1, *t.shape)
            for t in self.spec.layout.tensors
        }

    def _tensor(self, array: Vector | Targets | Ints) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

    def _one(self, vector: Vector, x: Examples, y: Targets) -> tuple[float, Vector]:
        """Return the mean loss of one mini-batch and its gradient, for the self-check."""
        w = mean_weights(y)[np.newaxis]
        params = self._tensor(vector[np.newaxis])
        gradient, loss = self._gradient(params, x[np.newaxis], y[np.newaxis], w)
        return float(loss[0]), gradient[0].cpu().numpy()


@dataclass(frozen=True, slots=True)
class _MiniBatch:
    """Mini-batches of A models."""

    x: Vector | Ints
    """Shape (A, B, ...)."""
    y: Targets
    weights: Vector
    """Shape (A, B)."""
    other: Targets | None
    """Targets of the examples that were mixed in; None: none were."""
    shares: Floats | None
    """Weight of the loss with `y`, shape (A,); None: 1."""


class _HostRule:
    """A local rule on numpy arrays: of a GPU they are copies, else the tensors' own memory.

    Args:
        rule: The rule, with the vectors of the chunk.
        anchor: The global model w_t, shape (n_params,).
    """

    def __init__(self, rule: CohortRule, anchor: Vector) -> None:
        self._rule, self._anchor = rule, anchor
        self._vectors = rule.vectors

    def apply(
        self,
        params: torch.Tensor,
        gradient: torch.Tensor,
        loss: Floats,
        h: Hyperparameters,
        gradient_at: GradientAt,
    ) -> None:
        """Change the gradient of the first A models, shape (A, n_params), in place."""
        here, models = gradient.cpu().numpy(), params.cpu().numpy()
        kept = {name: self._vectors[name][: len(models)] for name in self._rule.kept}
        step = Step(
            params=models,
            gradient=here,
            loss=loss,
            anchor=self._anchor,
            buffers=models[:, :0],
            vectors={**self._vectors, **kept},
            learning_rate=h.learning_rate,
            gradient_at=gradient_at,
        )
        with np.errstate(all="ignore"):
            self._rule.rule.gradient(step)
        gradient.copy_(torch.from_numpy(step.gradient))

    def end(
        self, params: Vector, steps: Ints, h: Hyperparameters
    ) -> tuple[dict[str, Vector], dict[str, Vector]]:
        """Return the vectors kept and returned, each of shape (G, n_params)."""
        trained = Trained(params, self._anchor, steps, self._vectors, h.learning_rate)
        with np.errstate(all="ignore"):
            return self._rule.rule.end(trained)


class _Descent:
    """`device_agent.trainer.Descent` on tensors of any device, shape (G, n_params).

    Args:
        states: States of the optimiser on the host, shape (G, n_state); None: it begins anew.
        lengths: Steps of each model, shape (G,).
    """

    def __init__(
        self,
        params: torch.Tensor,
        hyperparameters: Hyperparameters,
        anchor: torch.Tensor,
        states: Vector | None,
        lengths: Ints,
    ) -> None:
        self._params, self._h, self._anchor = params, hyperparameters, anchor
        self._states, self._lengths, self._steps = states, lengths, 0
        n = params.shape[1]
        self._moments = [
            torch.zeros_like(params)
            if states is None
            else torch.from_numpy(states[:, i * n : (i + 1) * n]).to(params.device)
            for i in range(hyperparameters.n_moments)
        ]
        before = np.zeros((len(lengths), 1), np.int64) if states is None else count_of(states)
        self._before = torch.from_numpy(before).to(params.device)

    def step(self, direction: torch.Tensor, active: int) -> None:
        """Take one step with the first `active` models; overwrites `direction`."""
        h, params = self._h, self._params[:active]
        rate = self._rate(active)
        self._steps += 1
        if h.proximal:
            direction += h.proximal * (params - self._anchor)
        if h.clip_norm is not None:
            norm = torch.linalg.vector_norm(direction, dim=1, keepdim=True)
            direction *= torch.fmin(h.clip_norm / norm, torch.ones_like(norm))
        optimiser = h.optimiser
        if optimiser is not None and optimiser.name == "adamw":
            params *= 1.0 - rate * h.weight_decay
        elif h.weight_decay:
            direction += h.weight_decay * params
        moments = [moment[:active] for moment in self._moments]
        if optimiser is not None and optimiser.name != "sgd":
            self._adam(direction, params, moments, rate, optimiser)
            return
        if moments:
            velocity, is_nesterov = moments[0], optimiser is not None and optimiser.nesterov
            velocity *= h.momentum
            velocity += direction
            direction = direction + h.momentum * velocity if is_nesterov else velocity
        params -= rate * direction

    def _adam(
        self,
        gradient: torch.Tensor,
        params: torch.Tensor,
        moments: list[torch.Tensor],
        rate: "float | torch.Tensor",
        optimiser: Optimiser,
    ) -> None:
        """Take the step of `device_agent.optimiser.Adam`."""
        (first, second), (beta_1, beta_2) = moments, optimiser.betas
        t = (self._before[: len(params)] + self._steps).double()
        root = torch.sqrt(1.0 - beta_2**t)
        length = (rate * root / (1.0 - beta_1**t)).float()
        term = (optimiser.epsilon * root).float()
        first += (gradient - first) * (1.0 - beta_1)
        second *= beta_2
        second += gradient * gradient * (1.0 - beta_2)
        params -= first / (second.sqrt() + term) * length

    def _rate(self, active: int) -> "float | torch.Tensor":
        h = self._h
        if h.schedule is None:
            return h.learning_rate
        factors = rate_factors(h.schedule, self._steps, self._lengths[:active])
        rates = torch.from_numpy((h.learning_rate * factors).astype(np.float32))
        return rates.to(self._params.device)[:, None]

    def states(self, steps: Ints) -> Vector | None:
        """Return the states after `steps` steps of each model, shape (G, n_state)."""
        states = self._states
        if states is None:
            return None
        n = self._params.shape[1]
        for i, moment in enumerate(self._moments):
            states[:, i * n : (i + 1) * n] = moment.cpu().numpy()
        write_count(states, count_of(states) + steps[:, np.newaxis])
        return states
