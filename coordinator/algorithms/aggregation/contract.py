"""The contracts of weight rules, pseudo-gradients and server steps.

A part is checked in an aggregation whose other parts are those of FedAvg, with random rounds that
are drawn by a seed. What a guard refuses in a run is refused here too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.base import (
    Changes,
    LinearPseudoGradient,
    Merge,
    PseudoGradient,
    SeparableRule,
    ServerStep,
    Stack,
    Updates,
    WeightRule,
    max_devices_of,
    max_updates_of,
    rescales_step,
    uses_weights_of,
)
from fairbed.coordinator.algorithms.aggregation.fedavg import FedAvg
from fairbed.coordinator.algorithms.aggregation.guarded import (
    PROPORTION_TOLERANCE,
    GuardedServerStep,
    guarded_pseudo_gradient,
    guarded_rule,
)
from fairbed.coordinator.algorithms.arrays import Floats, Ints, Vector
from fairbed.coordinator.algorithms.contract import Broken, Clock, Properties, check_speed
from fairbed.coordinator.algorithms.plugin import Guard
from fairbed.wire.plugins import PluginError

N_PARAMS, N_VALUES = 5, 7
"""Parameters and values of the models of small rounds."""
SEEDS = range(6)
"""Seeds of the random runs."""
LARGE_K, LARGE_MODEL = 1000, 1_000_000
"""Updates of a timed round unless the rule declares fewer, and parameters of a timed step."""
SUM_OF_A_MEAN = 1e-6
"""How far from 1 the sum of weights may be that are those of a mean."""
BATCH = 20
"""Examples of a mini-batch: a device with n_k examples makes ceil(n_k / 20) local steps."""


@dataclass(frozen=True, slots=True)
class TrialRound:
    """A round with random updates."""

    sent: Vector
    """The model that was sent, shape (N_VALUES,)."""
    stack: Stack
    registered: int
    """Number of all devices."""
    number: int
    """From 1."""

    def of(self, at: Ints) -> "TrialRound":
        """Return the round with some of its updates, in the order of `at`."""
        stack = self.stack
        assert stack.loss_before is not None
        some = Stack(stack.rows[at], stack.n_k[at], stack.models[at], stack.loss_before[at])
        return replace(self, stack=some)

    def with_stack(self, **changes: Any) -> "TrialRound":
        """Return the round with other columns."""
        return replace(self, stack=replace(self.stack, **changes))


def trial_rounds(seed: int, count: int = 3, registered: int | None = None) -> list[TrialRound]:
    """Return rounds of a fleet of 2 to 8 devices, at least 2 of which report in each round."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9)) if registered is None else registered
    return [_trial_round(rng, n, int(rng.integers(2, n + 1)), t) for t in range(1, count + 1)]


def _trial_round(
    rng: np.random.Generator, n: int, k: int, number: int, n_values: int = N_VALUES
) -> TrialRound:
    sent = rng.normal(0.0, 1.0, n_values).astype(np.float32)
    models = sent + rng.normal(0.0, 0.3, (k, n_values)).astype(np.float32)
    stack = Stack(
        rows=rng.permutation(n)[:k].astype(np.int64),
        n_k=rng.integers(1, 500, k),
        models=models,
        loss_before=rng.uniform(0.05, 3.0, k),
    )
    return TrialRound(sent, stack, n, number)


class _Stored(list[Vector]):
    """Models in a list."""

    def append(self, model: Vector) -> None:
        super().append(model.copy())

    def all(self) -> list[Vector]:
        return self


def _begin(aggregator: Aggregator, trial: TrialRound) -> Any:
    n_params = trial.sent.size * N_PARAMS // N_VALUES
    return aggregator.begin(trial.sent, n_params, 0.1, _Stored, trial.registered, trial.number)


def merged(aggregator: Aggregator, trial: TrialRound, *, at_once: bool = False) -> Merge:
    """Return the merge of a round whose updates arrive one by one, or at once."""
    merge = _begin(aggregator, trial)
    every = np.arange(len(trial.stack.rows))
    for at in [every] if at_once else np.split(every, len(every)):
        merge.add_all(trial.of(at).stack)
    result: Merge = merge.finish()
    return result


Make: TypeAlias = Callable[[], Aggregator]
Check: TypeAlias = Callable[[Make, Clock], str | None]
Part = TypeVar("Part")


def _same(what: str, expected: Merge, got: Merge, order: Ints | None = None) -> None:
    """Check that two merges have the same bits; `order` are positions of `got` in `expected`."""
    weights = expected.weights if order is None else expected.weights[order]
    for name, one, other in (
        ("weights", weights, got.weights),
        ("model", expected.vector, got.vector),
    ):
        if not np.array_equal(one, other):
            raise Broken(f"{what}, got the {name} {_shown(other)} instead of {_shown(one)}")


def _shown(values: Floats | Vector) -> str:
    return f"{values[:8].tolist()}{' ...' if values.size > 8 else ''}"


def _state(aggregator: Aggregator) -> bytes:
    return msgspec.msgpack.encode(aggregator.to_state())


def _deterministic(make: Make, clock: Clock) -> None:
    for seed in SEEDS:
        first, second = make(), make()
        for trial in trial_rounds(seed):
            what = "the same updates must give the same bits"
            _same(what, merged(first, trial), merged(second, trial))


def _order(make: Make, clock: Clock) -> None:
    what = "the order of arrival must change no bit"
    for seed in SEEDS:
        aggregators = make(), make(), make()
        for trial in trial_rounds(seed):
            k = len(trial.stack.rows)
            order = np.random.default_rng(seed).permutation(k)
            expected = merged(aggregators[0], trial)
            _same(what, expected, merged(aggregators[1], trial.of(order)), order)
            together = merged(aggregators[2], trial.of(order), at_once=True)
            _same(f"{what}, several at once included", expected, together, order)


def _resumes(make: Make, clock: Clock) -> str:
    size = 0
    for seed in SEEDS:
        original, resumed = make(), make()
        before, *after = trial_rounds(seed, 4)
        merged(original, before)
        state = _state(original)
        for other in after[: seed % 3]:
            merged(resumed, other)  # a memory of its own, which the state replaces
        resumed.load_state(msgspec.msgpack.decode(state))
        what = "after load_state() the model must be as without a restart"
        for trial in after:
            _same(what, merged(original, trial), merged(resumed, trial))
        size = max(size, len(state))
    return f"largest state: {size} bytes"


def _abandoned(make: Make, clock: Clock) -> None:
    what = "an abandoned round must have no effect"
    for seed in SEEDS:
        original, other = make(), make()
        first, second, third = trial_rounds(seed)
        merged(original, first)
        merged(other, first)
        state = _state(other)
        for update in np.split(np.arange(len(second.stack.rows)), len(second.stack.rows)):
            _begin(other, second).add_all(second.of(update).stack)
        if _state(other) != state:
            raise Broken(f"{what}, but to_state() differs after it")
        _same(what, merged(original, third), merged(other, third))


def _faulty(make: Make, clock: Clock) -> str:
    what = "faulty updates must be left out"
    needs_loss = make().needs_loss
    for seed in SEEDS:
        trial = trial_rounds(seed, 1)[0]
        stack, sound = trial.stack, np.arange(1, len(trial.stack.rows))
        assert stack.loss_before is not None
        changes: list[dict[str, Any]] = []
        for value in (np.nan, np.inf, -np.inf):
            models = stack.models.copy()
            models[0, seed % N_VALUES] = value
            changes.append({"models": models})
        changes.append({"n_k": np.where(np.arange(len(stack.n_k)) == 0, 0, stack.n_k)})
        for value in (np.nan, np.inf, -1.0) if needs_loss else ():
            losses = stack.loss_before.copy()
            losses[0] = value
            changes.append({"loss_before": losses})
        expected = merged(make(), trial.of(sound))
        for change in changes:
            got = merged(make(), trial.with_stack(**change))
            _same(what, expected, replace(got, weights=got.weights[1:]))
    kinds = "values that are not finite, n_k = 0"
    return f"{kinds}, losses that are not numbers >= 0" if needs_loss else kinds


def _pure(make: Make, clock: Clock) -> None:
    for seed in SEEDS:
        trial = trial_rounds(seed, 1)[0]
        sent, stack = trial.sent.copy(), trial.of(np.arange(len(trial.stack.rows))).stack
        merged(make(), trial).vector[:] = 9.0
        for name, before, after in (
            ("the model that was sent", sent, trial.sent),
            ("models", stack.models, trial.stack.models),
            ("n_k", stack.n_k, trial.stack.n_k),
            ("losses", stack.loss_before, trial.stack.loss_before),
        ):
            if not np.array_equal(np.asarray(before), np.asarray(after)):
                raise Broken(f"the updates must not be changed, but {name} changed")


def _grows(make: Make, clock: Clock) -> None:
    for seed in SEEDS:
        aggregator = make()
        for trial in (*trial_rounds(seed, 2, 3), *trial_rounds(seed + 1, 2, 9)):
            merged(aggregator, trial)
        shrunk = trial_rounds(seed + 2, 1, 2)[0]
        merged(aggregator, replace(shrunk, registered=9))


def _alone(make: Make, clock: Clock) -> str:
    lowest, highest = np.inf, 0.0
    for seed in SEEDS:
        trial = trial_rounds(seed, 1)[0].of(np.array([0]))
        (weight,) = merged(make(), trial).weights.tolist()
        lowest, highest = min(lowest, weight), max(highest, weight)
    return f"its weight is {lowest:.3g} to {highest:.3g}"


def _still(make: Make, clock: Clock) -> None:
    for seed in SEEDS:
        trial = trial_rounds(seed, 1)[0]
        still = np.broadcast_to(trial.sent, trial.stack.models.shape).copy()
        got = merged(make(), trial.with_stack(models=still)).vector
        if not np.allclose(got, trial.sent, rtol=1e-5, atol=1e-6):
            raise Broken(
                "devices that did not change the model must leave it where it is, got "
                f"{_shown(got)} instead of {_shown(trial.sent)}"
            )


def _renamed(make: Make, clock: Clock) -> None:
    for seed in SEEDS:
        first, second = make(), make()
        trials = trial_rounds(seed)
        row_of = np.random.default_rng(seed).permutation(trials[0].registered)
        for trial in trials:
            expected = merged(first, trial)
            got = merged(second, trial.with_stack(rows=row_of[trial.stack.rows]))
            if not np.allclose(expected.weights, got.weights, rtol=1e-6, atol=1e-12):
                raise Broken(
                    "the same devices in other rows must have the same weights, got "
                    f"{_shown(got.weights)} instead of {_shown(expected.weights)}"
                )
            if not np.allclose(expected.vector, got.vector, rtol=1e-4, atol=1e-5):
                raise Broken(
                    "the same devices in other rows must give the same model, got "
                    f"{_shown(got.vector)} instead of {_shown(expected.vector)}"
                )


def _moved(aggregator: Aggregator, trial: TrialRound, factor: float) -> Floats:
    """Return the change of the parameters if each change of a device is multiplied by `factor`."""
    models = trial.sent + np.float32(factor) * (trial.stack.models - trial.sent)
    vector = merged(aggregator, trial.with_stack(models=models)).vector
    moved: Floats = (vector - trial.sent)[:N_PARAMS].astype(np.float64)
    return moved


def _scale(make: Make, clock: Clock) -> str:
    lengths = []
    for seed in SEEDS:
        trial = trial_rounds(seed, 1)[0]
        once, twice = (float(np.linalg.norm(_moved(make(), trial, f))) for f in (1.0, 2.0))
        lengths += [twice / once] if once > 0.0 else []
    if not lengths:
        raise Broken("changes of the devices must move the model, got no change of it")
    return f"changes twice as large move it {min(lengths):.3g} to {max(lengths):.3g} times as far"


def _is_fast(make: Make, clock: Clock) -> str:
    rule = make().rule
    limits = [limit for limit in (max_devices_of(rule), max_updates_of(rule)) if limit]
    k = min([LARGE_K, *limits])
    trial = _trial_round(np.random.default_rng(3), k, k, 1, 10 * N_VALUES)

    def run(aggregator: Aggregator) -> None:
        merged(aggregator, trial, at_once=True)

    text = check_speed(make, run, clock, f"a round of {k:,} updates")
    return f"{text}, the most that it declares" if k < LARGE_K else text


def of_rule(rule: WeightRule) -> Aggregator:
    """Return an aggregation with this rule, guarded."""
    return Aggregator(rule if isinstance(rule, Guard) else guarded_rule(UNNAMED, rule))


def of_pseudo_gradient(gradient: PseudoGradient | LinearPseudoGradient) -> Aggregator:
    """Return an aggregation with this pseudo-gradient, guarded."""
    is_guarded = isinstance(gradient, Guard)
    made = gradient if is_guarded else guarded_pseudo_gradient(UNNAMED, gradient)
    return Aggregator(FedAvg(), pseudo_gradient=made)


def of_server_step(step: ServerStep) -> Aggregator:
    """Return an aggregation with this server step, guarded."""
    made = step if isinstance(step, Guard) else GuardedServerStep(UNNAMED, step)
    return Aggregator(FedAvg(), server=made)


UNNAMED = "of this test"
"""Name of a part that is not guarded yet, for its errors."""


def trial_updates(seed: int, k: int | None = None, **columns: Any) -> Updates:
    """Return the updates of a random round, K of them, with some columns replaced."""
    trial = trial_rounds(seed, 1)[0]
    if k is not None:
        trial = _trial_round(np.random.default_rng(seed), k + 1, k, 1)
    stack = trial.of(np.argsort(trial.stack.rows)).stack
    assert stack.loss_before is not None
    changes = stack.models.astype(np.float64) - trial.sent
    updates = Updates(
        rows=stack.rows,
        n_k=stack.n_k,
        steps=-(-stack.n_k // BATCH),
        shares=stack.n_k.astype(np.float64),
        losses=stack.loss_before,
        squared_norms=np.square(changes[:, :N_PARAMS]).sum(axis=1),
        learning_rate=0.1,
        registered=trial.registered,
        changes=Changes(trial.sent, list(stack.models), N_PARAMS),
        round=1,
    )
    return replace(updates, **columns)


LOSSES: Mapping[str, Callable[[int], Floats]] = {
    "all 0": np.zeros,
    "all 1e6": lambda k: np.full(k, 1e6),
    "one 0": lambda k: np.minimum(np.arange(float(k)), 1.0),
    "one 1e6": lambda k: np.where(np.arange(k) == 0, 1e6, 0.1),
    "1e-300 to 1e300": lambda k: np.geomspace(1e-300, 1e300, k),
}
"""Unusual losses of K devices: a loss is a claim, and any finite number is possible."""


def _unusual(make: Callable[[], WeightRule], clock: Clock) -> str:
    remarks = []
    for name, losses in LOSSES.items():
        sums = []
        for seed in SEEDS:
            updates = trial_updates(seed)
            rule = of_rule(make()).rule
            given = replace(updates, losses=losses(len(updates)))
            try:
                sums.append(float(rule.decide(given).sum()))
            except PluginError as exc:
                raise Broken(f"with losses {name}: {exc.fault}") from exc
        lowest, highest = min(sums), max(sums)
        total = f"{lowest:.3g}" if highest - lowest < 1e-3 else f"{lowest:.3g} to {highest:.3g}"
        remarks.append("the model stays" if highest == 0.0 else f"sum {total}")
    return "; ".join(f"{name}: {text}" for name, text in zip(LOSSES, remarks, strict=True))


def _common_factor(make: Callable[[], WeightRule], clock: Clock) -> None:
    for seed in SEEDS:
        updates = trial_updates(seed)
        expected = of_rule(make()).rule.decide(updates)
        for factor in (1e-6, 3.0, 1e6):
            got = of_rule(make()).rule.decide(replace(updates, shares=factor * updates.shares))
            if not np.allclose(got, expected, rtol=1e-6, atol=1e-12):
                raise Broken(
                    f"all shares times {factor:g} must give the same weights, got "
                    f"{_shown(got)} instead of {_shown(expected)}"
                )


def _each_alone(make: Callable[[], WeightRule], clock: Clock) -> str:
    if not isinstance(make(), SeparableRule):
        return "has no factors(): the updates are stored until the last one has arrived"
    for seed in SEEDS:
        rule, updates = of_rule(make()).rule, trial_updates(seed, changes=None)
        assert isinstance(rule, SeparableRule)
        mantissas, exponents = rule.factors(updates)
        for k in range(len(updates)):
            mantissa, exponent = rule.factors(updates.of(np.array([k])))
            ratio = np.ldexp(mantissa[0], int(exponent[0] - exponents[k]))
            if abs(ratio - mantissas[k]) > PROPORTION_TOLERANCE:
                raise Broken(
                    "factors() of an update must not depend on the other updates, got "
                    f"{mantissa[0]:g} * 2^{exponent[0]} for it alone and "
                    f"{mantissas[k]:g} * 2^{exponents[k]} among {len(updates)}"
                )
    return "updates are added as they arrive"


def _weights(make: Callable[[], PseudoGradient | LinearPseudoGradient], clock: Clock) -> str:
    uses_weights, counts = True, False
    for seed in SEEDS:
        trial, models = trial_rounds(seed, 1)[0], []
        for examples in (1, 1 + 100 * np.arange(len(trial.stack.rows))):
            n_k = np.broadcast_to(examples, len(trial.stack.rows))
            aggregator = of_pseudo_gradient(make())
            uses_weights = uses_weights_of(aggregator.pseudo_gradient)
            models.append(merged(aggregator, trial.with_stack(n_k=n_k)).vector)
        counts |= not np.array_equal(models[0], models[1])
    if uses_weights and not counts:
        raise Broken(
            "other weights must give another model, got the same bits; declare uses_weights = False"
        )
    if counts and not uses_weights:
        raise Broken(
            "with uses_weights = False other weights must give the same bits, got another model; "
            "remove the attribute"
        )
    return "weights count" if counts else "weights have no effect: a rule for them is refused"


def _moves(make: Callable[[], ServerStep], clock: Clock) -> str:
    largest = 0.0
    for seed in SEEDS:
        params = trial_rounds(seed, 1)[0].sent
        moved = of_server_step(make()).server.step(params, np.zeros(params.size))
        largest = max(largest, float(np.abs(moved - params).max()))
    if largest > 0.0:
        return f"a pseudo-gradient of 0 moves a parameter by up to {largest:.3g}"
    return "a pseudo-gradient of 0 leaves the first model where it is"


def _step_is_fast(make: Callable[[], ServerStep], clock: Clock) -> str:
    params = np.ones(LARGE_MODEL, dtype=np.float32)

    def run(server: ServerStep) -> None:
        of_server_step(server).server.step(params, np.full(LARGE_MODEL, 0.5))

    return check_speed(make, run, clock, f"a step of {LARGE_MODEL:,} parameters")


def _declares_step(make: Callable[[], WeightRule], clock: Clock) -> str:
    sums = []
    for seed in SEEDS:
        for trial in trial_rounds(seed):
            total = float(merged(of_rule(make()), trial).weights.sum())
            sums += [total] if total > 0.0 else []
    lowest, highest = min(sums, default=1.0), max(sums, default=1.0)
    is_mean = max(abs(lowest - 1.0), abs(highest - 1.0)) <= SUM_OF_A_MEAN
    if rescales_step(make()):
        return f"declared: weights sum to {lowest:.3g} to {highest:.3g}"
    if not is_mean:
        raise Broken(
            "rescales_step must be True, because the weights sum to "
            f"{lowest:.3g} to {highest:.3g} and not to 1: the rule sets the length of the step"
        )
    return "that of a mean: the weights sum to 1"


def _composed(
    compose: Callable[[Part], Aggregator], properties: Mapping[str, Check]
) -> Properties[Part]:
    """Return properties of a part that are those of an aggregation with it."""

    def adapted(check: Check) -> Callable[[Callable[[], Part], Clock], str | None]:
        return lambda make, clock: check(lambda: compose(make()), clock)

    return {name: adapted(check) for name, check in properties.items()}


_ANY: dict[str, Check] = {
    "the same updates, the same model": _deterministic,
    "a restored part continues the same": _resumes,
    "an abandoned round has no effect": _abandoned,
    "the updates are not changed": _pure,
    "scale": _scale,
}
_OF_UPDATES: dict[str, Check] = {
    "the order of arrival changes no bit": _order,
    "the rows of devices have no effect": _renamed,
    "faulty updates are left out": _faulty,
    "one update alone": _alone,
    "the fleet may grow": _grows,
    "unchanged models leave the model": _still,
    "a round is fast enough": _is_fast,
}

RULE_PROPERTIES: Properties[WeightRule] = {
    **_composed(of_rule, _ANY | _OF_UPDATES),
    "unusual losses": _unusual,
    "a common factor of shares has no effect": _common_factor,
    "factors do not depend on other updates": _each_alone,
    "the length of the step is declared": _declares_step,
}
"""The contract of a weight rule."""

PSEUDO_GRADIENT_PROPERTIES: Properties[PseudoGradient | LinearPseudoGradient] = {
    **_composed(of_pseudo_gradient, _ANY | _OF_UPDATES),
    "weights count, or are declared to have no effect": _weights,
}
"""The contract of a pseudo-gradient."""

SERVER_STEP_PROPERTIES: Properties[ServerStep] = {
    **_composed(of_server_step, _ANY),
    "a pseudo-gradient of 0": _moves,
    "a step is fast enough": _step_is_fast,
}
"""The contract of a server step."""
