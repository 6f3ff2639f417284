"""Writes findings as the text of a profile, and of its trace.

A measured number is written with its method, date and machine. Another number is copied from the
profile of `--like`. Otherwise it is left out, and is then unknown or absent by the schema of
profiles, which states the emulation's default. No number is invented.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from fairbed.profiles import Profile, to_toml, unknown_numbers
from fairbed.profiles.series import Series
from fairbed.profiles.traces.table import format_table
from fairbed.profiles.traces.trace import Trace
from fairbed.testbed.recording.analysis.findings import Finding, Findings

Kind: TypeAlias = Literal["board", "phone", "computer"]

REQUIRED = (
    "cores",
    "core_speed",
    "memory_bytes",
    "engine_threads",
)
OPTIONAL = (
    "storage_read_bytes_per_s",
    "background_load",
    "matrix_flops",
    "core_matrix_flops",
    "memory_bytes_per_s",
    "thread_scaling",
    "link.down_bps",
    "link.up_bps",
    "link.delay_s",
    "clock_ratio",
    "cold_start_s",
    "link.jitter_s",
    "link.loss_ratio",
    "thermal.sustained_clock_ratio",
    "thermal.onset_s",
    "thermal.time_constant_s",
    "thermal.fast_share",
    "thermal.fast_constant_s",
    "thermal.idle_celsius",
    "thermal.rise_celsius",
    "thermal.limit_celsius",
    "thermal.ambient_celsius",
    "availability.available",
    "availability.session_s",
    "energy.idle_w",
    "energy.train_w",
    "energy.compute_w",
    "energy.transmit_w",
)
"""Key paths, in the order of a profile."""

LINKED_SECTIONS = ("thermal", "availability", "energy")
"""Sections whose numbers all come from one source: the recording, or the profile of `--like`."""

COUNTS = frozenset({"cores", "memory_bytes", "engine_threads"})
"""Keys of integers."""

DIGITS = 6
"""Significant digits: more than any of these numbers is accurate to."""

MAX_SOURCE_CHARS = 600
"""Limit of a source (`profiles.quantities.Text`)."""


class IncompleteProfile(Exception):
    """A number of the profile is missing or impossible; the message is one line."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Name, title and kind of the recorded device."""

    name: str
    title: str
    kind: Kind
    origin: str
    """End of every source: date, machine and program."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The files of a recorded profile."""

    profile: str
    """TOML."""
    trace: str | None
    """CSV for the file `trace_name(name)` beside the profile; None if no number varies."""


def trace_name(name: str) -> str:
    """Return the file name of the trace beside a recorded profile."""
    return f"{name}.csv"


def compose(identity: Identity, findings: Findings, base: Profile | None) -> Recorded:
    """Return the profile of the findings.

    Args:
        identity: The device.
        findings: Measured numbers.
        base: Profile with the numbers that are not measured; None for no such profile.

    Raises:
        IncompleteProfile: A required number is in neither, or a number is impossible.
    """
    given = {} if base is None else _numbers(base)
    raw: dict[str, Any] = {
        "name": identity.name,
        "title": identity.title,
        "class": identity.kind,
        "licence": _licence(base),
    }
    series_by_key: dict[str, Series] = {}
    for key in (*REQUIRED, *OPTIONAL):
        section, _, name = key.rpartition(".")
        finding = findings.found.get(key)
        if finding is not None:
            number = _measured(key, finding, identity)
            if finding.series is not None:
                series_by_key[name] = finding.series
        elif _is_of_base(key, section, findings) and key in given:
            number = given[key]
        elif key in REQUIRED:
            why = findings.missing.get(key, "it cannot be measured here")
            raise IncompleteProfile(
                f"{identity.name}: {key} must be measured or taken from a profile, got neither "
                f"({why}); add --like PROFILE"
            )
        else:
            continue
        (raw.setdefault(section, {}) if section else raw)[name] = number
    try:
        profile = msgspec.convert(raw, Profile)
    except msgspec.ValidationError as exc:
        raise IncompleteProfile(
            f"{identity.name}: the measured numbers must be a valid profile: {exc}"
        ) from exc
    notes = [f"Recorded {identity.origin}.", *findings.remarks]
    unknown = dict.fromkeys(unknown_numbers(profile), "it was not measured")
    notes += [
        f"{'Unknown' if key in unknown else 'Not measured'}: {key}: {why}"
        for key, why in {**unknown, **findings.missing}.items()
    ]
    comments = "".join(f"# {' '.join(note.split())}\n" for note in notes)
    return Recorded(comments + to_toml(profile), _trace_text(series_by_key, identity.origin))


def _measured(key: str, finding: Finding, identity: Identity) -> Any:
    value = round(finding.value) if key in COUNTS else float(f"{finding.value:.{DIGITS}g}")
    number: dict[str, Any] = {
        "value": value,
        "tag": "measured",
        "source": f"{finding.how}; {identity.origin}"[:MAX_SOURCE_CHARS],
    }
    if finding.series is not None:
        number["trace"] = trace_name(identity.name)
    return number


def _is_of_base(key: str, section: str, findings: Findings) -> bool:
    if key in findings.examined or section in findings.examined:
        return False
    if key == "core_matrix_flops" and "matrix_flops" in findings.found:
        return False  # two rates of one processor
    return section not in LINKED_SECTIONS or not any(
        found.startswith(f"{section}.") for found in findings.found
    )


def _numbers(base: Profile) -> dict[str, Any]:
    """Return the numbers of a profile by key path, in the form of a file."""
    numbers: dict[str, Any] = {}

    def walk(value: Mapping[str, Any], prefix: str) -> None:
        for name, item in value.items():
            if isinstance(item, dict) and item.get("tag") == "unknown":
                continue
            if isinstance(item, dict) and "value" in item:
                source = f"{base.name}: {item['source']}"[:MAX_SOURCE_CHARS]
                numbers[f"{prefix}{name}"] = _without_none({**item, "source": source})
            elif isinstance(item, dict):
                walk(item, f"{prefix}{name}.")

    walk(msgspec.to_builtins(base), "")
    return numbers


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value


def _licence(base: Profile | None) -> str:
    own = "measurements of one device with fairbed record, free to use"
    return (
        own
        if base is None
        else f"{own}; numbers from {base.name}: {base.licence}"[:MAX_SOURCE_CHARS]
    )


def _trace_text(series_by_key: Mapping[str, Series], origin: str) -> str | None:
    """Return a trace of all series at their common times; the longest sets the period."""
    if not series_by_key:
        return None
    period_s = max(series.period_s for series in series_by_key.values())
    t_s = np.unique(np.concatenate([series.t_s for series in series_by_key.values()]))
    columns = {}
    for name, series in series_by_key.items():
        rows = np.searchsorted(np.asarray(series.t_s), t_s, side="right") - 1
        columns[name] = np.asarray(series.values, float)[rows]
    return format_table(Trace(t_s, columns, period_s), {"recorded": origin})
