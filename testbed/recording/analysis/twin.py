"""A device of a run beside its twin: the same exchanges under the conditions of a profile. Pure.

    difference = (median of the twin - median of the device) / median of the device

A phase is off if the difference is more than a tenth of the phase and a fiftieth of the exchange.
Then each number that determines the phase takes, one after the other, the value that the run
measured. The number with which the twin comes nearest to the device is the one that is off,
provided that the difference falls to a half or less. If no measured value does that, the first
number is taken that can make the twin as slow as the device, with the constant value that does so.

If several phases would correct one number to different values, one value is fitted to all of them:
the mean of the logarithms, weighted by the times of the phases. If a phase stays off with it, no
value is named but the conflict.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.profiles import Profile
from fairbed.testbed.recording.analysis.compose import COUNTS
from fairbed.testbed.recording.analysis.findings import Finding, Findings
from fairbed.wire.messages import DEVICE_PHASES

PhaseTimes: TypeAlias = Mapping[str, Floats]
"""Durations of the phases of K exchanges by column name, seconds, each of shape (K,)."""

Predict: TypeAlias = Callable[[Profile], PhaseTimes]
"""Returns the phases of the same K exchanges under a profile."""

PHASES = ("signal_s", *(f"{phase}_s" for phase in DEVICE_PHASES), "upload_s")

_PROCESSOR = ("core_speed", "background_load", "clock_ratio", "engine_threads", "cores")
KEYS: Mapping[str, Sequence[str]] = {
    "signal_s": ("link.delay_s",),
    "download_s": ("link.down_bps", "link.delay_s"),
    "load_s": ("cold_start_s", "storage_read_bytes_per_s", *_PROCESSOR),
    "upload_s": ("link.up_bps", "link.delay_s"),
}
"""Numbers of a profile that determine a phase; for all other phases those of the processor."""

OFF_RATIO, OFF_EXCHANGE_RATIO = 0.1, 0.02
"""A smaller difference is no error of a profile: relative to the phase, and to the exchange."""

LEAST_S = 1e-4
"""A phase that takes less time on both is left out, seconds."""

FIT_FACTOR, FIT_STEPS = 1e3, 30
"""A value that fits is searched up to this factor from that of the profile, by bisection."""

EXPLAINED_RATIO = 0.5
"""The difference that the right number leaves, at most, relative to that before."""


class PhaseTwin(Struct, frozen=True, kw_only=True):
    """One phase of a device and of its twin, the medians of their exchanges."""

    phase: str
    exchanges: int
    """Exchanges with this phase; for loading only those of a cold device."""
    device_s: float
    twin_s: float
    is_off: bool
    key: str | None = None
    """The number of the profile that is off, by key path; None if none can explain the phase."""
    value: float | None = None
    """That number; None if the profile lacks it."""
    fits: float | None = None
    """The value that the run measured, or with which the twin takes as long as the device."""
    twin_then_s: float | None = None
    """The phase of the twin with the value that fits."""
    reason: str = ""
    """The measurement of the value that fits, or the way in which it was found."""

    @property
    def difference(self) -> float:
        """Of the twin, relative to the device; 0 if neither takes time."""
        return (self.twin_s - self.device_s) / self.device_s if self.device_s > 0.0 else 0.0


def compare_phases(
    exchanges: Sequence[ExchangeRow], profile: Profile, findings: Findings, predict: Predict
) -> list[PhaseTwin]:
    """Return the phases that take time, in the order of an exchange.

    Args:
        exchanges: K valid exchanges of the device, at least one.
        profile: Profile of the twin.
        findings: Findings of the run about the device.
        predict: Returns the phases of these exchanges under a profile.
    """
    twin = predict(profile)
    masks: dict[str, Bools] = {}
    tau_s = float(np.median([x.tau_s or 0.0 for x in exchanges]))
    with_finding: dict[str, PhaseTimes] = {}
    rows = []
    for phase in PHASES:
        of_phase = np.array([_has_phase(x, phase) for x in exchanges])
        if not of_phase.any():
            continue
        masks[phase] = of_phase
        measured_s = np.array([getattr(x, phase) or 0.0 for x in exchanges])
        device_s, twin_s = _median(measured_s, of_phase), _median(twin[phase], of_phase)
        if max(device_s, twin_s) < LEAST_S:
            continue
        row = PhaseTwin(
            phase=phase,
            exchanges=int(of_phase.sum()),
            device_s=device_s,
            twin_s=twin_s,
            is_off=_is_off(twin_s, device_s, tau_s),
        )
        if row.is_off:
            for key in KEYS.get(phase, _PROCESSOR):
                if key not in findings.found or key in with_finding:
                    continue
                with suppress(msgspec.ValidationError):  # such as fewer cores than threads
                    with_finding[key] = predict(with_number(profile, key, findings.found[key]))
            then_s = {key: _median(times[phase], of_phase) for key, times in with_finding.items()}
            measured = _measured(row, profile, findings, then_s)

            def phase_s(changed: Profile, phase: str = phase, which: Bools = of_phase) -> float:
                return _median(predict(changed)[phase], which)

            row = _fitted(row, profile, findings, phase_s) if measured is None else measured
        rows.append(row)

    def phases_with(key: str, value: float, how: str) -> dict[str, float] | None:
        try:
            times = predict(with_number(profile, key, Finding(value, how)))
        except msgspec.ValidationError:
            return None
        return {phase: _median(times[phase], which) for phase, which in masks.items()}

    for key in [row.key for row in rows if row.key is not None]:
        same = [row for row in rows if row.key == key]
        if len({row.fits for row in same}) > 1:
            joint = {row.phase: row for row in _joint(key, same, tau_s, phases_with)}
            rows = [joint.get(row.phase, row) for row in rows]
    return rows


def _is_off(twin_s: float, device_s: float, tau_s: float) -> bool:
    error_s = abs(twin_s - device_s)
    return error_s > OFF_RATIO * device_s and error_s > OFF_EXCHANGE_RATIO * tau_s


def _joint(
    key: str,
    rows: Sequence[PhaseTwin],
    tau_s: float,
    then_s: Callable[[str, float, str], dict[str, float] | None],
) -> list[PhaseTwin]:
    """Return rows that correct one number differently with one value, or with the conflict.

    Args:
        key: The number.
        rows: The phases that it would correct.
        tau_s: Median exchange time, seconds.
        then_s: Returns the phases of the twin with a value of the number, seconds; None if the
            profile cannot have it.
    """
    fits = np.array([row.fits for row in rows], dtype=np.float64)
    weights = np.array([row.device_s for row in rows])
    names = ", ".join(row.phase.removesuffix("_s") for row in rows)
    value = float(np.exp(np.average(np.log(fits), weights=weights)))
    how = f"one value for {names}, whose own are {fits.min():g} to {fits.max():g}"
    found = then_s(key, value, how)
    if found is not None and not any(_is_off(found[x.phase], x.device_s, tau_s) for x in rows):
        return [
            msgspec.structs.replace(x, fits=value, twin_then_s=found[x.phase], reason=how)
            for x in rows
        ]
    wanted = ", ".join(f"{x.phase.removesuffix('_s')} fits with {x.fits:g}" for x in rows)
    was = "absent" if rows[0].value is None else f"{rows[0].value:g}"
    conflict = (
        f"{key} is {was}, and no one value fits: {wanted}; do not correct it, another number or "
        "the load of the device is off"
    )
    none = dict.fromkeys(("key", "value", "fits", "twin_then_s"))
    return [msgspec.structs.replace(x, reason=conflict, **none) for x in rows]


def _has_phase(x: ExchangeRow, phase: str) -> bool:
    return getattr(x, phase) is not None and (phase != "load_s" or x.was_cold is True)


def _median(times_s: Floats, which: Bools) -> float:
    return float(np.median(times_s[which]))


def _measured(
    row: PhaseTwin, profile: Profile, findings: Findings, then_s: Mapping[str, float]
) -> PhaseTwin | None:
    """Return the row with the measured number that explains it; None if none does.

    `then_s` holds the phase of the twin with one number replaced, by key.
    """
    known = [key for key in KEYS.get(row.phase, _PROCESSOR) if key in then_s]
    key = min(known, key=lambda key: abs(then_s[key] - row.device_s), default=None)
    limit_s = EXPLAINED_RATIO * abs(row.twin_s - row.device_s)
    if key is None or abs(then_s[key] - row.device_s) > limit_s:
        return None
    return msgspec.structs.replace(
        row,
        key=key,
        value=number_of(profile, key),
        fits=findings.found[key].value,
        twin_then_s=then_s[key],
        reason=findings.found[key].how,
    )


def _fitted(
    row: PhaseTwin, profile: Profile, findings: Findings, phase_s: Callable[[Profile], float]
) -> PhaseTwin:
    """Return the row with the first number that can make the twin as slow as the device."""
    for key in KEYS.get(row.phase, _PROCESSOR)[:2]:
        value = number_of(profile, key)
        fits, then_s = _bisected(profile, key, value or row.device_s, row.device_s, phase_s)
        if abs(then_s - row.device_s) > OFF_RATIO * row.device_s:
            continue
        why = findings.missing.get(key, "the value that the run measured does not explain it")
        return msgspec.structs.replace(
            row,
            key=key,
            value=value,
            fits=fits,
            twin_then_s=then_s,
            reason=f"found with the twin, as {why}",
        )
    return msgspec.structs.replace(row, reason="no number of the profile explains it")


def _bisected(
    profile: Profile, key: str, near: float, target_s: float, phase_s: Callable[[Profile], float]
) -> tuple[float, float]:
    """Return the value of a number with which a phase comes to `target_s`, and the phase then.

    A value that the profile cannot have counts as too large.
    """

    def with_value(value: float) -> float:
        return phase_s(with_number(profile, key, Finding(value, "found with the twin")))

    low, high = near / FIT_FACTOR, near * FIT_FACTOR
    grows = with_value(near) > with_value(near / 1.1)
    for _ in range(FIT_STEPS):
        middle = float(np.sqrt(low * high))
        try:
            is_too_small = (with_value(middle) < target_s) == grows
        except msgspec.ValidationError:
            is_too_small = False
        low, high = (middle, high) if is_too_small else (low, middle)
    return low, with_value(low)


def number_of(profile: Profile, key: str) -> float | None:
    """Return the value of a number by its key path; None if the profile lacks it."""
    value: Any = msgspec.to_builtins(profile)
    for name in key.split("."):
        value = None if value is None else value.get(name)
    return None if value is None else float(value["value"])


def with_number(profile: Profile, key: str, finding: Finding) -> Profile:
    """Return the profile with a number, and its schedule, as the run measured it.

    Raises:
        ValidationError: The profile cannot have this number.
    """
    raw = msgspec.to_builtins(profile)
    section, _, name = key.rpartition(".")
    number: dict[str, Any] = {
        "value": round(finding.value) if key in COUNTS else finding.value,
        "tag": "measured",
        "source": finding.how,
    }
    if finding.series is not None:
        steps = finding.series
        # The mean of a series can be outside of it by the rounding of a sum.
        number["value"] = min(max(finding.value, steps.lowest), steps.highest)
        number["series"] = {"t_s": steps.t_s, "values": steps.values, "period_s": steps.period_s}
    (raw[section] if section else raw)[name] = number
    return msgspec.convert(raw, Profile)
