"""From `[selection]` to a selector."""

import msgspec

from coordinator import plugins
from coordinator.algorithms.selection.base import Selector
from coordinator.algorithms.selection.fedcs import FedCs
from coordinator.algorithms.selection.known import Fastest, Known
from coordinator.algorithms.selection.oort import Oort, OortSettings
from coordinator.algorithms.selection.pow_d import PowD
from coordinator.algorithms.selection.power_of_choice import PowerOfChoice
from coordinator.algorithms.selection.rbcs_f import RbcsF, TheoryAlpha
from coordinator.algorithms.selection.uniform import Uniform
from coordinator.algorithms.selection.weighted import Weighted
from coordinator.config import SelectionConfig


def make_selector(config: SelectionConfig) -> Selector:
    """Return the selector that the configuration names, without any memory yet.

    Raises:
        PluginError: It is none of ours, and cannot be had.
    """
    match config.policy:
        case "uniform":
            return Uniform()
        case "weighted":
            return Weighted(config.weights)
        case "fedcs":
            return _fedcs(config)
        case "fedcs-oracle":
            return Known(_fedcs(config))
        case "fastest-known":
            return Known(Fastest())
        case "rbcs-f":
            return _rbcs_f(config)
        case "rbcs-f-known":
            return Known(_rbcs_f(config))
        case "oort":
            return Oort(OortSettings(**msgspec.structs.asdict(config.oort)))
        case "power-of-choice":
            return _power_of_choice(config)
        case _:
            return plugins.load_selector(config.policy, config.options)


def _fedcs(config: SelectionConfig) -> FedCs:
    return FedCs(deadline_s=config.deadline_s, uploads=config.uploads)


def _power_of_choice(config: SelectionConfig) -> Selector:
    match config.variant:
        case "rpow-d":
            return PowerOfChoice(config.drawn)
        case "pow-d":
            return PowD(config.drawn, "all")
        case "cpow-d":
            return PowD(config.drawn, "batch")


def _rbcs_f(config: SelectionConfig) -> RbcsF:
    theory = TheoryAlpha(ridge_lambda=config.ridge_lambda)
    return RbcsF(
        beta=config.beta,
        V=config.V,
        alpha=theory if config.alpha == "theory" else config.alpha,
        lcb_floor_s=config.lcb_floor,
        counts=config.counts,
        z_max=config.z_max,
    )
