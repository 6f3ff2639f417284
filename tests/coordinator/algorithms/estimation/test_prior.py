"""Every estimator refuses a bad prior, with its own name in the message."""

import re

import pytest

from fairbed.coordinator.algorithms.estimation.base import check_prior
from fairbed.coordinator.algorithms.estimation.elasticity import Elasticities
from fairbed.coordinator.algorithms.estimation.phases import PhaseEstimator, Proportions, Transfers
from fairbed.coordinator.algorithms.estimation.ridge import RidgeEstimator
from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.coordinator.policy.factories import make_estimator

REGRESSIONS = {
    RidgeEstimator: "ridge",
    PhaseEstimator: "phases",
    Proportions: "phases",
    Elasticities: "phases",
    Transfers: "phases",
}


@pytest.mark.parametrize("kind", REGRESSIONS)
@pytest.mark.parametrize(
    ("lambda_", "discount", "message"),
    [
        (0.0, 1.0, "lambda must be > 0, got 0.0; 1.0 is a mild prior"),
        (float("inf"), 1.0, "lambda must be > 0, got inf; 1.0 is a mild prior"),
        (1.0, 0.0, "discount must be in (0, 1], got 0.0; 1 keeps all"),
        (1.0, 1.1, "discount must be in (0, 1], got 1.1; 1 keeps all"),
    ],
)
def test_every_regression_refuses_a_bad_prior_by_its_name(
    kind: type[RidgeEstimator | PhaseEstimator | Proportions | Elasticities | Transfers],
    lambda_: float,
    discount: float,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{REGRESSIONS[kind]}: {message}')}$"):
        kind(lambda_, discount)


def test_the_usual_prior_is_accepted() -> None:
    settings = SelectionConfig()
    check_prior(settings.estimator, settings.ridge_lambda, settings.discount)
    make_estimator(settings)
