"""From `[selection]` to a selector."""

import sys

import msgspec

from coordinator.algorithms.selection.base import Selector
from coordinator.algorithms.selection.fedcs import FedCs
from coordinator.algorithms.selection.known import Fastest, Known
from coordinator.algorithms.selection.oort import Oort, OortSettings
from coordinator.algorithms.selection.power_of_choice import PowerOfChoice
from coordinator.algorithms.selection.rbcs_f import RbcsF, TheoryAlpha
from coordinator.algorithms.selection.uniform import Uniform
from coordinator.algorithms.selection.weighted import Weighted
from coordinator.config import SelectionConfig

if sys.version_info >= (3, 11):
    from typing import assert_never
else:
    from typing_extensions import assert_never


def make_selector(config: SelectionConfig) -> Selector:
    """Return the selector that the configuration names, without any memory yet."""
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
            return PowerOfChoice(config.candidates or 2 * config.per_round)
        case _:
            assert_never(config.policy)


def _fedcs(config: SelectionConfig) -> FedCs:
    return FedCs(deadline_s=config.deadline_s, uploads=config.uploads)


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
