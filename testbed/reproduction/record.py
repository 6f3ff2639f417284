"""The small result file of a finished cell: scores of its devices, and what the cell depends on.

A cell depends on its resolved experiment, on the bytes of its data, and on the versions of the
packages that compute. A later revision of Fairbed does not make its result another one, but is
named; a key that a later revision has added, at its default, is no change.
"""

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.report.html import flat
from fairbed.coordinator.store import RunReader
from fairbed.testbed.compare.measures import RunMeasures
from fairbed.testbed.experiment.file import Experiment, FleetConfig
from fairbed.testbed.reproduction.measures import Scores
from fairbed.wire.printable import one_line

PACKAGES = ("numpy", "onnxruntime")
"""Packages whose version may change a result in more than its last bits."""
DIGITS = 6
"""Digits after the point of a score in a file: far below one held-out example."""
FIFTHS = 5
MAX_BYTES = 16 << 20
"""Largest result file that is read."""
COLUMNS = ("accuracy", "auroc", "loss")
NOT_COUNTED = ("name", "operator", "broker", "limits", "emulation")
"""Tables that change no number of a replay."""
OF_GROUP = re.compile(r"^fleet\.\d+\.")


class DeviceScores(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Scores of one model on the held-out examples of each device; all lists have one length."""

    n: list[int]
    accuracy: list[float | None] = []
    auroc: list[float | None] = []
    loss: list[float | None] = []


class CellRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finished cell."""

    fairbed: str
    """Version of Fairbed; in a checkout with the hash of its source."""
    depends: dict[str, Any]
    """What the cell depends on, by name."""
    seconds: float
    """Time that the cell took on its machine, seconds."""
    devices: list[str]
    """Names of the devices with held-out examples, sorted; empty without training."""
    malicious: list[int]
    """Numbers of those that are malicious."""
    models: dict[str, DeviceScores]
    """Scores by model: global, and personal."""
    run: dict[str, float | None]
    """Numbers of the whole run."""

    def scores(self, model: str, without: "CellRecord | None") -> Scores:
        """Return the scores of a model.

        Args:
            model: global or personal.
            without: The cell whose malicious devices do not count; None counts all devices.
        """
        found = self.models.get(model)
        if found is None:
            return Scores(np.zeros(0), {}, self.run)
        kept = np.ones(len(found.n), dtype=np.bool_)
        if without is not None:
            names = {without.devices[number] for number in without.malicious}
            kept = np.array([name not in names for name in self.devices], dtype=np.bool_)
        columns = {
            name: np.array(values, dtype=np.float64)[kept]  # None becomes NaN
            for name in COLUMNS
            if (values := getattr(found, name))
        }
        return Scores(np.array(found.n, dtype=np.float64)[kept], columns, self.run)


def depends_of(experiment: Experiment, data_sha256: str) -> dict[str, Any]:
    """Return what a cell depends on, by name.

    Args:
        experiment: Its experiment.
        data_sha256: Hash of the whole data set; empty for generated data, and without data.
    """
    found: dict[str, Any] = {}
    for key, value in flat(_as_json(experiment.without_rooms)):
        if key.partition(".")[0] not in NOT_COUNTED and value is not None:
            found[key] = value
    if data_sha256:
        found["data"] = data_sha256
    return found | {f"version of {name}": _version(name) for name in PACKAGES}


def _as_json(value: object) -> Any:
    """Return a value as it is read back from JSON: a tuple is a list."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of what has changed since a cell was run.

    A key that only one of them has, at its default, is one that a revision added or removed.

    Args:
        before: What the finished cell depended on.
        now: The same of the cell that is wanted.
    """
    defaults = _defaults()

    def is_added(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        key = OF_GROUP.sub("fleet.", name)
        return name not in one and key in defaults and other[name] == defaults[key]

    return [
        name
        for name in dict.fromkeys((*before, *now))
        if before.get(name) != now.get(name)
        and not is_added(name, before, now)
        and not is_added(name, now, before)
    ]


@cache
def _defaults() -> dict[str, Any]:
    """Return the defaults of all keys of an experiment; those of a group as `fleet.KEY`."""
    found = dict(flat(_as_json(Experiment(name="none").without_rooms)))
    for field in msgspec.structs.fields(FleetConfig):
        if field.default is not msgspec.NODEFAULT:
            found[f"fleet.{field.encode_name}"] = _as_json(field.default)
    return found


def record_of(
    folder: Path, measured: RunMeasures, depends: dict[str, Any], fairbed: str, seconds: float
) -> CellRecord:
    """Return the record of a finished run.

    Raises:
        StoreError: Its store cannot be read.
    """
    with RunReader(folder) as reader:
        rows = [row for row in reader.device_metrics() if row.n > 0]
        personal = reader.personal_scores()
        malicious = reader.malicious()
    devices = [row.device for row in rows]
    own = {row.device: row for row in personal}
    models = {}
    if rows:
        models["global"] = _scores([row.n for row in rows], rows)
    if personal:
        models["personal"] = _scores([row.n for row in rows], [own.get(name) for name in devices])
    return CellRecord(
        fairbed=fairbed,
        depends=depends,
        seconds=round(seconds, 1),
        devices=devices,
        malicious=[number for number, name in enumerate(devices) if name in malicious],
        models=models,
        run=_run_numbers(measured),
    )


def _scores(n: list[int], rows: list[Any]) -> DeviceScores:
    columns = {
        name: [None if row is None else _rounded(getattr(row, name)) for row in rows]
        for name in COLUMNS
    }
    known = {name: v for name, v in columns.items() if any(value is not None for value in v)}
    return DeviceScores(n=n, **known)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), DIGITS)


def _run_numbers(measured: RunMeasures) -> dict[str, float | None]:
    queues: Floats = np.array(measured.curves.queue_total, dtype=np.float64)
    means = [float(part.mean()) for part in np.array_split(queues, FIFTHS) if part.size]
    has_fifths = len(means) == FIFTHS
    before, last = (means[-2], means[-1]) if has_fifths else (0.0, 0.0)
    values = measured.values
    return {
        "total_s": values.get("virtual_s"),
        "least_rate": values.get("min_rate_selected"),
        "jain": values.get("jain"),
        "queue_last": last if has_fifths else None,
        "queue_growth_percent": 100.0 * (last / before - 1.0) if before > 0.0 else None,
    }


def path_of(out: Path, study: str, panel: str, run: str, seed: int) -> Path:
    """Return the file of a cell."""
    return out / "cells" / study / panel / f"{run}-{seed}.json"


def write_record(path: Path, record: CellRecord) -> None:
    """Write a record, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(msgspec.json.encode(record, order="deterministic") + b"\n")
    os.replace(draft, path)


def read_record(path: Path) -> CellRecord | str | None:
    """Return the record of a cell; None if it is not finished, a line if the file is damaged."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return f"{path}: must be at most {MAX_BYTES >> 20} MB; the cell is run again"
        record = msgspec.json.decode(path.read_bytes(), type=CellRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as exc:
        got = one_line(str(exc), 200)
        return f"{path}: must be a result file, got {got}; the cell is run again"
    if problem := next(_problems(record), ""):
        return f"{path}: {problem}; the cell is run again"
    return record


def _problems(record: CellRecord) -> Iterator[str]:
    """Yield what makes a record unusable; a file that came with a checkout is not trusted."""
    size = len(record.devices)
    if any(not 0 <= number < size for number in record.malicious):
        yield f"malicious: must be numbers of its {size} devices"
    for name, model in record.models.items():
        columns = [column for column in (model.accuracy, model.auroc, model.loss) if column]
        if len(model.n) != size or any(len(column) != size for column in columns):
            yield f"models.{one_line(name, 40)}: must have a score for each of {size} devices"
        if any(n < 1 for n in model.n):
            yield f"models.{one_line(name, 40)}: devices must have held-out examples"
