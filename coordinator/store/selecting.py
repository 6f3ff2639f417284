"""Rows of the run store about a selection: what was known and asked before it, and its outcome."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """What was known of every device at the selection of one round, as columns.

    Written for fleets of up to `coordinator.accounting.KEPT_DEVICES` devices, in the order of their
    rows, as little-endian float64.
    """

    TABLE: ClassVar[str] = "fleet"
    KEY: ClassVar[tuple[str, ...]] = ("round",)

    round: int
    context: bytes
    """1/mu, cold start, seconds down, seconds up: what the estimator was told, shape (N, 4)."""
    known_s: bytes | None
    """The true expected exchange times, seconds, shape (N,); None where nobody knows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRow:
    """One device that was asked for its loss before a selection."""

    TABLE: ClassVar[str] = "ask"
    KEY: ClassVar[tuple[str, ...]] = ("round", "device")

    round: int
    device: str
    outcome: str
    """answered, late, failed, lost, refused."""
    why: str
    loss: float | None
    """As the device says it, nats; None without an answer."""
    took_s: float | None
    """From the question to the answer, on the coordinator's clock."""
    download_s: float | None
    """On the device's clock, like the three below."""
    decode_s: float | None
    load_s: float | None
    evaluate_s: float | None
    was_cold: bool | None
    bytes_down: int
    """Of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRow:
    """One device at the selection instant of one round."""

    TABLE: ClassVar[str] = "selection"
    KEY: ClassVar[tuple[str, ...]] = ("round", "device")

    round: int
    device: str
    is_available: bool
    is_selected: bool
    is_aggregated: bool
    tau_hat_s: float | None
    width_s: float | None
    queue: float
    """Z after the round."""
    propensity: float | None = None
    """Probability of being in the cohort, given what the selector picked; None in runs of
    before."""
    is_audit: bool = False
    """Drawn by chance, for the audit sample."""
