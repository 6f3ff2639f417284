"""Who is in the fleet, what each device last said of itself, and who is available now.

A pure table: time is an argument. A device keeps its row for the whole run, also over restarts
of the agent and of the coordinator.

Who counts as gone in the middle of a round. Pure.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.wire.messages import Capabilities, Context, Hello

CONTEXT_MAX_AGE_S = 3.0
"""A device whose last context is older is not available (design.md, section 2)."""

MU_BOUNDS = (0.05, 64.0)
"""Clamp on the claimed CPU share, in cores (spec/algorithms.md, section 7)."""

LINK_BOUNDS_BPS = (1e3, 1e12)
"""Clamp on claimed rates, bit/s: what is slower carries no model, and none is faster."""

NEVER = -1
"""Boot of a device that has not spoken yet."""

_KEPT = (
    "name",
    "n_registered",
    "first_seen_s",
    "is_excluded",
    "trained_last",
    "selected_last",
    "aggregated_round",
)


@dataclass(slots=True)
class Device:
    """One device as the coordinator knows it."""

    name: str
    row: int
    boot: int = NEVER
    """Boot of the agent process that spoke last."""
    capabilities: Capabilities | None = None
    has_own_data: bool = False
    n_registered: int = 0
    """Training examples at joining: what it may claim at most."""
    first_seen_s: float | None = None
    """On the run's clock, which goes on over restarts; None before the first hello."""
    is_on: bool = False
    off_since: float | None = None
    """When its last will or farewell came; None while on."""
    heard_at: float = float("-inf")
    """When anything last arrived from it; a transfer counts as life."""
    context: Context | None = None
    context_at: float = float("-inf")
    is_excluded: bool = False
    """A person took it out."""
    busy_round: int | None = None
    """Round it is still at work on."""
    is_draining: bool = False
    """Its round is over for us; it is free again when it says that it is idle."""
    trained_last: bool = False
    """Completed local training in the previous round (s_{t,n} = 0)."""
    selected_last: bool = False
    """Was selected in the previous round."""
    aggregated_round: int | None = None
    """Last round that its update entered the model of."""
    holds: bytes | None = None
    """Hash of the model that this process of it pulled last."""

    def is_available(self, now: float) -> bool:
        """Tell I_{t,n} at this instant."""
        return (
            self.is_on
            and self.context is not None
            and now - self.context_at <= CONTEXT_MAX_AGE_S
            and self.context.is_ready
            and self.context.is_willing
            and self.busy_round is None
            and not self.is_excluded
        )

    @property
    def can_answer(self) -> bool:
        """It can be asked for the loss of a model."""
        return self.capabilities is not None and "loss" in self.capabilities.skills

    def is_present(self, now: float) -> bool:
        """It is available, or but for work that is still wanted of it."""
        if self.busy_round is None or self.is_draining:
            return self.is_available(now)
        return (
            self.is_on and self.context is not None and now - self.context_at <= CONTEXT_MAX_AGE_S
        )

    def status(self, now: float) -> str:
        """Return the one word that a person reads."""
        if not self.is_on:
            return "gone" if self.boot != NEVER else "awaited"
        if self.is_excluded:
            return "excluded"
        if self.context is None or now - self.context_at > CONTEXT_MAX_AGE_S:
            return "silent"
        if not self.context.is_ready:
            return "preparing"
        return self.context.phase if self.context.is_willing else "unwilling"


@dataclass(slots=True)
class Registry:
    """All devices of a run, by name and by row."""

    must_answer: bool = False
    """Who cannot be asked for a loss is not available: the selection depends on it."""
    _devices: dict[str, Device] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._devices)

    def __iter__(self) -> Iterator[Device]:
        return iter(self._devices.values())

    def __contains__(self, name: str) -> bool:
        return name in self._devices

    def get(self, name: str) -> Device | None:
        """Return a device, or None if it never joined."""
        return self._devices.get(name)

    def __getitem__(self, name: str) -> Device:
        return self._devices[name]

    def names(self) -> list[str]:
        """Return all names; the index of a name is its row."""
        return list(self._devices)

    def expect(self, names: Iterable[str]) -> None:
        """Give devices that are to come their rows, in this order whoever joins first."""
        for name in names:
            if name not in self._devices:
                self._devices[name] = Device(name=name, row=len(self._devices))

    @property
    def joined(self) -> int:
        """How many devices have said hello, in this life of the coordinator."""
        return sum(device.boot != NEVER for device in self)

    def join(self, name: str, hello: Hello, now: float) -> Device:
        """Take note of a hello; a device that is new gets the next row."""
        self.expect([name])
        device = self._devices[name]
        if device.boot != hello.boot:
            device.context = device.holds = None
            device.context_at = float("-inf")
            device.boot = hello.boot
            if device.is_draining:
                device.busy_round, device.is_draining = None, False
        device.capabilities = hello.capabilities
        device.has_own_data = hello.n_k is not None
        if hello.n_k is not None:
            device.n_registered = hello.n_k
        device.is_on, device.off_since, device.heard_at = True, None, now
        return device

    def to_state(self) -> list[dict[str, Any]]:
        """Return what a resumed run must know of each device, in row order."""
        return [{key: getattr(device, key) for key in _KEPT} for device in self]

    def load_state(self, state: list[dict[str, Any]]) -> None:
        """Put the devices of a resumed run back into their rows; each still has to say hello."""
        for row, kept in enumerate(state):
            self._devices[kept["name"]] = Device(row=row, **kept)

    def update_context(self, name: str, context: Context, now: float) -> bool:
        """Take note of a context; tell whether it was a joined device's newest."""
        device = self._devices.get(name)
        if device is None or device.boot != context.boot:
            return False
        if device.context is not None and context.seq <= device.context.seq:
            return False
        device.context, device.context_at = context, now
        device.is_on, device.off_since, device.heard_at = True, None, now
        if device.is_draining and context.phase == "idle":
            device.busy_round, device.is_draining = None, False
        return True

    def forget_contexts(self) -> int:
        """Our link is gone, so nothing known is current; return how many devices were ready."""
        ready = 0
        for device in self:
            ready += device.is_on and device.context is not None and device.context.is_ready
            device.context_at = float("-inf")
        return ready

    def heard(self, name: str, now: float) -> None:
        """Take note that something arrived from a device."""
        device = self._devices.get(name)
        if device is not None:
            device.heard_at = now

    def went_off(self, name: str, boot: int, now: float) -> bool:
        """Take note of a farewell or last will; tell whether it was a present device's."""
        device = self._devices.get(name)
        if device is None or device.boot != boot or not device.is_on:
            return False
        device.is_on, device.off_since = False, now
        return True

    def available(self, now: float) -> Bools:
        """Return I_t, shape (N,)."""
        there = (d.is_available(now) and (d.can_answer or not self.must_answer) for d in self)
        return np.fromiter(there, dtype=np.bool_, count=len(self))

    def present(self, now: float) -> int:
        """Return how many devices are available, or at work on a round that is over for others."""
        return sum(d.is_present(now) for d in self)

    def n_k(self) -> Ints:
        """Return the training examples of each device, shape (N,); claims are clamped."""
        return np.fromiter((claimed_n_k(d) for d in self), dtype=np.int64, count=len(self))

    def contexts(self, down_bits: float | Floats, up_bits: float | Floats, coding: str) -> Floats:
        """Return c = [1/mu, s, M_down/B_down, M_up/B_up] of each device, shape (N, 4).

        A link that a device has not measured both ways yet counts as the fleet's median, or as no
        time at all when no device has measured its own.

        Args:
            down_bits: Size of the model as it travels, bits, for each device (N,) or for all.
            up_bits: Size of an update, likewise.
            coding: `not_previous` (s = 1 iff it did not complete training in the last round) or
                `literal_seed` (s = 1 iff it was selected in the last round).
        """
        rates_bps = np.array([_rates_bps(d) for d in self], dtype=np.float64).reshape(len(self), 2)
        transfer_s = transfer_times(down_bits, up_bits, rates_bps)
        inverse_mu = np.array([1.0 / mu_of(d) for d in self], dtype=np.float64)
        cold = np.array([cold_start(d, coding) for d in self], dtype=np.float64)
        return np.concatenate([inverse_mu[:, None], cold[:, None], transfer_s], axis=1)

    def slowest_bps(self) -> float | None:
        """Return the slowest downlink that a device has reported, bit/s; None before the first."""
        rates = [d.context.downlink_bps for d in self if d.context is not None]
        return min((rate for rate in rates if rate is not None), default=None)

    def open_round(self, selected: Iterable[str], round_id: int) -> None:
        """Take note of who is at work from now on."""
        for name in selected:
            self._devices[name].busy_round = round_id
            self._devices[name].is_draining = False

    def release(self, name: str, *, has_trained: bool, is_draining: bool) -> None:
        """Take note that a device's exchange is over while its round goes on."""
        device = self._devices[name]
        device.trained_last = has_trained
        device.is_draining = is_draining
        device.busy_round = device.busy_round if is_draining else None

    def drain(self, names: Iterable[str], round_id: int) -> None:
        """Take note of who may still be at work on a question that nobody waits for any more."""
        for name in names:
            self._devices[name].busy_round, self._devices[name].is_draining = round_id, True

    def close_round(
        self,
        selected: Iterable[str],
        trained: Iterable[str],
        draining: Iterable[str],
        over: Iterable[str] | None = None,
    ) -> None:
        """Take note of how a round ended.

        Args:
            selected: Who was chosen.
            trained: Who completed local training.
            draining: Who may still be at work although nobody waits for it any more.
            over: Whose exchange came to its end in it, begun then or earlier; None is the chosen.
        """
        chosen, done, late = set(selected), set(trained), set(draining)
        ended = chosen if over is None else set(over)
        for device in self:
            device.selected_last = device.name in chosen
            device.trained_last = device.name in done
            if device.name in ended:
                device.is_draining = device.name in late
                device.busy_round = device.busy_round if device.is_draining else None


def transfer_times(down_bits: float | Floats, up_bits: float | Floats, rates_bps: Floats) -> Floats:
    """Return M_down/B_down and M_up/B_up of each device, seconds, shape (N, 2).

    Where one of the two rates is unknown both times are the fleet's median, or 0 where nobody
    knows its own.

    Args:
        down_bits: Size of the model as it travels, bits, for each device (N,) or for all.
        up_bits: Size of an update, likewise.
        rates_bps: Measured down and up, bit/s, shape (N, 2); NaN is unknown.
    """
    down_s, up_s = down_bits / rates_bps[:, 0], up_bits / rates_bps[:, 1]
    is_known: Bools = np.isfinite(down_s) & np.isfinite(up_s)
    transfer_s: Floats = np.stack([down_s, up_s], axis=1)
    if not is_known.all():
        known = transfer_s[is_known]
        guess = np.median(known, axis=0) if known.size else np.zeros(2)
        transfer_s = np.where(is_known[:, None], transfer_s, guess)
    return transfer_s


def mu_of(device: Device) -> float:
    """Return the CPU share mu of a device in cores, clamped; 1 before its first context."""
    if device.context is None:
        return 1.0
    return min(max(device.context.mu_cores, MU_BOUNDS[0]), MU_BOUNDS[1])


def clamps(device: Device) -> dict[str, str]:
    """Return what is not taken as a device says it, by what it is: the raw value and the bound."""
    context, found = device.context, dict[str, str]()
    if context is None:
        return found
    low, high = MU_BOUNDS
    if not low <= context.mu_cores <= high:
        found["mu"] = f"{context.mu_cores:g} cores, counts as {mu_of(device):g}"
    for name, rate in (("downlink", context.downlink_bps), ("uplink", context.uplink_bps)):
        slowest, fastest = LINK_BOUNDS_BPS
        if rate is not None and not slowest <= rate <= fastest:
            taken = min(max(rate, slowest), fastest)
            found[name] = f"{rate:g} bit/s, counts as {taken:g}"
    if context.n_k > device.n_registered > 0:
        found["n_k"] = f"{context.n_k} examples, counts as {device.n_registered}"
    return found


def claimed_n_k(device: Device) -> int:
    """Return n_k of a device: what it says, at most what it registered with."""
    claim = device.context.n_k if device.context is not None else device.n_registered
    return max(0, min(claim, device.n_registered) if device.n_registered else claim)


def cold_start(device: Device, coding: str) -> int:
    """Return s_{t,n} in one of the two codings (spec/algorithms.md, section 1.2)."""
    if coding == "literal_seed":
        return int(device.selected_last)
    return int(not device.trained_last)


def _rates_bps(device: Device) -> tuple[float, float]:
    """Return the measured rates down and up, clamped; NaN before both are known."""
    context = device.context
    if context is None or context.downlink_bps is None or context.uplink_bps is None:
        return math.nan, math.nan
    low, high = LINK_BOUNDS_BPS
    down_bps, up_bps = context.downlink_bps, context.uplink_bps
    return min(max(down_bps, low), high), min(max(up_bps, low), high)


OFF_GRACE_S = 5.0
"""A last will is a lost link at first: the device has this long to come back and go on."""

SILENT_S = 15.0
"""Nothing at all heard for this long: gone. Heartbeats come at 1 Hz but wait behind a window of
chunks on a slow link (4 x 32 KB at 100 kbit/s is 10 s)."""


def why_gone(device: Device, link_up_since: float, now: float) -> str | None:
    """Return why a device that should be working counts as gone; None while it does not.

    Args:
        device: The device.
        link_up_since: When our own link last came up; nobody is to blame for silence before.
        now: This instant.
    """
    off_since = device.off_since
    if off_since is not None and now - max(off_since, link_up_since) > OFF_GRACE_S:
        return f"the device left and did not come back within {OFF_GRACE_S:g} s"
    if now - max(device.heard_at, link_up_since) > SILENT_S:
        return f"nothing heard from the device for {SILENT_S:g} s"
    return None
