"""Makes the selector, the estimator and the aggregator of a configuration."""

import math
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.base import (
    Filter,
    LinearPseudoGradient,
    PseudoGradient,
    ServerStep,
    WeightRule,
    rescales_step,
)
from fairbed.coordinator.algorithms.estimation.base import Estimator
from fairbed.coordinator.algorithms.selection.base import Selector, TwoStepSelector
from fairbed.coordinator.policy.config import (
    LOCAL_RULES,
    RESCALING_LOCAL_RULES,
    RULES,
    AggregationConfig,
    SelectionConfig,
    TrainingConfig,
)
from fairbed.coordinator.policy.plugins import (
    ESTIMATOR,
    LOCAL_RULE,
    PSEUDO_GRADIENT,
    RULE,
    SELECTOR,
    SERVER_STEP,
)
from fairbed.wire.plugins import PluginError

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.estimation.context_check import ContextCheck
    from fairbed.coordinator.algorithms.local_training import ServerHalf
    from fairbed.coordinator.algorithms.selection.fedcs import FedCs
    from fairbed.coordinator.algorithms.selection.miss_limit import MissLimit
    from fairbed.coordinator.algorithms.selection.rbcs_f import RbcsF


def make_estimator(config: SelectionConfig) -> Estimator:
    """Return the estimator that the configuration names, with empty state.

    Raises:
        PluginError: It is not built in and cannot be loaded.
    """
    match config.estimator:
        case "ridge":
            from fairbed.coordinator.algorithms.estimation.ridge import RidgeEstimator

            return RidgeEstimator(config.ridge_lambda, config.discount)
        case "phases":
            from fairbed.coordinator.algorithms.estimation.phases import PhaseEstimator

            return PhaseEstimator(config.ridge_lambda, config.discount)
        case "mixture":
            from fairbed.coordinator.algorithms.estimation.mixture import MixtureEstimator

            return MixtureEstimator(config.ridge_lambda, config.discount)
        case name:
            from fairbed.coordinator.algorithms.estimation.guarded import GuardedEstimator

            return GuardedEstimator(name, ESTIMATOR.make(name, config.estimator_options))


def make_context_check(config: SelectionConfig) -> "ContextCheck | None":
    """Return the check of contexts; None if contexts are used as devices claim them."""
    if config.context_check is None:
        return None
    from fairbed.coordinator.algorithms.estimation.context_check import ContextCheck

    return ContextCheck(config.context_check)


def make_local_half(config: TrainingConfig) -> "ServerHalf | None":
    """Return the coordinator's half of a local rule; None if it is built in.

    Raises:
        PluginError: It cannot be loaded, or lacks a member.
    """
    if config.rule in LOCAL_RULES:
        return None
    from fairbed.coordinator.algorithms.local_training import ServerHalf

    return ServerHalf(config.rule, LOCAL_RULE.make(config.rule, config.rule_options))


def make_aggregator(
    config: AggregationConfig, training: TrainingConfig | None = None, per_round: int = 2
) -> Aggregator:
    """Return the aggregator that the configuration names, with empty state.

    Args:
        config: `[aggregation]`.
        training: `[training]`; None is its defaults.
        per_round: Number of updates that a round merges.

    Raises:
        PluginError: A part of it is not built in and cannot be loaded.
    """
    training = training or TrainingConfig()
    return Aggregator(
        make_rule(config, per_round),
        config.weighting,
        make_pseudo_gradient(config, training),
        make_server_step(config),
        training.local_steps,
        make_defence(config),
        config.step,
    )


def make_defence(config: AggregationConfig) -> Filter | None:
    """Return the filter that the configuration names; None if all updates count."""
    match config.defence:
        case "none":
            return None
        case "clip":
            from fairbed.coordinator.algorithms.aggregation.defence import Clip

            return Clip()
        case "k-norm":
            from fairbed.coordinator.algorithms.aggregation.defence import KNorm

            return KNorm(config.malicious_share)
        case "k-loss":
            from fairbed.coordinator.algorithms.aggregation.defence import KLoss

            return KLoss(config.malicious_share)
        case "krum":
            from fairbed.coordinator.algorithms.aggregation.defence import Krum

            return Krum(config.malicious_share)
        case "multi-krum":
            from fairbed.coordinator.algorithms.aggregation.defence import Krum

            return Krum(config.malicious_share, is_multiple=True)


def defence_problem(config: AggregationConfig, per_round: int) -> str:
    """Return why a round of `per_round` updates is too small for a defence; empty if it is not."""
    filter_ = make_defence(config)
    problem = filter_.problem(per_round) if filter_ is not None else ""
    if not problem and config.pseudo_gradient == "trimmed-mean":
        from fairbed.coordinator.algorithms.aggregation.defence import TrimmedMean

        problem = TrimmedMean(config.malicious_share).problem(per_round)
    return problem


def rule_rescales_step(aggregation: AggregationConfig) -> bool:
    """Return whether a built-in rule sets the length of the step as published."""
    return aggregation.rule in RULES and rescales_step(make_rule(aggregation, per_round=2))


def step_problem(aggregation: AggregationConfig, training: TrainingConfig) -> str:
    """Return why the pseudo-gradient fits neither the rule nor the training; empty if it fits."""
    is_as_published = aggregation.step == "as-published"
    if aggregation.rule == "q-fedavg" and is_as_published and aggregation.q:
        has_own = training.changes_within_round or training.optimiser != "sgd"
        if has_own and (problem := _unlike_sgd(training)):
            return (
                f'aggregation.step must be "normalised" with rule {aggregation.rule!r} and '
                f'training.{problem}, got "as-published": the step of q-FFL is made of gradients '
                "(w - w_k) / learning_rate, which SGD alone gives; set it, or change the key"
            )
    if aggregation.pseudo_gradient != "fednova":
        return ""
    if rule_rescales_step(aggregation):
        return (
            f'aggregation.pseudo_gradient must be "average" with rule {aggregation.rule!r}, got '
            "'fednova': this rule sets the length of the step itself; remove one of the two"
        )
    if problem := _unlike_sgd(training):
        return (
            f"aggregation.pseudo_gradient must not be 'fednova' with training.{problem}: its "
            "normalisation is that of SGD with momentum from zero and one learning rate in a "
            'round; choose "average", or change the key'
        )
    if (shrinkage := training.learning_rate * training.proximal) > 1.0:
        return (
            "training.proximal must be at most 1 / learning_rate with aggregation.pseudo_gradient "
            f"'fednova', got {training.proximal:g} (product {shrinkage:g}): a local step would "
            "overshoot the model that was sent; lower it"
        )
    return ""


def _unlike_sgd(training: TrainingConfig) -> str:
    """Return the key and value by which a local step is not that of plain SGD; else empty."""
    if training.optimiser != "sgd":
        return f'optimiser "{training.optimiser}"'
    if training.nesterov:
        return "nesterov true"
    if training.changes_within_round:
        return 'schedule_by "step"'
    return 'optimiser_state "kept"' if training.keeps_state else ""


def rescaling_parts(aggregation: AggregationConfig, training: TrainingConfig) -> list[str]:
    """Return the parts that set the length of the step, as `rule "corefed"`; empty if none does.

    With `aggregation.step = "normalised"` only training can set it. A plug-in that cannot be loaded
    here is left out.
    """
    parts = []
    if aggregation.step == "as-published":
        with suppress(PluginError):
            if rescales_step(make_rule(aggregation, per_round=2)):
                parts.append(f'rule "{aggregation.rule}"')
        with suppress(PluginError):
            if rescales_step(make_pseudo_gradient(aggregation, training)):
                parts.append(f'pseudo_gradient "{aggregation.pseudo_gradient}"')
    if training.rule in RESCALING_LOCAL_RULES:
        parts.append(f'training.rule "{training.rule}"')
    return parts


def bounding_part(selection: SelectionConfig, aggregation: AggregationConfig) -> str:
    """Return the key and value of a part that takes losses as at least 0; empty if none does.

    q-FFL raises them to a power, Oort multiplies by them; other rules that weigh by losses are
    published for such losses, and a defence compares the same reports. A plug-in that cannot be
    loaded here is left out.
    """
    if selection.policy == "oort":
        return f"selection.policy {selection.policy!r}"
    defence = make_defence(aggregation)
    if defence is not None and defence.needs_loss:
        return f"aggregation.defence {aggregation.defence!r}"
    with suppress(PluginError):
        if make_rule(aggregation, max(2, selection.per_round)).needs_loss:
            return f"aggregation.rule {aggregation.rule!r}"
    return ""


NOISY_RULES = ("fedavg", "fedmgda+")
"""Built-in rules of weights that need no loss, for the message of one that does."""


def privacy_problem(selection: SelectionConfig, aggregation: AggregationConfig) -> str:
    """Return which built-in part needs losses, which local noise does not cover; empty if none."""
    why = "with [privacy]: it needs losses of devices, which no noise covers"
    if selection.queries_losses or selection.selects_by_losses:
        return (
            f"selection.policy must not be {selection.policy!r} {why}; choose rbcs-f, fedcs, "
            "uniform or weighted, or remove [privacy]"
        )
    defence = make_defence(aggregation)
    if defence is not None and defence.needs_loss:
        return (
            f"aggregation.defence must not be {aggregation.defence!r} {why}; choose k-norm or "
            "multi-krum, or remove [privacy]"
        )
    # A plug-in is checked when it is loaded.
    if aggregation.rule in RULES and make_rule(aggregation, selection.per_round).needs_loss:
        return (
            f"aggregation.rule must not be {aggregation.rule!r} {why}; choose "
            f"{' or '.join(NOISY_RULES)}, or remove [privacy]"
        )
    return ""


def make_rule(config: AggregationConfig, per_round: int) -> WeightRule:
    """Return the rule of the weights that the configuration names, with empty state.

    Raises:
        PluginError: It is not built in and cannot be loaded.
    """
    rule = _make_rule(config, per_round)
    if config.max_weight is None:
        return rule
    from fairbed.coordinator.algorithms.aggregation.max_weight import MaxWeight

    return MaxWeight(rule, config.max_weight)


def _make_rule(config: AggregationConfig, per_round: int) -> WeightRule:
    match config.rule:
        case "fedavg":
            from fairbed.coordinator.algorithms.aggregation.fedavg import FedAvg

            return FedAvg()
        case "q-fedavg":
            from fairbed.coordinator.algorithms.aggregation.q_ffl import QFedAvg

            return QFedAvg(config.q)
        case "q-fedsgd":
            from fairbed.coordinator.algorithms.aggregation.q_ffl import QFedAvg

            return QFedAvg(config.q, config.lipschitz)
        case "afl":
            from fairbed.coordinator.algorithms.aggregation.afl import Afl

            return Afl(config.gamma)
        case "term":
            from fairbed.coordinator.algorithms.aggregation.term import Term

            return Term(config.tilt)
        case "propfair":
            from fairbed.coordinator.algorithms.aggregation.propfair import PropFair

            return PropFair(config.M)
        case "fedmgda+":
            from fairbed.coordinator.algorithms.aggregation.fedmgda import FedMgda

            return FedMgda(config.epsilon)
        case "aaggff-s":
            from fairbed.coordinator.algorithms.aggregation.aaggff import AAggFF

            cap = math.inf if config.beta_cap is None else config.beta_cap
            return AAggFF("s", config.cdf, beta_cap=cap)
        case "aaggff-d":
            from fairbed.coordinator.algorithms.aggregation.aaggff import AAggFF

            return AAggFF(
                "d",
                config.cdf,
                per_round=per_round,
                impute=config.impute,
                weights="n_over_pi" if config.weighting == "n_over_pi" else "equal",
            )
        case "corefed":
            from fairbed.coordinator.algorithms.aggregation.corefed import CoreFed

            return CoreFed(config.M)
        case name:
            from fairbed.coordinator.algorithms.aggregation.guarded import guarded_rule

            return guarded_rule(name, RULE.make(name, config.rule_options))


def make_pseudo_gradient(
    config: AggregationConfig, training: TrainingConfig
) -> PseudoGradient | LinearPseudoGradient:
    """Return the pseudo-gradient that the configuration names, with empty state.

    Raises:
        PluginError: It is not built in and cannot be loaded.
    """
    match config.pseudo_gradient:
        case "average":
            from fairbed.coordinator.algorithms.aggregation.pseudo_gradient import Average

            return Average()
        case "fednova":
            from fairbed.coordinator.algorithms.aggregation.pseudo_gradient import FedNova

            return FedNova(training.momentum, training.proximal)
        case "median":
            from fairbed.coordinator.algorithms.aggregation.defence import Median

            return Median()
        case "trimmed-mean":
            from fairbed.coordinator.algorithms.aggregation.defence import TrimmedMean

            return TrimmedMean(config.malicious_share)
        case "geometric-median":
            from fairbed.coordinator.algorithms.aggregation.defence import GeometricMedian

            return GeometricMedian()
        case name:
            from fairbed.coordinator.algorithms.aggregation.guarded import guarded_pseudo_gradient

            return guarded_pseudo_gradient(
                name, PSEUDO_GRADIENT.make(name, config.pseudo_gradient_options)
            )


def make_server_step(config: AggregationConfig) -> ServerStep:
    """Return the server step that the configuration names, with empty state.

    Raises:
        PluginError: It is not built in and cannot be loaded.
    """
    rate = config.server_learning_rate
    beta1, beta2, tau = config.server_beta1, config.server_beta2, config.server_tau
    match config.server:
        case "plain":
            from fairbed.coordinator.algorithms.aggregation.server_step import Plain

            return Plain(1.0 if rate is None else rate)
        case "momentum" | "adagrad" | "adam" | "yogi" as kind:
            from fairbed.coordinator.algorithms.aggregation.server_step import FedOpt

            return FedOpt(
                kind,
                learning_rate=(1.0 if kind == "momentum" else 0.01) if rate is None else rate,
                beta1=(0.0 if kind == "adagrad" else 0.9) if beta1 is None else beta1,
                beta2=0.99 if beta2 is None else beta2,
                tau=1e-3 if tau is None else tau,
            )
        case name:
            from fairbed.coordinator.algorithms.aggregation.guarded import GuardedServerStep

            return GuardedServerStep(name, SERVER_STEP.make(name, config.server_options))


def make_selector(config: SelectionConfig) -> Selector:
    """Return the selector that the configuration names, with empty state.

    Raises:
        PluginError: It is not built in and cannot be loaded.
    """
    match config.policy:
        case "uniform":
            from fairbed.coordinator.algorithms.selection.uniform import Uniform

            return Uniform()
        case "weighted":
            from fairbed.coordinator.algorithms.selection.weighted import Weighted

            return Weighted(config.weights)
        case "fedcs":
            return _fedcs(config)
        case "fedcs-oracle":
            from fairbed.coordinator.algorithms.selection.oracle import OracleTimes

            return OracleTimes(_fedcs(config))
        case "fastest-known":
            from fairbed.coordinator.algorithms.selection.oracle import Fastest, OracleTimes

            return OracleTimes(Fastest())
        case "rbcs-f":
            return _rbcs_f(config)
        case "rbcs-f-known":
            from fairbed.coordinator.algorithms.selection.oracle import OracleTimes

            return OracleTimes(_rbcs_f(config))
        case "oort":
            from fairbed.coordinator.algorithms.selection.oort import Oort, OortSettings

            return Oort(OortSettings(**msgspec.structs.asdict(config.oort)))
        case "power-of-choice":
            return _power_of_choice(config)
        case "app":
            from fairbed.coordinator.algorithms.selection.application import ApplicationCohort

            return ApplicationCohort()
        case name:
            from fairbed.coordinator.algorithms.selection.guarded import guarded

            return guarded(name, SELECTOR.make(name, config.options))


def make_miss_limit(config: SelectionConfig) -> "MissLimit | None":
    """Return the limit on devices that keep missing the deadline, with empty state."""
    if not config.limits_misses:
        return None
    from fairbed.coordinator.algorithms.selection.miss_limit import MissLimit

    counts_selections = config.has_queues and config.queue_counts == "selected"
    beta = config.beta if counts_selections else 0.0
    return MissLimit(config.miss_limit, beta, config.z_max)


def make_query_limit(config: SelectionConfig, selector: Selector) -> "MissLimit | None":
    """Return the same for loss queries that devices do not answer, which guarantee nothing."""
    if not (config.limits_misses and isinstance(selector, TwoStepSelector)):
        return None
    from fairbed.coordinator.algorithms.selection.miss_limit import MissLimit

    return MissLimit(config.miss_limit)


def _fedcs(config: SelectionConfig) -> "FedCs":
    from fairbed.coordinator.algorithms.selection.fedcs import FedCs

    return FedCs(deadline_s=config.deadline_s, uploads=config.uploads)


def _power_of_choice(config: SelectionConfig) -> Selector:
    match config.variant:
        case "rpow-d":
            from fairbed.coordinator.algorithms.selection.power_of_choice import PowerOfChoice

            return PowerOfChoice(config.n_candidates)
        case "pow-d":
            from fairbed.coordinator.algorithms.selection.pow_d import PowD

            return PowD(config.n_candidates, "all")
        case "cpow-d":
            from fairbed.coordinator.algorithms.selection.pow_d import PowD

            return PowD(config.n_candidates, "batch")


def _rbcs_f(config: SelectionConfig) -> "RbcsF":
    from fairbed.coordinator.algorithms.selection.rbcs_f import RbcsF, TheoryAlpha

    theory = TheoryAlpha(ridge_lambda=config.ridge_lambda)
    return RbcsF(
        beta=config.beta,
        V=config.V,
        alpha=theory if config.alpha == "theory" else config.alpha,
        lcb_floor_s=None if config.lcb_floor == "none" else config.lcb_floor,
        counts=config.queue_counts,
        z_max=config.z_max,
    )
