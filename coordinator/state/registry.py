"""The devices of a run: last reports, availability and losses. Pure.

Time is an argument. A device keeps its row for the whole run, even when its agent or the
coordinator restarts.
"""

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Reason
from fairbed.coordinator.state.memory import Fitting
from fairbed.wire.messages import (
    Capabilities,
    Context,
    Hello,
    Hyperparameters,
    Trouble,
    TroubleKind,
)
from fairbed.wire.scale import Scale

CONTEXT_MAX_AGE_S = 3.0
"""A device whose last context is older is not available (design.md, section 2)."""

MU_BOUNDS = (0.05, 64.0)
"""Bounds of a reported CPU share, in cores (spec/algorithms.md, section 7)."""

LINK_BOUNDS_BPS = (1e3, 1e12)
"""Bounds of a reported rate, bit/s; a slower link cannot carry a model."""

TROUBLES: tuple[str, ...] = get_args(TroubleKind)
"""States of a device that cannot prepare."""

NEVER = -1
"""Boot of a device that has sent no hello yet."""

_CHECKPOINTED = (
    "name",
    "former",
    "n_registered",
    "positions_registered",
    "first_seen_s",
    "is_excluded",
    "trained_last",
    "selected_last",
    "aggregated_round",
)


_IN_COLUMNS = frozenset(
    {
        "capabilities",
        "n_registered",
        "is_on",
        "context",
        "context_at",
        "is_excluded",
        "busy_round",
        "trained_last",
        "selected_last",
    }
)
"""Fields of a device that `_Columns` are computed from."""


@dataclass(slots=True)
class Device:
    """One device as the coordinator knows it."""

    changed: set[int] = field(default_factory=set, kw_only=True, repr=False, compare=False)
    """Rows of the registry whose columns are out of date; the first field, for `__setattr__`."""
    name: str
    row: int
    former: list[str] = field(default_factory=list)
    """Names that it had before in this run; the lab renamed it."""
    boot: int = NEVER
    """Boot of the agent process that sent the last hello."""
    capabilities: Capabilities | None = None
    has_own_data: bool = False
    holds_tests: bool = False
    """The coordinator cannot test the model on its data: the device does."""
    scale: Scale | None = None
    """Of its own data; None for a shard, and before it has sent it."""
    base_bytes: int | None = None
    """Frozen part of the model on the device; None: there is none, or it has not arrived."""
    base_s: float | None = None
    """How long the device downloaded it, seconds; None also if it had it before."""
    n_registered: int = 0
    """Training examples in its hello: an upper bound of later reports."""
    positions_registered: int = 0
    """Positions of its shard that have a target, as an upper bound; 0 for own data, and with one
    target per example."""
    first_seen_s: float | None = None
    """On the run's clock, which continues after a restart; None before the first hello."""
    is_on: bool = False
    off_since: float | None = None
    """When its last will or goodbye arrived; None while on."""
    last_packet_at: float = float("-inf")
    """When its last packet of any kind arrived."""
    context: Context | None = None
    context_at: float = float("-inf")
    is_excluded: bool = False
    """An operator excluded it."""
    is_refused: bool = False
    """The broker refuses its identity; its next hello ends that."""
    is_given_up_on: bool = False
    """A round has waited for it for `round.give_up_after_s`; its next context ends that."""
    trouble: Trouble | None = None
    """Why it could not join or prepare; None once it is ready."""
    trouble_at: float = float("-inf")
    busy_round: int | None = None
    """Round that it still works on; None if it is free."""
    is_draining: bool = False
    """Its exchange is over, but it may still work; it is free once it reports the phase idle."""
    trained_last: bool = False
    """It completed local training in the previous round (s_{t,n} = 0)."""
    selected_last: bool = False
    """It was selected in the previous round."""
    aggregated_round: int | None = None
    """Last round that merged its update."""
    held_sha256: bytes | None = None
    """Hash of the model version that its agent process downloaded last."""

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name in _IN_COLUMNS:
            self.changed.add(self.row)

    def is_available(self, now: float) -> bool:
        """Return I_{t,n} at this instant."""
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
    def training_cores(self) -> float:
        """Cores that its training may use, by its hello; `inf` before it."""
        known = self.capabilities
        return math.inf if known is None else float(min(known.cores, known.engine_threads))

    @property
    def can_report_loss(self) -> bool:
        """The device supports loss queries."""
        return self.capabilities is not None and "loss" in self.capabilities.skills

    @property
    def can_send_scale(self) -> bool:
        """The device has own data, and sends their scale if it is asked."""
        return (
            self.has_own_data
            and self.capabilities is not None
            and "scale" in self.capabilities.skills
        )

    @property
    def can_send_log(self) -> bool:
        """The device sends lines of its log if it is asked, and its owner allows it."""
        return self.capabilities is not None and "log" in self.capabilities.skills

    @property
    def can_personalise(self) -> bool:
        """The device can train a personal model."""
        return self.capabilities is not None and "personal" in self.capabilities.skills

    def accepts_noise(self, noise_multiplier: float | None) -> bool:
        """Return whether the device trains with this noise; None is training without noise."""
        if self.capabilities is None:
            return noise_multiplier is None
        can_add = noise_multiplier is None or "privacy" in self.capabilities.skills
        return can_add and (noise_multiplier or 0.0) >= self.capabilities.min_noise_multiplier

    @property
    def can_test(self) -> bool:
        """The device can test models on its data, and its owner lets scores leave it."""
        known = self.capabilities
        return (
            self.holds_tests
            and known is not None
            and "test" in known.skills
            and not known.min_noise_multiplier
        )

    def has_rule(self, rule: str) -> bool:
        """Return whether the device can train with a local rule."""
        known = () if self.capabilities is None else self.capabilities.local_rules
        return rule == "sgd" or rule in known

    def runs_model(self, engine: str, module: str) -> bool:
        """Return whether the device has an engine, and its owner allows the module of a model.

        Args:
            engine: onnx, torch or client.
            module: Python modules of the model, with spaces between them, or name of the folder of
                a client; empty for graphs, which need no permission.
        """
        known = self.capabilities
        if known is None:
            return engine == "onnx"
        if engine == "client":
            return module in known.clients
        return engine in known.engines and set(module.split()) <= set(known.models)

    def is_present(self, now: float) -> bool:
        """Return whether the device is available or at work on an open exchange."""
        if self.busy_round is None or self.is_draining:
            return self.is_available(now)
        return (
            self.is_on and self.context is not None and now - self.context_at <= CONTEXT_MAX_AGE_S
        )

    @property
    def is_out(self) -> bool:
        """No round waits for it: it is excluded, refused by the broker, or given up on."""
        return self.is_excluded or self.is_refused or self.is_given_up_on

    def is_linked(self, now: float) -> bool:
        """Return whether the device is in contact and ready, even if it is unwilling or busy."""
        return (
            self.is_on
            and not self.is_excluded
            and self.context is not None
            and self.context.is_ready
            and now - self.context_at <= CONTEXT_MAX_AGE_S
        )

    def status(self, now: float) -> str:
        """Return its status in one word, as the TUI shows it."""
        if self.is_refused:
            return "revoked"
        if not self.is_on:
            return "gone" if self.boot != NEVER else "awaited"
        if self.is_excluded:
            return "excluded"
        if self.context is None or now - self.context_at > CONTEXT_MAX_AGE_S:
            return "silent"
        if not self.context.is_ready:
            return "preparing" if self.trouble is None else self.trouble.kind
        return self.context.phase if self.context.is_willing else "unwilling"

    def reason(self, now: float) -> str:
        """Return why a round cannot have it now, in a few words."""
        status = self.status(now)
        if self.trouble is not None and status == self.trouble.kind:
            return self.trouble.text
        return _REASONS.get(status, status)

    def absent_since(self, now: float) -> float | None:
        """Return since when it is out of contact or in trouble; None if that is not known."""
        if self.trouble is not None and self.status(now) == self.trouble.kind:
            return self.trouble_at
        if self.off_since is not None:
            return self.off_since
        if self.status(now) == "silent":
            last = max(self.context_at, self.last_packet_at)
            return last if math.isfinite(last) else None
        return None


_REASONS = {
    "awaited": "has not joined",
    "gone": "disconnected",
    "silent": "silent",
    "preparing": "joining",
}
"""What a person reads of a status."""


_ABSENT = {
    "gone": Reason.OFFLINE,
    "awaited": Reason.OFFLINE,
    "silent": Reason.OFFLINE,
    "revoked": Reason.OFFLINE,
    "preparing": Reason.PREPARING,
    "unwilling": Reason.UNWILLING,
    **dict.fromkeys(TROUBLES, Reason.PREPARING),
}
"""Why a device with a status is not available."""


@dataclass(slots=True)
class _Columns:
    """What a decision reads of all devices, one entry for each: 10^6 devices cost milliseconds."""

    context_at: Floats
    is_open: Bools
    """Available but for the age of the context."""
    inverse_mu: Floats
    rates_bps: Floats
    """Shape (N, 2)."""
    cores: Floats
    n_k: Ints
    trained_last: Bools
    selected_last: Bools

    @classmethod
    def empty(cls, size: int) -> "_Columns":
        return cls(
            context_at=np.full(size, -np.inf),
            is_open=np.zeros(size, dtype=np.bool_),
            inverse_mu=np.ones(size),
            rates_bps=np.full((size, 2), np.nan),
            cores=np.full(size, np.inf),
            n_k=np.zeros(size, dtype=np.int64),
            trained_last=np.zeros(size, dtype=np.bool_),
            selected_last=np.zeros(size, dtype=np.bool_),
        )

    def resized(self, size: int) -> "_Columns":
        """Return these columns with room for more devices."""
        larger, n = _Columns.empty(size), len(self.n_k)
        for name in _Columns.__slots__:
            getattr(larger, name)[:n] = getattr(self, name)
        return larger


@dataclass(slots=True)
class Registry:
    """All devices of a run, by name and by row."""

    needs_losses: bool = False
    """A device that cannot report a loss is not available: the selector needs it."""
    personalises: bool = False
    """Devices train personal models."""
    tests_shards: bool = False
    """Devices test the model on their shards, too, because they keep values of it, or only their
    client knows how."""
    local_rule: str = "sgd"
    """Local rule of the run; a device without it is not available."""
    needed_skills: tuple[str, ...] = ()
    """Skills that training of the run needs beside SGD, and functions that the owner must allow; a
    device without one is not available."""
    emulated: Collection[str] = ()
    """Emulated devices; only reports differ for them."""
    noise_multiplier: float | None = None
    """Noise of the run's updates, None without; a device that does not accept it is not
    available."""
    engine: str = "onnx"
    """Engine of the run's task; a device without it is not available."""
    module: str = ""
    """Python modules of the model, with spaces between them, or name of the folder of a client,
    empty for graphs; a device whose owner does not allow them is not available."""
    fitting: Fitting | None = None
    """Fits training into the memory of devices; None: it needs little. A device into which it does
    not fit is not available."""
    _devices: dict[str, Device] = field(default_factory=dict)
    _rows: list[Device] = field(default_factory=list)
    _changed: set[int] = field(default_factory=set)
    _columns: _Columns = field(default_factory=lambda: _Columns.empty(0))
    _required: tuple[object, ...] = ()
    """What the columns were computed for, of the fields above."""

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
        """Assign rows to devices in this order, whichever joins first."""
        former = {name for device in self for name in device.former}
        for name in names:
            if name not in self._devices and name not in former:
                self._add(Device(name=name, row=len(self._devices), changed=self._changed))

    def rename(self, old: str, new: str) -> None:
        """Give a device another name; it keeps its row, and must send a hello again."""
        device = self._devices[old]
        device.former = [name for name in (*device.former, old) if name != new]
        device.name, device.boot, device.context = new, NEVER, None
        device.is_on = device.is_refused = False
        self._devices = {device.name: device for device in self._rows}

    def _add(self, device: Device) -> None:
        self._devices[device.name] = device
        self._rows.append(device)
        self._changed.add(device.row)

    @property
    def missing_physical(self) -> list[str]:
        """Expected physical devices of a partly emulated fleet that have sent no hello yet."""
        if not self.emulated:
            return []
        return [x.name for x in self if x.boot == NEVER and x.name not in self.emulated]

    @property
    def joined(self) -> int:
        """Number of devices that have sent a hello to this coordinator process."""
        return sum(device.boot != NEVER for device in self)

    def join(self, name: str, hello: Hello, now: float) -> Device:
        """Record a hello; a new device gets the next row."""
        self.expect([name])
        device = self._devices[name]
        if device.boot != hello.boot:
            device.context = device.held_sha256 = device.scale = None
            device.context_at = float("-inf")
            device.boot = hello.boot
            if device.is_draining:
                device.busy_round, device.is_draining = None, False
        device.capabilities = hello.capabilities
        device.has_own_data = hello.n_k is not None
        device.holds_tests = device.has_own_data or self.tests_shards
        if hello.n_k is not None:
            device.n_registered = hello.n_k
        device.is_on, device.off_since, device.last_packet_at = True, None, now
        device.is_refused = device.is_given_up_on = False
        return device

    def to_state(self) -> list[dict[str, Any]]:
        """Return the state of each device for the checkpoint, in row order."""
        return [{key: getattr(device, key) for key in _CHECKPOINTED} for device in self]

    def load_state(self, state: list[dict[str, Any]]) -> None:
        """Restore the devices of a resumed run in their rows; each must still send a hello."""
        for row, saved in enumerate(state):
            self._add(Device(row=row, changed=self._changed, **saved))

    def update_context(self, name: str, context: Context, now: float) -> bool:
        """Record a context; return whether it is the newest of a device that has joined."""
        device = self._devices.get(name)
        if device is None or device.boot != context.boot:
            return False
        if device.context is not None and context.seq <= device.context.seq:
            return False
        device.context, device.context_at = context, now
        device.is_on, device.off_since, device.last_packet_at = True, None, now
        device.is_given_up_on = False
        if context.is_ready and device.trouble is not None and device.trouble.off_s is None:
            device.trouble = None
        if device.is_draining and context.phase == "idle":
            device.busy_round, device.is_draining = None, False
        return True

    def expire_contexts(self) -> int:
        """Expire all contexts after a loss of the link; return how many devices were ready."""
        ready = 0
        for device in self:
            ready += device.is_on and device.context is not None and device.context.is_ready
            device.context_at = float("-inf")
        return ready

    def record_packet(self, name: str, now: float) -> None:
        """Record that a packet arrived from a device."""
        device = self._devices.get(name)
        if device is not None:
            device.last_packet_at = now

    def mark_off(self, name: str, boot: int, now: float) -> bool:
        """Record a goodbye or last will; return whether the device was on."""
        device = self._devices.get(name)
        if device is None or device.boot != boot or not device.is_on:
            return False
        device.is_on, device.off_since = False, now
        return True

    def available(self, now: float) -> Bools:
        """Return I_t, shape (N,)."""
        columns, n = self._up_to_date(), len(self)
        is_recent: Bools = now - columns.context_at[:n] <= CONTEXT_MAX_AGE_S
        return is_recent & columns.is_open[:n]

    def absences(self, is_available: Bools, now: float) -> dict[int, Reason]:
        """Return why devices are not available at this instant, by row.

        Args:
            is_available: I_t, shape (N,); a device that is available but for it is left out.
            now: Monotonic clock, seconds.
        """
        devices = list(self)
        absent = (devices[row] for row in np.flatnonzero(~is_available).tolist())
        found = {device.row: self._absence(device, now) for device in absent}
        return {row: reason for row, reason in found.items() if reason is not None}

    def _absence(self, device: Device, now: float) -> Reason | None:
        """Return why a device is not available, or None if it is."""
        if device.is_excluded:
            return Reason.EXCLUDED
        is_unfit = not device.runs_model(self.engine, self.module) or self.memory_problem(device)
        if is_unfit and device.is_on:
            return Reason.UNFIT  # it stays in preparation
        status = device.status(now)
        if reason := _ABSENT.get(status):
            return reason
        if device.busy_round is not None:
            return Reason.BUSY
        return None if self._can_serve(device) else Reason.UNFIT

    def _can_serve(self, device: Device) -> bool:
        """Return whether a device can do all that this run asks of each device."""
        return (
            device.has_rule(self.local_rule)
            and not (self.needed_skills and self.lacking_skills(device))
            and device.accepts_noise(self.noise_multiplier)
            and device.runs_model(self.engine, self.module)
            and not self.memory_problem(device)
            and (device.can_report_loss or not self.needs_losses)
        )

    def lacking_skills(self, device: Device) -> list[str]:
        """Return the skills that training needs and the device does not name."""
        own = device.capabilities
        known = () if own is None else (*own.skills, *own.local_rules)
        return [skill for skill in self.needed_skills if skill not in known]

    def memory_problem(self, device: Device) -> str:
        """Return why training does not fit into the memory of a device; empty if it may."""
        known = device.capabilities
        if self.fitting is None or known is None:
            return ""
        return self.fitting.problem(known.memory_bytes, device.n_registered)

    def fitted(self, device: Device, hyperparameters: Hyperparameters) -> Hyperparameters:
        """Return hyperparameters with parts of mini-batches that fit into a device's memory."""
        known = device.capabilities
        if self.fitting is None or known is None:
            return hyperparameters
        size = self.fitting.micro_batch(known.memory_bytes, device.n_registered)
        return structs.replace(hyperparameters, micro_batch=size)

    def present(self, now: float) -> int:
        """Return the number of devices that are available or at work on an open exchange."""
        return sum(d.is_present(now) for d in self)

    def linked(self, now: float) -> int:
        """Return the number of devices that are in contact and ready."""
        return sum(d.is_linked(now) for d in self)

    def left(self) -> list[int]:
        """Return the rows of the devices that have left the fleet: the broker refuses them."""
        return [d.row for d in self._rows if d.is_refused]

    def unlinked(self, now: float) -> list[Device]:
        """Return the devices that can come into contact, and are not."""
        return [d for d in self if not d.is_out and not d.is_linked(now)]

    def attainable(self, wanted: int) -> int:
        """Return how many of `wanted` devices can come, those that are out left out."""
        gone = sum(d.is_out for d in self)
        return max(1, min(wanted, len(self) - gone)) if gone else wanted

    def n_k(self) -> Ints:
        """Return the training examples of each device, shape (N,), bounded by its hello."""
        n_k: Ints = self._up_to_date().n_k[: len(self)].copy()
        return n_k

    def cores(self) -> Floats:
        """Return the cores that a training of each device may use, shape (N,); `inf`: unknown."""
        cores: Floats = self._up_to_date().cores[: len(self)].copy()
        return cores

    def contexts(self, down_bits: float | Floats, up_bits: float | Floats, coding: str) -> Floats:
        """Return c = [1/mu, s, M_down/B_down, M_up/B_up] of each device, shape (N, 4).

        A device that has not measured its link both ways gets the fleet's median times, or 0 when
        no device has measured its link.

        Args:
            down_bits: Size of the encoded model, bits, for each device (N,) or for all.
            up_bits: Size of an update, likewise.
            coding: `not_previous` (s = 1 iff it did not complete training in the last round) or
                `literal_seed` (s = 1 iff it was selected in the last round).
        """
        columns, n = self._up_to_date(), len(self)
        transfer_s = transfer_times(down_bits, up_bits, columns.rates_bps[:n])
        is_cold = columns.selected_last if coding == "literal_seed" else ~columns.trained_last
        context = np.empty((n, 4))
        context[:, 0], context[:, 1] = columns.inverse_mu[:n], is_cold[:n]
        context[:, 2:] = transfer_s
        return context

    def _up_to_date(self) -> _Columns:
        """Return the columns, computed anew for the devices that have changed."""
        required = (
            self.needs_losses,
            self.needed_skills,
            self.local_rule,
            self.noise_multiplier,
            self.engine,
            self.module,
        )
        if required != self._required:
            self._required = required
            self._changed.update(range(len(self)))
        columns = self._columns
        if len(columns.n_k) < len(self):
            columns = self._columns = columns.resized(2 * len(self))
        for row in self._changed:
            device = self._rows[row]
            columns.context_at[row] = device.context_at
            columns.is_open[row] = device.is_available(device.context_at) and self._can_serve(
                device
            )
            columns.inverse_mu[row] = 1.0 / clamped_mu(device)
            columns.rates_bps[row] = _rates_bps(device)
            columns.cores[row] = device.training_cores
            columns.n_k[row] = bounded_n_k(device)
            columns.trained_last[row] = device.trained_last
            columns.selected_last[row] = device.selected_last
        self._changed.clear()
        return columns

    def slowest_bps(self) -> float | None:
        """Return the slowest downlink that a device has reported, bit/s; None before the first."""
        rates = [d.context.downlink_bps for d in self if d.context is not None]
        return min((rate for rate in rates if rate is not None), default=None)

    def open_round(self, selected: Iterable[str], round_id: int) -> None:
        """Record that devices begin an exchange."""
        for name in selected:
            self._devices[name].busy_round = round_id
            self._devices[name].is_draining = False

    def release(self, name: str, *, has_trained: bool, is_draining: bool) -> None:
        """Record that a device's exchange ended before its round."""
        device = self._devices[name]
        device.trained_last = has_trained
        device.is_draining = is_draining
        device.busy_round = device.busy_round if is_draining else None

    def drain(self, names: Iterable[str], round_id: int) -> None:
        """Record that devices may still work on a loss query that has ended."""
        for name in names:
            self._devices[name].busy_round, self._devices[name].is_draining = round_id, True

    def close_round(
        self,
        selected: Iterable[str],
        trained: Iterable[str],
        draining: Iterable[str],
        over: Iterable[str] | None = None,
    ) -> None:
        """Record the end of a round; all arguments are names of devices.

        Args:
            selected: Selected in it.
            trained: Completed local training.
            draining: May still be at work although their exchange is over.
            over: Their exchange ended in it, even if dispatched earlier; None is `selected`.
        """
        cohort, done, late = set(selected), set(trained), set(draining)
        ended = cohort if over is None else set(over)
        known = self._up_to_date()
        before = np.flatnonzero(known.selected_last[: len(self)] | known.trained_last[: len(self)])
        names = {self._rows[row].name for row in before.tolist()}
        for device in (self._devices[name] for name in names | cohort | done | ended):
            device.selected_last = device.name in cohort
            device.trained_last = device.name in done
            if device.name in ended:
                device.is_draining = device.name in late
                device.busy_round = device.busy_round if device.is_draining else None


def transfer_times(down_bits: float | Floats, up_bits: float | Floats, rates_bps: Floats) -> Floats:
    """Return M_down/B_down and M_up/B_up of each device, seconds, shape (N, 2).

    Where one of the two rates is unknown, both times are the fleet's median, or 0 if no device has
    measured both.

    Args:
        down_bits: Size of the encoded model, bits, for each device (N,) or for all.
        up_bits: Size of an update, likewise.
        rates_bps: Measured rates down and up, bit/s, shape (N, 2); NaN is unknown.
    """
    down_s, up_s = down_bits / rates_bps[:, 0], up_bits / rates_bps[:, 1]
    is_known: Bools = np.isfinite(down_s) & np.isfinite(up_s)
    transfer_s: Floats = np.stack([down_s, up_s], axis=1)
    if not is_known.all():
        known = transfer_s[is_known]
        fallback = np.median(known, axis=0) if known.size else np.zeros(2)
        transfer_s = np.where(is_known[:, None], transfer_s, fallback)
    return transfer_s


def clamped_mu(device: Device) -> float:
    """Return the CPU share mu of a device in cores, clamped; 1 before its first context."""
    if device.context is None:
        return 1.0
    return min(max(device.context.mu_cores, MU_BOUNDS[0]), MU_BOUNDS[1])


def clamped_values(device: Device) -> dict[str, str]:
    """Return a text for each reported value out of bounds, by name: reported and used value."""
    context, clamped = device.context, dict[str, str]()
    if context is None:
        return clamped
    low, high = MU_BOUNDS
    if not low <= context.mu_cores <= high:
        clamped["mu"] = f"{context.mu_cores:g} cores, counts as {clamped_mu(device):g}"
    for name, rate in (("downlink", context.downlink_bps), ("uplink", context.uplink_bps)):
        slowest, fastest = LINK_BOUNDS_BPS
        if rate is not None and not slowest <= rate <= fastest:
            used = min(max(rate, slowest), fastest)
            clamped[name] = f"{rate:g} bit/s, counts as {used:g}"
    if context.is_ready and context.n_k > device.n_registered > 0:
        clamped["n_k"] = f"{context.n_k} examples, counts as {device.n_registered}"
    return clamped


def bounded_n_k(device: Device) -> int:
    """Return n_k of a device: the last reported number, at most that of its shard or hello.

    A device that is not ready has not received the shard of this run: its report is of an earlier
    run, or 0, and the number of the shard counts.
    """
    context, known = device.context, device.n_registered
    if context is None or (not context.is_ready and known):
        return known
    return max(0, min(context.n_k, known) if known else context.n_k)


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
"""Time to come back after a last will, which may be only a short loss of the link."""

SILENT_S = 15.0
"""A device that has sent no packet for this long is lost. Contexts are sent at 1 Hz but wait behind
a window of chunks on a slow link (4 x 32 KB at 100 kbit/s is 10 s)."""

CLUSTER_SILENT_S = 30.0
"""The same at a cluster of brokers. A device whose node was lost is silent until another node
accepts it, which takes seconds (docs/brokers.md). A node that lives publishes the last will of a
silent device after 1.5 x `KEEPALIVE_S`; with `OFF_GRACE_S` that is 27.5 s."""


def reason_lost(
    device: Device, link_up_since: float, now: float, silent_s: float = SILENT_S
) -> str | None:
    """Return why a device with an open exchange is lost; None if it is not.

    Args:
        device: The device.
        link_up_since: When the coordinator's link was last restored; silence before does not count.
        now: The current instant.
        silent_s: How long a device may be silent.
    """
    off_since = device.off_since
    if off_since is not None and now - max(off_since, link_up_since) > OFF_GRACE_S:
        return f"the device left and did not come back within {OFF_GRACE_S:g} s"
    if now - max(device.last_packet_at, link_up_since) > silent_s:
        return f"no packet from the device for {silent_s:g} s"
    return None
