"""What an estimator knows of a device before its first exchange, and how fast it forgets."""

import math


def check_prior(estimator: str, lambda_: float, discount: float) -> None:
    """Refuse a prior that no regression can begin with.

    Args:
        estimator: Its name in `[selection]`, for the message.
        lambda_: Penalty, > 0.
        discount: Gamma in (0, 1]: what an observation weighs after each later one of the same
            device; 1 forgets nothing.

    Raises:
        ValueError: The penalty is not positive, or the discount outside (0, 1].
    """
    if not (math.isfinite(lambda_) and lambda_ > 0.0):
        raise ValueError(f"{estimator}: lambda must be > 0, got {lambda_}; 1.0 is a mild prior")
    if not 0.0 < discount <= 1.0:
        raise ValueError(f"{estimator}: discount must be in (0, 1], got {discount}; 1 keeps all")
