"""Which faults happen when: a pure function of the seed.

A schedule is a sequence of steps. A step is a wait, then one fault, or two that overlap. Each kind
of fault is drawn once before any is drawn again, so that a short schedule has all of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

Setup: TypeAlias = Literal["process", "namespace", "container", "separate"]
"""The backend of an emulated fleet; `separate`: agents that joined a coordinator by themselves."""

SETUPS: tuple[Setup, ...] = ("process", "namespace", "container", "separate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault."""

    name: str
    ends_run: bool = False
    """The run ends, as expected, and is resumed."""
    may_end_run: bool = False
    """The run may end, and is resumed then."""
    lasts: bool = False
    """It has a duration; otherwise it is an instant."""
    of_device: bool = False
    setups: tuple[Setup, ...] = SETUPS
    """Where it can happen."""


EMULATED: tuple[Setup, ...] = ("process", "namespace", "container")

KINDS: tuple[Kind, ...] = (
    Kind(name="coordinator killed", ends_run=True),
    Kind(name="coordinator terminated", ends_run=True),
    Kind(name="coordinator stopped", lasts=True),
    Kind(name="fork server killed", ends_run=True, setups=("process", "namespace")),
    Kind(name="link helper killed", ends_run=True, setups=EMULATED),
    Kind(name="broker killed"),
    Kind(name="broker restarted"),
    Kind(name="broker stopped", lasts=True),
    Kind(name="agent killed", lasts=True, of_device=True),
    Kind(name="agent stopped", lasts=True, of_device=True),
    Kind(name="link cut", lasts=True, of_device=True, setups=EMULATED),
    Kind(name="coverage hole", lasts=True, of_device=True, setups=EMULATED),
    Kind(name="clock jump", ends_run=True),
    Kind(name="disk full", lasts=True, may_end_run=True),
    Kind(name="corrupt chunks", lasts=True),
    Kind(name="hostile device", lasts=True),
)
"""`link cut` closes the connections of a device, `coverage hole` holds its bytes back."""

WAIT_S = (0.1, 3.0)
"""Range of the wait before a step: a round takes about one second."""
DURATION_S = (0.3, 4.0)
"""Range of the duration of a fault that lasts."""
OVERLAP_S = 1.0
"""Longest time from the first to the second fault of a step."""
PAIRS = 0.25
"""Share of steps with two faults."""
DRAWS_PER_LIFE = 3
"""How often a long life has each kind of fault that does not end it."""
JUMP_S = 5 * 86_400
"""Largest jump of a clock forwards; backwards it stays above 0, as after a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault."""

    kind: Kind
    delay_s: float
    """From the start of the step."""
    duration_s: float
    """0 for an instant."""
    device: int | None
    """Number of the device, from 0; None for other faults."""
    seed: int
    """For random choices while it lasts."""

    @property
    def end_s(self) -> float:
        """End of the fault, from the start of the step."""
        return self.delay_s + self.duration_s

    @property
    def line(self) -> str:
        """One line for people."""
        device = "" if self.device is None else f" of device {self.device}"
        lasts = f" for {self.duration_s:.2f} s" if self.kind.lasts else ""
        return f"{self.kind.name}{device} after {self.delay_s:.2f} s{lasts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One or two faults."""

    number: int
    """Counted from 1."""
    wait_s: float
    """Before the step, after the recovery from the step before."""
    faults: tuple[Fault, ...]
    """Ordered by their delay; one that ends the run is the last."""

    @property
    def ends_run(self) -> bool:
        """Whether the run ends, and is resumed."""
        return self.faults[-1].kind.ends_run

    @property
    def may_end_run(self) -> bool:
        """Whether the run ends, or may end."""
        return any(fault.kind.ends_run or fault.kind.may_end_run for fault in self.faults)

    @property
    def line(self) -> str:
        """One line for people."""
        faults = "; ".join(fault.line for fault in self.faults)
        return f"step {self.number}: {self.wait_s:.2f} s, then {faults}"


def kinds_of(setup: Setup) -> list[Kind]:
    """Return the kinds of faults that a setup can have."""
    return [kind for kind in KINDS if setup in kind.setups]


def steps(
    seed: int, kinds: Sequence[Kind], devices: int, *, has_long_lives: bool = False
) -> Iterator[Step]:
    """Yield the steps of a schedule, without end; equal arguments give equal steps.

    Args:
        seed: Of all random choices.
        kinds: Kinds to draw from, at least one.
        devices: Number of devices.
        has_long_lives: Draw the kinds that end the run, or may, after all others, and each of the
            others `DRAWS_PER_LIFE` times, so that few lives are short, and the others have all the
            faults that a life can have.
    """
    rng = np.random.default_rng(seed)
    stack: list[Kind] = []
    drawable = list(kinds)
    if has_long_lives:
        others = [kind for kind in kinds if not (kind.ends_run or kind.may_end_run)]
        drawable += others * (DRAWS_PER_LIFE - 1)
    number = 0
    while True:
        number += 1
        wait_s = float(rng.uniform(*WAIT_S))
        count = 2 if rng.random() < PAIRS and len(kinds) > 1 else 1
        drawn: list[Kind] = []
        for _ in range(count):
            if not stack:
                stack = [drawable[i] for i in rng.permutation(len(drawable))]
                if has_long_lives:  # the last one is drawn first
                    stack.sort(key=lambda kind: not (kind.ends_run or kind.may_end_run))
            if not (drawn and drawn[0].ends_run and stack[-1].ends_run):
                drawn.append(stack.pop())
        faults = [_fault(rng, kind, devices, is_first=not i) for i, kind in enumerate(drawn)]
        faults.sort(key=lambda fault: (fault.kind.ends_run, fault.delay_s))
        yield Step(number=number, wait_s=wait_s, faults=tuple(faults))


def _fault(rng: np.random.Generator, kind: Kind, devices: int, *, is_first: bool) -> Fault:
    delay_s, duration_s = float(rng.uniform(0.0, OVERLAP_S)), float(rng.uniform(*DURATION_S))
    device, seed = int(rng.integers(devices)), int(rng.integers(2**31))
    return Fault(
        kind=kind,
        delay_s=0.0 if is_first else delay_s,
        duration_s=duration_s if kind.lasts else 0.0,
        device=device if kind.of_device else None,
        seed=seed,
    )
