"""What a live run waits for: which devices, why each, and since when. Pure.

    fleet    round 1, or the first round of a resumed run, needs more devices
    round    the next round needs more devices in contact (round.min_devices)
    updates  every open exchange of the round is that of a device out of contact
    losses   devices compute the losses that the selection needs
    tests    devices test the model on their own data
    scores   devices score their personal models

Each wait has a limit of its own, except that of a round: it lasts until devices are back, an
operator acts, or `round.give_up_after_s` is over.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fairbed.coordinator.state.registry import Device, Registry

WaitKind: TypeAlias = Literal["fleet", "round", "updates", "losses", "tests", "scores"]

SHOWN_AFTER_S = 2.0
"""Age of a wait from which STATUS names it; a usual wait for losses or scores is shorter."""

ALERT_AFTER_S = {"round": 2.0, "updates": 3.0, "fleet": 30.0}
"""Age of a wait from which it is an alert, seconds. A device counts as silent after 3 s; one that
reconnects is back within a second or two. Devices that start take a while to join."""

ALERT_OTHERWISE_S = 10.0

NAMED = 5
"""Devices that a text names, with the reason of each."""

NAMES_SHOWN = 5
"""Devices that a text names alone."""

_NEEDS = {
    "updates": ("updates of devices out of contact", "round.deadline_s"),
    "losses": ("losses before its selection", "selection.loss_query_timeout_s"),
    "tests": ("tests on the devices' own data", "evaluation.timeout_s"),
    "scores": ("scores of personal models", "round.deadline_s"),
}
"""What a round waits for, and the key of the longest such wait."""


@dataclass(frozen=True, slots=True)
class MissingDevice:
    """A device that a run waits for."""

    name: str
    why: str
    """Its state in a few words."""
    since: str
    """Time of day from which it has this state."""

    def __str__(self) -> str:
        return f"{self.name} ({self.why} since {self.since})"


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of a live run, and the devices that can end it."""

    kind: WaitKind
    round: int
    missing: tuple[MissingDevice, ...]
    ready: int = 0
    """Devices that are in contact, of a wait for a number of them."""
    wanted: int = 0
    """That number."""

    @property
    def status(self) -> str:
        """What the run waits for, in a few words."""
        if not self.missing:
            return f"{self.wanted - self.ready} more devices"
        names = [one.name for one in self.missing]
        return names[0] if len(names) == 1 else f"{names[0]} +{len(names) - 1}"

    @property
    def text(self) -> str:
        """What the run waits for, why, and what continues it, in one line."""
        named = [str(one) for one in self.missing[:NAMED]]
        more = len(self.missing) - len(named)
        names = ", ".join(named) + (f" and {more} more" if more else "")
        exclude = ", ".join(f"exclude {one.name}" for one in self.missing[:NAMED])
        if self.kind not in ("round", "fleet"):
            what, limit = _NEEDS[self.kind]
            text = f"missing {names}: round {self.round} waits for {what}"
            return f"{text}, at most {limit}; to go on at once, {exclude}"
        lacking = self.wanted - self.ready
        which = "" if lacking >= len(self.missing) else f"{lacking} of "
        state = "in contact" if self.kind == "round" else "ready"
        devices = f"{self.wanted} device{'' if self.wanted == 1 else 's'}"
        text = f"round {self.round} needs {devices} {state}, got {self.ready}"
        text = f"missing {which}{names}: {text}" if names else text
        if not self.ready:
            return f"{text}; see their logs"
        keys = f"set min_devices {self.ready}"
        if self.kind == "round" and lacking >= len(self.missing) > 0:
            keys = f"{exclude}, or {keys}"
        return f"{text}; {keys}"


@dataclass(frozen=True, slots=True)
class _Open:
    kind: WaitKind
    round: int
    names: Callable[[], Collection[str]]
    began: float


class Waits:
    """The wait that the training loop is in, and how many devices the next round needs.

    Args:
        now: Monotonic clock, seconds.
        clock: Returns the time of day of an instant of `now`.
    """

    def __init__(self, now: Callable[[], float], clock: Callable[[float], str]) -> None:
        self.min_ready = self.min_linked = 1
        """Devices that must be ready for round 1, and in contact when a later round begins."""
        self.next_round = 1
        self._now, self._clock = now, clock
        self._open: _Open | None = None
        self._since: dict[str, tuple[str, str]] = {}
        """Why each missing device is missing, and since which time of day."""
        self._kind: WaitKind | None = None
        self._began = 0.0
        self._is_ending = False
        """The exchanges that it waits for end by themselves, within seconds."""

    @contextmanager
    def waiting(
        self, kind: WaitKind, round_id: int, names: Callable[[], Collection[str]]
    ) -> Iterator[None]:
        """Wait for devices inside.

        Args:
            kind: What for.
            round_id: The round.
            names: Returns the devices that are still waited for.
        """
        before, self._open = self._open, _Open(kind, round_id, names, self._now())
        try:
            yield
        finally:
            self._open = before

    def find(
        self,
        registry: Registry,
        open_devices: Sequence[str],
        now: float,
        *,
        is_training: bool = True,
    ) -> Wait | None:
        """Return the wait of this instant; None if the run does not wait, or not for devices.

        Args:
            registry: The devices.
            open_devices: Devices with an open exchange.
            now: On the clock of the run.
            is_training: The devices of round 1 were ready once, so that rounds need devices.
        """
        wait = self._find(registry, open_devices, now) if is_training or self._open else None
        kind = None if wait is None else wait.kind
        if kind != self._kind:
            self._kind, self._began = kind, now
        names = () if wait is None else [one.name for one in wait.missing]
        self._since = {name: self._since[name] for name in names}
        return wait

    def age_s(self, now: float) -> float:
        """Return for how long the run has waited so, by the last call of `find`."""
        return 0.0 if self._kind is None else now - self._began

    def is_alert(self, now: float) -> bool:
        """Return whether the wait of the last call of `find` needs a person."""
        if self._kind is None or self._is_ending:
            return False
        return self.age_s(now) >= ALERT_AFTER_S.get(self._kind, ALERT_OTHERWISE_S)

    def still(self, registry: Registry, now: float) -> str:
        """Return what the next round waits for, as the end of an answer; empty if nothing."""
        wait = self._of_round(registry, now)
        if wait is None:
            return ""
        names = ", ".join(f"{one.name} ({one.why})" for one in wait.missing[:NAMED])
        return f"; round {wait.round} needs {wait.wanted} devices in contact, got {wait.ready}" + (
            f"; missing: {names}" if names else ""
        )

    def _find(self, registry: Registry, open_devices: Sequence[str], now: float) -> Wait | None:
        opened, self._is_ending = self._open, False
        if opened is not None and opened.kind == "fleet":
            is_ready = registry.available(now)
            ready, wanted = int(is_ready.sum()), registry.attainable(self.min_ready)
            if ready >= wanted:
                return None
            unready = [
                x for x, ok in zip(registry, is_ready, strict=True) if not ok and not x.is_out
            ]
            return Wait("fleet", opened.round, self._named(unready, now), ready, wanted)
        if opened is not None:
            names = sorted(opened.names())
            devices = [x for name in names if (x := registry.get(name)) is not None]
            if not devices:
                return None
            return Wait(opened.kind, opened.round, self._named(devices, now))
        if (wait := self._of_round(registry, now)) is not None:
            return wait
        lost = [x for name in open_devices if not (x := registry[name]).is_linked(now)]
        if not lost or len(lost) < len(open_devices):
            return None
        self._is_ending = all(x.off_since is not None for x in lost)  # `reason_lost`
        return Wait("updates", self.next_round - 1, self._named(lost, now))

    def _of_round(self, registry: Registry, now: float) -> Wait | None:
        linked, wanted = registry.linked(now), registry.attainable(self.min_linked)
        if linked >= wanted:
            return None
        missing = self._named(registry.unlinked(now), now)
        return Wait("round", self.next_round, missing, linked, wanted)

    def _named(self, devices: Sequence[Device], now: float) -> tuple[MissingDevice, ...]:
        return tuple(self._missing(device, now) for device in devices)

    def _missing(self, device: Device, now: float) -> MissingDevice:
        why = device.reason(now)
        before, since = self._since.get(device.name, ("", ""))
        if why != before:
            began = device.absent_since(now)
            since = self._clock(now if began is None else began)
            self._since[device.name] = why, since
        return MissingDevice(device.name, why, since)


def some(names: Collection[str]) -> str:
    """Return the first names on one line, and the number of the others."""
    shown = list(names)[:NAMES_SHOWN]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
