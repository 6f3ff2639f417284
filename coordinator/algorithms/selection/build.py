"""From `[selection]` to a selector."""

from coordinator.algorithms.selection.base import Selector
from coordinator.algorithms.selection.fedcs import FedCs
from coordinator.algorithms.selection.rbcs_f import RbcsF, TheoryAlpha
from coordinator.algorithms.selection.uniform import Uniform
from coordinator.config import SelectionConfig


def make_selector(config: SelectionConfig) -> Selector:
    """Return the selector that the configuration names, without any memory yet."""
    match config.policy:
        case "uniform":
            return Uniform()
        case "fedcs":
            return FedCs(deadline_s=config.deadline_s, uploads=config.uploads)
        case "rbcs-f":
            theory = TheoryAlpha(ridge_lambda=config.ridge_lambda)
            return RbcsF(
                beta=config.beta,
                V=config.V,
                alpha=theory if config.alpha == "theory" else config.alpha,
                lcb_floor_s=config.lcb_floor,
                counts=config.counts,
                z_max=config.z_max,
            )
