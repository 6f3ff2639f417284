"""From `[aggregation]` to an aggregator."""

from coordinator.algorithms.aggregation.base import Aggregator
from coordinator.algorithms.aggregation.fedavg import FedAvg
from coordinator.algorithms.aggregation.q_ffl import QFedAvg
from coordinator.config import AggregationConfig


def make_aggregator(config: AggregationConfig) -> Aggregator:
    """Return the aggregator that the configuration names, without any memory yet."""
    match config.rule:
        case "fedavg":
            return FedAvg(config.weights, config.server_learning_rate)
        case "q-fedavg":
            return QFedAvg(config.q, config.sampling_weights, config.weights)
