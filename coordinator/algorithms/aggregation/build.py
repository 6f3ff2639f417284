"""From `[aggregation]` to an aggregator."""

import math

from coordinator.algorithms.aggregation.base import Aggregator
from coordinator.algorithms.aggregation.corefed import CoreFed
from coordinator.algorithms.aggregation.fedavg import FedAvg
from coordinator.algorithms.aggregation.mixing import AAggFF
from coordinator.algorithms.aggregation.q_ffl import QFedAvg
from coordinator.config import AggregationConfig


def make_aggregator(config: AggregationConfig, per_round: int = 2) -> Aggregator:
    """Return the aggregator that the configuration names, without any memory yet.

    Args:
        config: `[aggregation]`.
        per_round: Updates that a round wants.
    """
    match config.rule:
        case "fedavg":
            return FedAvg(config.weights, config.server_learning_rate)
        case "q-fedavg":
            return QFedAvg(config.q, config.sampling_weights, config.weights)
        case "aaggff-s":
            cap = math.inf if config.beta_cap is None else config.beta_cap
            return AAggFF("s", config.cdf, beta_cap=cap)
        case "aaggff-d":
            return AAggFF(
                "d",
                config.cdf,
                per_round=per_round,
                impute=config.impute,
                weights=config.weights,
            )
        case "corefed":
            return CoreFed(config.M, normalise=config.normalise, agents=config.agents)
