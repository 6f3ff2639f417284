"""From `[selection]` to an estimator of exchange times."""

from coordinator.algorithms.estimation.base import Estimator
from coordinator.algorithms.estimation.phases import Phases
from coordinator.algorithms.estimation.ridge import Ridge
from coordinator.config import SelectionConfig


def make_estimator(config: SelectionConfig) -> Estimator:
    """Return the estimator that the configuration names, knowing nothing yet."""
    match config.estimator:
        case "ridge":
            return Ridge(config.ridge_lambda, config.discount)
        case "phases":
            return Phases(config.ridge_lambda, config.discount)
