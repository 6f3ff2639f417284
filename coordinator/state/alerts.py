"""Alerts: conditions of a run that last and need a person, such as a full disk. Pure.

    broker lost   the coordinator has no link to the broker
    disk low      the disk is full before the last round
    stalled       the run waits for devices (`state.waits`)
    no device     no device is available or at work
    trouble       a device cannot join or prepare, or has a wrong clock
    diverged      the loss of the global model is far above its first value, or not finite
    infeasible    the guaranteed selection rate cannot hold for this fleet
    other scale   own data of a device have another scale than the data set of the run
    host busy     this machine delays the exchanges that it measures

Each rule returns the text of its alert while its condition holds. `Alerts` turns that into begins
and ends: a condition must hold for some time first, and be over for some time.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.selection.feasibility import highest_rate, shortage
from fairbed.coordinator.state.waits import some
from fairbed.wire.scale import Scale, other_scale

AlertKind: TypeAlias = Literal[
    "broker lost",
    "disk low",
    "stalled",
    "no device",
    "trouble",
    "diverged",
    "infeasible",
    "other scale",
    "host busy",
]
ALERT_KINDS: tuple[AlertKind, ...] = get_args(AlertKind)
"""The most important first."""

HOLD_S: Mapping[AlertKind, float] = {"broker lost": 2.0, "no device": 5.0}
"""Time for which a condition holds before its alert begins; 0 for the others. Agents reconnect, and
devices rejoin, within a second or two."""

CLEAR_S: Mapping[AlertKind, float] = {"broker lost": 2.0, "no device": 2.0}
"""Time for which a condition is over before its alert ends; 0 for the others, whose rules
are laxer for an alert that stands."""

TROUBLES_SHOWN = 3
"""Devices whose trouble a text has."""

WINDOW_ROUNDS = 50
"""Newest rounds from which the availability of a device is estimated."""

Z_95 = 1.96
"""Quantile of the normal distribution for a two-sided confidence of 95 %."""

HOST_WINDOW, HOST_BEGIN, HOST_END = 20, 5, 1
"""Newest exchanges that count; delayed ones among them from which `host busy` begins, and down to
which it ends: a single one is no reason to act."""

DIVERGED, RECOVERED = 10.0, 5.0
"""Multiples of the first evaluated loss above which the global model has diverged, and up to which
it has recovered."""

GUESS_LOSS = 12.0
"""Loss of a guess among e^12, 160,000 classes, nats: a first loss of a classifier above it counts
as this one, because the first round may diverge, too."""

MIN_FREE_BYTES = 250_000_000
"""Free space below which any run is at risk: a write-ahead log, logs of devices, the system."""

MIN_DISK_ROUNDS = 5
"""Rounds after which the bytes per round are known: the first ones make files."""

DISK_MARGIN = 1.2
"""Factor of free space above the begin of `disk low` from which it is over."""


@dataclass(frozen=True, slots=True)
class AlertChange:
    """An alert that begins, continues with another text, or ends."""

    kind: AlertKind
    text: str
    begin_s: float
    """On the run's clock."""
    end_s: float | None = None
    """On the run's clock; None while it lasts."""
    is_new: bool = False
    """It begins with this change."""
    is_long: bool = False
    """It has lasted for `notify.stall_alert_s`."""

    @property
    def is_over(self) -> bool:
        """The alert ends with this change."""
        return self.end_s is not None

    @property
    def line(self) -> str:
        """One line for people."""
        if self.end_s is None:
            return f"{self.kind}: {self.text}"
        return f"{self.kind}: over after {self.end_s - self.begin_s:.0f} s"


@dataclass(slots=True)
class _Standing:
    text: str
    begin_s: float
    over_since_s: float | None = None


class Alerts:
    """The alerts of a run, from the conditions that rules find."""

    def __init__(self) -> None:
        self._standing: dict[AlertKind, _Standing] = {}
        self._held_since_s: dict[AlertKind, float] = {}
        """First instant of each condition that has no alert yet."""

    def stands(self, kind: AlertKind) -> bool:
        """Return whether an alert has begun and is not over."""
        return kind in self._standing

    def update(self, found: Mapping[AlertKind, str | None], at_s: float) -> list[AlertChange]:
        """Return the alerts that change, the most important first.

        Args:
            found: Text of each condition that was examined; None if it does not hold. Kinds that
                are missing were not examined and do not change.
            at_s: Instant of the examination on the run's clock, which never decreases.
        """
        changes = []
        for kind in ALERT_KINDS:
            if kind in found:
                text = found[kind]
                change = self._end(kind, at_s) if text is None else self._hold(kind, text, at_s)
                if change is not None:
                    changes.append(change)
        return changes

    def finish(self) -> list[AlertChange]:
        """End the alerts whose condition is over, without the wait; the run ends."""
        return [
            AlertChange(kind, standing.text, standing.begin_s, standing.over_since_s)
            for kind, standing in self._standing.items()
            if standing.over_since_s is not None
        ]

    def _hold(self, kind: AlertKind, text: str, at_s: float) -> AlertChange | None:
        standing = self._standing.get(kind)
        if standing is None:
            since_s = self._held_since_s.setdefault(kind, at_s)
            if at_s - since_s < HOLD_S.get(kind, 0.0):
                return None
            del self._held_since_s[kind]
            self._standing[kind] = _Standing(text, since_s)
            return AlertChange(kind, text, since_s, is_new=True)
        standing.over_since_s = None
        if text == standing.text:
            return None
        standing.text = text
        return AlertChange(kind, text, standing.begin_s)

    def _end(self, kind: AlertKind, at_s: float) -> AlertChange | None:
        self._held_since_s.pop(kind, None)
        standing = self._standing.get(kind)
        if standing is None:
            return None
        if standing.over_since_s is None:
            standing.over_since_s = at_s
        if at_s - standing.over_since_s < CLEAR_S.get(kind, 0.0):
            return None
        del self._standing[kind]
        return AlertChange(kind, standing.text, standing.begin_s, standing.over_since_s)


def broker_lost(reason: str) -> str:
    """Return the text of a lost link."""
    return f"the link to the broker is down ({reason}); rounds wait until it is back"


def no_device(statuses: Sequence[str], present: int) -> str | None:
    """Return the text if no device is available or at work.

    Args:
        statuses: Status of each device in one word.
        present: Number of devices that are available or at work.
    """
    if present:
        return None
    counts = {status: statuses.count(status) for status in sorted(set(statuses))}
    devices = ", ".join(f"{count} {status}" for status, count in counts.items()) or "none joined"
    return f"no device is available ({devices}); rounds wait for one; see their logs"


def troubles(devices: Iterable[tuple[str, str]]) -> str | None:
    """Return the text if devices cannot join or prepare, or have a wrong clock.

    Args:
        devices: Name and trouble of each.
    """
    found = [f"{name}: {text}" for name, text in devices]
    if not found:
        return None
    more = len(found) - TROUBLES_SHOWN
    return "; ".join(found[:TROUBLES_SHOWN]) + (f"; and {more} more" if more > 0 else "")


class AvailabilityWindow:
    """Share of the newest rounds in which each device was available, as the highest likely one."""

    def __init__(self) -> None:
        self._rounds: deque[Bools] = deque(maxlen=WINDOW_ROUNDS)

    def add(self, is_present: Bools) -> None:
        """Count one round: whether each device was available or at work, shape (N,)."""
        self._rounds.append(is_present.copy())

    def upper_bounds(self, devices: int) -> Floats:
        """Return the upper end of the 95 % Wilson interval of each availability, shape (N,).

            p_up = (p + z^2 / 2n + z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

        1 for a device without a round: an alert needs evidence. Rounds count from the first one
        in which a device was known.

        Args:
            devices: N; devices are never fewer than before.

        Source:
            Wilson, JASA 22(158), 1927.
        """
        n: Ints = np.zeros(devices, dtype=np.int64)
        hits: Ints = np.zeros(devices, dtype=np.int64)
        for flags in self._rounds:
            n[: len(flags)] += 1
            hits[: len(flags)] += flags
        seen = np.maximum(n, 1)
        p = hits / seen
        z2 = Z_95**2
        spread = Z_95 * np.sqrt(p * (1.0 - p) / seen + z2 / (4.0 * seen**2))
        upper = (p + z2 / (2.0 * seen) + spread) / (1.0 + z2 / seen)
        return np.where(n == 0, 1.0, np.clip(upper, 0.0, 1.0))


def infeasible(
    names: Sequence[str], availability: Floats, per_round: int, beta: float
) -> str | None:
    """Return the text if not every device can have the guaranteed rate.

    Args:
        names: Names of the devices that may be selected.
        availability: Highest likely availability of each, shape (N,).
        per_round: Devices selected per round.
        beta: Guaranteed rate.
    """
    lacks = shortage(availability, per_round, beta) if names else None
    if lacks is None:
        return None
    highest = f"{highest_rate(availability, per_round):.3f}"
    remedy = f"set beta to at most {highest}, or raise per_round (fairbed command RUN set ...)"
    rarest = [names[row] for row in np.argsort(availability, kind="stable").tolist()]
    rare = [name for name, p in zip(rarest, np.sort(availability), strict=True) if p < beta]
    if rare:
        remedy = f"bring back {some(rare)}, exclude what stays away, or {remedy}"
    return f"selection.beta {beta:g} cannot be guaranteed: {lacks}; {remedy}"


@dataclass(frozen=True, slots=True)
class Divergence:
    """A global model whose loss has grown far above its first value, or is not finite."""

    round: int
    """First evaluation that shows it."""
    worst_round: int
    """Evaluation with the largest loss."""
    worst_loss: float | None
    """Nats; None: not finite."""
    first_round: int
    """First evaluation of the run."""
    first_loss: float | None
    """Nats; None: not finite."""
    reference: float
    """What the loss must exceed `DIVERGED` times, nats: the first one, or `GUESS_LOSS` for a
    classifier whose first one is larger; infinite if the first one is not finite."""
    is_over: bool
    """A later evaluation had a loss of at most `RECOVERED` times the reference."""

    @property
    def text(self) -> str:
        """What holds and what to do, in one line."""
        highest, reference = "is not finite", ""
        if self.worst_loss is not None:
            ratio = self.worst_loss / self.reference
            highest = f"is {self.worst_loss:.4g} ({ratio:.3g} times)"
        if self.first_loss is not None and self.reference == self.first_loss:
            reference = f"its first value, {self.first_loss:.4g} after round {self.first_round}"
        elif self.worst_loss is not None:
            reference = f"the {self.reference:g} nats of a guess"
        text = f"the loss of the global model {highest} after round {self.worst_round}"
        if reference:
            text += f"; it was above {DIVERGED:g} times {reference}, from round {self.round} on"
        over = ", and has recovered" if self.is_over else ""
        return (
            f"{text}{over}; if x has values far from 1, scale it; otherwise lower "
            "training.learning_rate or the server's, or set training.clip_norm"
        )


class LossGrowth:
    """The loss of the global model against its first value, over the evaluations of a run.

    Args:
        task: Kind of the task: only a classifier has a loss that is too large from the first
            evaluation on.
        earlier: Round and loss of the evaluations so far, as `add` takes them, in their order.
    """

    def __init__(self, task: str, earlier: Iterable[tuple[int, float | None]] = ()) -> None:
        self._largest_first = math.inf if task == "regression" else GUESS_LOSS
        self._first: tuple[int, float | None] | None = None
        self.divergence: Divergence | None = None
        """The last divergence, which may be over; None without any."""
        for round_id, loss in earlier:
            self.add(round_id, loss)

    def add(self, round_id: int, loss: float | None) -> None:
        """Count one more evaluation.

        Args:
            round_id: The round after which it was.
            loss: Mean loss over devices, nats; None if it is not finite.
        """
        found = self.divergence
        if self._first is None:
            self._first = round_id, loss
        first_round, first = self._first
        reference = min(_size(first), self._largest_first)
        if found is not None and not found.is_over:
            is_worse = _size(loss) >= _size(found.worst_loss)
            self.divergence = replace(
                found,
                worst_round=round_id if is_worse else found.worst_round,
                worst_loss=loss if is_worse else found.worst_loss,
                is_over=loss is not None and loss <= RECOVERED * reference,
            )
        elif loss is None or (reference and loss > DIVERGED * reference):
            self.divergence = Divergence(
                round=round_id,
                worst_round=round_id,
                worst_loss=loss,
                first_round=first_round,
                first_loss=first,
                reference=reference,
                is_over=False,
            )

    @property
    def text(self) -> str | None:
        """Text of the alert while the model has diverged."""
        found = self.divergence
        return None if found is None or found.is_over else found.text


def _size(loss: float | None) -> float:
    return math.inf if loss is None else loss


def divergence(task: str, evaluations: Iterable[tuple[int, float | None]]) -> Divergence | None:
    """Return when and how far the global model of a run diverged; None if it did not.

    The arguments are those of `LossGrowth`, with all evaluations of the run.
    """
    return LossGrowth(task, evaluations).divergence


def other_scales(devices: Iterable[tuple[str, Scale]], task: Scale | None) -> str | None:
    """Return the text if own data of a device are far from the data set of the run.

    Args:
        devices: Name and scale of each device with own data.
        task: Of the data set of the run; None for tokens.
    """
    if task is None:
        return None
    found = [(name, own, cause) for name, own in devices if (cause := other_scale(own, task))]
    if not found:
        return None
    name, own, cause = found[0]
    others = f"; likewise {some([name for name, _, _ in found[1:]])}" if found[1:] else ""
    return f"{name}: {cause} (x is {own.text}; that of the run {task.text}){others}"


class HostLoad:
    """Exchanges that this machine delayed, among the newest ones."""

    def __init__(self) -> None:
        self._newest: deque[tuple[str, bool]] = deque(maxlen=HOST_WINDOW)

    def add(self, device: str, is_delayed: bool) -> None:
        """Count one finished exchange."""
        self._newest.append((device, is_delayed))

    def text(self, *, is_standing: bool, is_emulated: bool = True) -> str | None:
        """Return the text if too many exchanges were delayed.

        Args:
            is_standing: The alert has begun: it ends at fewer than it begins with.
            is_emulated: A device of the run is emulated here, so that dilation helps it.
        """
        delayed = [device for device, is_delayed in self._newest if is_delayed]
        if len(delayed) < HOST_BEGIN and not (is_standing and len(delayed) > HOST_END):
            return None
        remedy = (
            "stop other programs, select fewer devices per round, or raise emulation.dilation"
            if is_emulated
            else "stop other programs on the machine of the coordinator, or run it on a faster one"
        )
        most = sorted(set(delayed), key=lambda name: (-delayed.count(name), name))
        return (
            f"this machine delayed {len(delayed)} of the newest {len(self._newest)} exchanges, so "
            f"their times do not count; {remedy}; delayed most often: {some(most)}"
        )


def disk_low(
    free_bytes: int, bytes_per_round: float | None, rounds_left: int, *, is_standing: bool
) -> str | None:
    """Return the text if the disk is nearly full, or full before the last round.

    Args:
        free_bytes: Free space of the disk of the run.
        bytes_per_round: Bytes that a round adds to the folder of the run; None: not known yet.
        rounds_left: Rounds to come.
        is_standing: The alert has begun: it ends with `DISK_MARGIN` times the space.
    """
    needed = MIN_FREE_BYTES + (bytes_per_round or 0.0) * rounds_left
    if free_bytes >= needed * (DISK_MARGIN if is_standing else 1.0):
        return None
    free = f"{_gigabytes(free_bytes)} are free on the disk of the run"
    remedy = "free some space, or stop the run after this round and continue it elsewhere"
    if not bytes_per_round or free_bytes < MIN_FREE_BYTES:
        return f"{free}, and a run needs {_gigabytes(MIN_FREE_BYTES)} of reserve; {remedy}"
    until_full = int((free_bytes - MIN_FREE_BYTES) / bytes_per_round)
    return (
        f"{free}, enough for about {until_full} of {rounds_left} rounds at "
        f"{_gigabytes(bytes_per_round)} each; {remedy}"
    )


def _gigabytes(value: float) -> str:
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"
