"""The contract of local rules, as executable checks of both halves.

A rule trains small fleets with quadratic losses, as a device and a replay do it, and merges their
updates. `fairbed doctor --local-training NAME` runs the checks; docs/own-local-training.md has the
contract.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.aggregation.base import Merge
from fairbed.coordinator.algorithms.arrays import Floats, Vector
from fairbed.coordinator.algorithms.contract import LIMIT_S, Broken, Clock, Properties
from fairbed.coordinator.algorithms.local_training import ServerHalf
from fairbed.coordinator.policy.config import TrainingConfig
from fairbed.coordinator.policy.factories import make_local_half
from fairbed.device_agent.local_training import GuardedRule, make_rule
from fairbed.device_agent.trainer import Descent
from fairbed.wire.local_training import EXTRAS, NOUN
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.plugins import PluginError

N_PARAMS, N_BUFFERS = 5, 2
"""Parameters and other values of the models of small fleets."""
STEPS = (4, 3, 1)
"""Mini-batches of each device of a small fleet."""
SEEDS = range(4)
"""Seeds of the small fleets."""
TOLERANCE = 1e-4
"""Largest distance between equal results, of their length or of 1, if the sums of a rule may be
added in another order."""
LARGE = 1_000_000
"""Parameters of a timed round."""
TRAINING = Hyperparameters(epochs=1, batch_size=1, learning_rate=0.1)


@dataclass(frozen=True, slots=True)
class Halves:
    """A rule on a device and at the coordinator, two objects."""

    device: GuardedRule
    server: ServerHalf | None
    """None: the rule is built in and has none."""

    @staticmethod
    def of(make: Callable[[], Any], name: str = "rule") -> "Halves":
        """Return the halves of a plug-in; `make` returns one.

        Raises:
            PluginError: It lacks a member, or its vectors are not named properly.
        """
        return Halves(GuardedRule(name, make()), ServerHalf(name, make()))


def make_halves(config: TrainingConfig) -> Halves:
    """Return the halves of the rule of an experiment.

    Raises:
        PluginError: It is no rule, cannot be loaded, or lacks a member.
    """
    if config.rule == "sgd":
        raise PluginError(
            f"{NOUN} sgd: must change local training, got the training without a rule; name a "
            "plug-in as package.module:Name"
        )
    return Halves(make_rule(config.rule, config.local_options), make_local_half(config))


@dataclass(frozen=True, slots=True)
class TrialRound:
    """Local training of K devices, each with quadratic mini-batches a/2 |w - b|^2."""

    model: Vector
    """The model that was sent, shape (n_params + n_buffers,)."""
    a: Vector
    """Curvatures, shape (S, K, n_params); NaN: the device diverges."""
    b: Vector
    """Minima, shape (S, K, n_params)."""
    steps: NDArray[np.int64]
    """Mini-batches of each device, shape (K,), descending, at most S."""
    sent: Mapping[str, Vector]
    """Vectors from the coordinator, shape (n_params,)."""
    kept: Mapping[str, Vector]
    """Vectors of the devices, shape (K, n_params)."""

    @property
    def w(self) -> Vector:
        """Parameters of the model, shape (n_params,)."""
        return self.model[: self.a.shape[-1]]

    def of(self, k: int) -> "TrialRound":
        """Return the round of one device; its arrays have no axis of devices."""
        kept = {name: vector[k] for name, vector in self.kept.items()}
        return replace(self, a=self.a[:, k], b=self.b[:, k], steps=self.steps[k], kept=kept)


@dataclass(frozen=True, slots=True)
class Trained:
    """Local training of a round; each array has the leading axes of the round."""

    params: Vector
    kept: Mapping[str, Vector]
    returned: Mapping[str, Vector]

    def of(self, at: Any) -> "Trained":
        """Return some of the devices."""
        kept, returned = self.kept.items(), self.returned.items()
        return Trained(
            self.params[at], {n: v[at] for n, v in kept}, {n: v[at] for n, v in returned}
        )

    def vectors(self) -> dict[str, Vector]:
        """Return all vectors by what a message calls them."""
        return {"the parameters after the round": self.params, **self.kept, **self.returned}


def train(rule: GuardedRule | None, trial: TrialRound) -> Trained:
    """Train all devices of a round by the descent of the devices; None is SGD.

    Raises:
        PluginError: The rule breaks its contract.
    """
    leading = trial.a.shape[1:-1]
    params = np.broadcast_to(trial.w, (*leading, len(trial.w))).copy()
    buffers = np.broadcast_to(trial.model[len(trial.w) :], (*leading, N_BUFFERS))
    descent = Descent(params, TRAINING, trial.w, rule, {**trial.sent, **trial.kept})
    with np.errstate(all="ignore"):  # a device may diverge
        for s in range(int(np.max(trial.steps))):
            part = slice(0, int(np.count_nonzero(trial.steps > s))) if leading else ...
            at = partial(_loss_and_gradient, trial.a[s][part], trial.b[s][part])
            loss, gradient = at(params[part])
            if descent.has_rules:
                descent.apply_rules(gradient, loss, buffers[part], at, part)
            descent.step(gradient, part)
        if rule is None:
            return Trained(params, {}, {})
        kept, returned = rule.end(descent.trained(np.asarray(trial.steps)))
    return Trained(params, kept, returned)


def _loss_and_gradient(a: Vector, b: Vector, w: Vector) -> tuple[Floats, Vector]:
    return np.asarray(0.5 * (a * (w - b) ** 2).sum(-1), dtype=np.float64), a * (w - b)


def merge(server: ServerHalf | None, trial: TrialRound, done: Trained, n_devices: int) -> Vector:
    """Return the model after a round of equal weights, shape (n_values,)."""
    updates = np.concatenate([done.params, *done.returned.values()], axis=-1, dtype=np.float64)
    n, mean = len(trial.w), updates.mean(0).astype(np.float32)
    vector = np.concatenate([mean[:n], trial.model[n:], mean[n:]])
    if server is None:
        return vector
    count = np.ones(len(done.params))
    result = Merge(vector, count, count.astype(np.int64), count)
    learning_rate = TRAINING.learning_rate
    with np.errstate(all="ignore"):  # what is not finite has its own message
        return server.finish(result, trial.model, n, n_devices, learning_rate).vector


def sent_by(server: ServerHalf | None, n_params: int) -> dict[str, Vector]:
    """Return the vectors that the coordinator sends, by name."""
    if server is None:
        return {}
    vectors = server.vectors(n_params).reshape(-1, n_params)
    return {name: vector.copy() for name, vector in zip(server.sent, vectors, strict=True)}


def trial_rounds(halves: Halves, seed: int, count: int = 3) -> Iterator[TrialRound]:
    """Yield rounds of a fleet, each with the vectors that the halves left behind."""
    rng = np.random.default_rng(seed)
    model = rng.normal(0.0, 1.0, N_PARAMS + N_BUFFERS).astype(np.float32)
    steps = np.array(STEPS)
    shape = (steps.max(), len(steps), N_PARAMS)
    zeros = np.zeros((len(steps), N_PARAMS), dtype=np.float32)
    kept: Mapping[str, Vector] = {name: zeros for name in halves.device.kept}
    for _ in range(count):
        a = rng.uniform(0.2, 2.0, shape).astype(np.float32)
        b = rng.normal(0.0, 1.0, shape).astype(np.float32)
        trial = TrialRound(model, a, b, steps, sent_by(halves.server, N_PARAMS), kept)
        yield trial
        done = train(halves.device, trial)
        kept, model = done.kept, merge(halves.server, trial, done, n_devices=5)


Make: TypeAlias = Callable[[], Halves]


def _same(what: str, expected: Trained, got: Trained, tolerance: float) -> None:
    """Check that two trainings have equal vectors.

    Raises:
        Broken: Two differ, or one is not finite.
    """
    for name, one in expected.vectors().items():
        other = got.vectors()[name]
        off, scale = float(np.linalg.norm(one - other)), max(1.0, float(np.linalg.norm(one)))
        if not off <= tolerance * scale:
            raise Broken(f"{what}, got {name} {_shown(other)} instead of {_shown(one)}")


def _same_model(what: str, expected: Vector, got: Vector) -> None:
    if not np.array_equal(expected, got):
        raise Broken(f"{what}, got {_shown(got)} instead of {_shown(expected)}")


def _shown(values: Vector) -> str:
    shown = ", ".join(f"{value:.6g}" for value in values.ravel()[:8])
    return f"[{shown}{', ...' if values.size > 8 else ''}]"


def _declares(make: Make, clock: Clock) -> str:
    server = make().server
    if server is None:
        return "built in: for every setting"
    refused = ", ".join(extra for extra in EXTRAS if extra not in server.defined_for) or "nothing"
    if not server.is_declared:
        return f"declares no defined_for, so it counts as one for plain SGD; refused: {refused}"
    return f"for plain SGD, {', '.join(server.defined_for) or 'alone'}; refused: {refused}"


def _forms(make: Make, clock: Clock) -> str:
    for seed in SEEDS:
        halves = make()
        for trial in trial_rounds(halves, seed):
            done = train(make().device, trial)
            if not np.isfinite(done.params).all():
                raise Broken(f"the model must stay finite, got {_shown(done.params)}")
    halves = make()
    rule = halves.device
    kinds = (("sent", rule.sent), ("kept", rule.kept), ("returned", rule.returned))
    found = [f"{kind} {', '.join(names)}" for kind, names in kinds if names]
    return "; ".join(found) or "no vectors"


def _alone(make: Make, clock: Clock) -> None:
    what = "a device must train alone as among others"
    for seed in SEEDS:
        for trial in trial_rounds(make(), seed):
            together = train(make().device, trial)
            for k in range(len(trial.steps)):
                alone = train(make().device, trial.of(k))
                _same(f"{what} (device {k})", alone, together.of(k), TOLERANCE)


def _diverging(make: Make, clock: Clock) -> None:
    what = "a device that diverges must change no other one"
    for seed in SEEDS:
        for trial in trial_rounds(make(), seed):
            others = np.arange(len(trial.steps)) > 0
            a = np.where(others[:, np.newaxis], trial.a, np.float32(np.nan))
            got = train(make().device, replace(trial, a=a))
            _same(what, train(make().device, trial).of(others), got.of(others), TOLERANCE)


def _deterministic(make: Make, clock: Clock) -> None:
    what = "the same mini-batches must give the same bits"
    for seed in SEEDS:
        first, second = make(), make()
        pairs = zip(trial_rounds(first, seed), trial_rounds(second, seed), strict=True)
        for one, other in pairs:
            _same_model(f"{what} of a model", one.model, other.model)
            _same(what, train(make().device, one), train(make().device, other), 0.0)


def _memoryless(make: Make, clock: Clock) -> None:
    what = "on a device all memory must be in vectors, so an object must train as a new one does"
    for seed in SEEDS:
        used = make().device
        for trial in trial_rounds(make(), seed):
            for k in range(len(trial.steps)):
                got = train(used, trial.of(k))
                _same(what, train(make().device, trial.of(k)), got, 0.0)


def _no_step(make: Make, clock: Clock) -> None:
    for trial in trial_rounds(make(), seed=0):
        still = replace(trial, steps=np.zeros_like(trial.steps))
        train(make().device, still)
        train(make().device, still.of(0))


def _resumes(make: Make, clock: Clock) -> str:
    what = "after load_state() the coordinator must merge as without a restart"
    size = 0
    for seed in SEEDS:
        original, resumed = make(), make()
        if original.server is None or resumed.server is None:
            return "built in: nothing at the coordinator"
        for t, trial in enumerate(trial_rounds(make(), seed, count=4)):
            done = train(make().device, trial)
            if t == 2:
                state = msgspec.msgpack.encode(original.server.to_state())
                size = max(size, len(state))
                resumed.server.load_state(msgspec.msgpack.decode(state))
            expected = merge(original.server, trial, done, n_devices=5)
            if t < 2:
                if seed % 2:  # a memory of its own, which the state replaces
                    merge(resumed.server, trial, done, n_devices=3)
                continue
            _same_model(what, expected, merge(resumed.server, trial, done, n_devices=5))
            for name, vector in sent_by(original.server, N_PARAMS).items():
                _same_model(f"{what}: {name}", vector, sent_by(resumed.server, N_PARAMS)[name])
    return f"state: {size} bytes for {N_PARAMS} parameters"


def _merges(make: Make, clock: Clock) -> None:
    for seed in SEEDS:
        for trial in trial_rounds(make(), seed):
            done = train(make().device, trial)
            still = {name: np.zeros_like(vector) for name, vector in done.returned.items()}
            unmoved = np.broadcast_to(trial.w, done.params.shape)
            one = slice(0, 1)
            for what, updates, n_devices in (
                ("one update of one device", done.of(one), 1),
                ("one update of 100,000 devices", done.of(one), 100_000),
                ("updates of all devices", done, len(trial.steps)),
                ("returned vectors of zeros", replace(done, returned=still), 5),
                ("updates that do not move the model", replace(done, params=unmoved), 5),
            ):
                try:
                    merge(make().server, trial, updates, n_devices)
                except PluginError as exc:
                    raise Broken(f"{what}: {exc.fault}") from exc


def _speed(make: Make, clock: Clock) -> str:
    halves, w = make(), np.zeros((1, LARGE), dtype=np.float32)
    ones = np.ones((1, 1, LARGE), dtype=np.float32)
    trial = TrialRound(
        model=np.zeros(LARGE + N_BUFFERS, dtype=np.float32),
        a=ones,
        b=ones,
        steps=np.array([1]),
        sent=sent_by(halves.server, LARGE),
        kept={name: w for name in halves.device.kept},
    )
    took_s, more_s = float("inf"), float("inf")
    for _ in range(3):
        halves, times_s = make(), [clock()]
        train(None, trial.of(0))
        times_s.append(clock())
        done = train(halves.device, trial.of(0)).of(np.newaxis)
        times_s.append(clock())
        merge(halves.server, trial, done, n_devices=2)
        times_s.append(clock())
        plain_s, with_rule_s, merge_s = np.diff(times_s).tolist()
        took_s = min(took_s, with_rule_s + merge_s)
        more_s = min(more_s, with_rule_s - plain_s)
    what = f"a round of one step with {LARGE:,} parameters"
    if took_s > LIMIT_S:
        raise Broken(f"{what} must take at most {LIMIT_S} s, got {took_s:.2f}")
    return f"adds {max(more_s, 0.0) * 1e3:.1f} ms on the device to {what}"


PROPERTIES: Properties[Halves] = {
    "settings that it is defined for": _declares,
    "vectors are complete, inputs stay": _forms,
    "a device alone trains as among others": _alone,
    "a diverging device changes no other": _diverging,
    "a device has no memory but vectors": _memoryless,
    "the same mini-batches give the same bits": _deterministic,
    "a device without a step": _no_step,
    "a resumed coordinator continues the same": _resumes,
    "merges of one, few and all devices": _merges,
    "a round is fast enough": _speed,
}
"""Properties of a local rule by name, in the order in which they are checked."""
