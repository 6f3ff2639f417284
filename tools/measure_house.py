"""Measure the size of the product for a new reader: python tools/measure_house.py [CHECKOUT].

* Files: product modules, lines, modules with one importer, class names with several meanings.
* Rounds: modules and functions that one warm round uses, medians of `REPEATS` rounds: a live
  round of RBCS-F, a bare live round (FedAvg, uniform selection, no feature), the quickstart live
  (its configuration; digits are random examples), and the quickstart replayed. Live rounds have a
  real coordinator, real agents and a broker in memory, in one process.
* Features: modules of features that are off and that the bare round passes, or that a bare run
  imports before its first round has ended.
* Core: imports that lead from the core into the rooms that may be deleted.
* Changes: product files that name a column, a measure, a key, a phase, a codec or a selector.

`CHECKOUT` may be an older tree (from 4e2efb5 on), so that two trees are comparable; a count that it
does not have is `-`.
"""

import ast
import json
import re
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any

_CHECKOUT = sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else None
ROOT = Path(_CHECKOUT or Path(__file__).parents[1]).resolve()
PACKAGES = ("wire", "device_agent", "coordinator", "profiles", "testbed")
SMALL_LINES = 60
WARM_ROUND = 3
"""The first round that is counted; the ones before also load models and open sessions."""
REPEATS = 5
"""Rounds whose counts are taken: timers fall into some of them."""
ROOMS = ("lab", "cluster", "remote", "web", "metrics", "notify", "packs", "reproduction")
"""Folders of the test bed that may be deleted."""
ROOM_FILES = ("testbed/experiment/notify.py", "testbed/run/notify.py", "testbed/run/notifier.py")
"""Files of a room beside its folder."""
FEATURES = {
    "explanation": ("coordinator/algorithms/selection/explanation.py",),
    "fairness tables": ("coordinator/algorithms/fairness.py",),
    "alerts": ("coordinator/state/alerts.py", "coordinator/rounds/alert_monitor.py"),
    "loss queries": (
        "coordinator/rounds/loss_query.py",
        "coordinator/state/loss_query.py",
        "testbed/replay/engine/loss_query.py",
    ),
    "own data": ("coordinator/rounds/own_data.py",),
    "personal models": (
        "coordinator/rounds/personal_scores.py",
        "device_agent/ditto.py",
        "device_agent/stored_vector.py",
        "testbed/replay/personal.py",
    ),
    "local rules": (
        "coordinator/algorithms/local_training.py",
        "device_agent/local_training.py",
        "wire/local_training.py",
    ),
    "optimisers and drawn work": (
        "coordinator/policy/local_work.py",
        "device_agent/optimiser.py",
        "wire/schedule.py",
    ),
    "augmentation": ("testbed/run/augment.py", "wire/augment.py"),
    "attackers and defences": (
        "coordinator/algorithms/aggregation/defence.py",
        "testbed/emulation/malicious.py",
        "testbed/experiment/malicious.py",
        "testbed/replay/engine/claims.py",
    ),
    "context check": ("coordinator/algorithms/estimation/context_check.py",),
    "limits": (
        "coordinator/algorithms/selection/miss_limit.py",
        "coordinator/algorithms/aggregation/max_weight.py",
    ),
    "privacy": ("device_agent/privacy.py", "testbed/experiment/noise.py"),
    "energy": ("device_agent/power.py", "testbed/emulation/power.py"),
    "cells": (
        "testbed/emulation/cell.py",
        "testbed/experiment/cells.py",
        "testbed/backends/network/cell_waits.py",
        "testbed/replay/world/shared_air.py",
    ),
    "dilation": ("testbed/host/dilation.py",),
    "clients": (
        "coordinator/algorithms/aggregation/raw.py",
        "coordinator/policy/client.py",
        "coordinator/records/client_metrics.py",
        "coordinator/rounds/raw_updates.py",
        "device_agent/clients/work.py",
        "testbed/experiment/client_task.py",
        "testbed/run/clients.py",
        "wire/records.py",
    ),
    "codecs": ("wire/codecs/half.py", "wire/codecs/int8.py", "wire/codecs/top_k.py"),
}
"""Modules of each feature; a file that a tree does not have does not count."""
FEATURE_OF = {path: name for name, paths in FEATURES.items() for path in paths}
"""Feature by module."""
CHANGES = {
    "a column of the exchange": "weight_share",
    "a column that the host measures": "cell_wait_s",
    "a key": "loss_query_timeout_s",
    "a phase": "load_s",
    "a codec": "top-k|TOP_K|top_k",
    "a selector": "oort|Oort",
}
"""The words by which the files of one change are found."""

Passed = set[tuple[str, int]]
"""Functions that a round passed: file, relative to the checkout, and first line."""
Rounds = list[Passed]
"""Warm rounds of one kind."""


def count_files() -> None:
    """Print the size of the product, its satellites and its ambiguous class names."""
    files = {_module(path): path for package in PACKAGES for path in _files(package)}
    importers: dict[str, set[str]] = defaultdict(set)
    classes: dict[str, int] = defaultdict(int)
    into_rooms: set[tuple[str, str]] = set()
    for module, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            for name in _imported(node):
                if name in files and name != module:
                    importers[name].add(module)
                    if _is_in_room(files[name]) and not _is_in_room(path):
                        into_rooms.add((module, name))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] += 1
    own = {name: path for name, path in files.items() if path.name != "__init__.py"}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in own.items()}
    single = [name for name in own if len(importers[name]) == 1]
    print(f"product modules               {len(own)}")
    print(f"product lines                 {sum(lines.values())}")
    print(f"modules with one importer     {len(single)}")
    small = sum(lines[name] < SMALL_LINES for name in single)
    print(f"  of them under {SMALL_LINES} lines       {small}")
    print(f"class names of several things {sum(count > 1 for count in classes.values())}")
    print(f"imports of rooms by the core  {len(into_rooms)}")


def count_changes() -> None:
    """Print how many product files name each of some things that were added once."""
    texts = [path.read_text(encoding="utf-8") for package in PACKAGES for path in _files(package)]
    for what, words in CHANGES.items():
        count = sum(bool(re.search(rf"\b({words})\b", text)) for text in texts)
        print(f"files that name {what + ',':<32} {words.partition('|')[0]}: {count}")


def count_rounds() -> None:
    """Print the modules and functions of each kind of round, and features that are absent."""
    sys.path.insert(0, str(ROOT))
    kinds = {"": live_round, "bare ": bare_round, "quickstart, live ": _quickstart}
    for name, run in kinds.items():
        passed = _or_none(run)
        _print_round(f"{name}warm round", passed)
        if run is bare_round:
            _print_features(passed)
    _print_round("quickstart, replayed round", _or_none(_replayed))


def _or_none(run: Callable[[], Rounds]) -> Rounds | None:
    """Return the functions of a round; None if the tree has not what it needs."""
    try:
        return run()
    except (AttributeError, ImportError, TypeError) as exc:
        print(f"{run.__name__.strip('_')}: {type(exc).__name__}: {exc}", file=sys.stderr)
        return None


def _print_round(name: str, found: Rounds | None) -> None:
    modules = functions = "-"
    if found is not None:
        modules = f"{median(len({path for path, _ in passed}) for passed in found):g}"
        functions = f"{median(map(len, found)):g}"
    print(f"{name + ':':<29} {modules} modules, {functions} functions")


def _print_features(rounds: Rounds | None) -> None:
    """Print the modules of absent features that the bare round passes, and those it imports."""
    found = modules_of_features(rounds or [])
    count = "-" if rounds is None else len(found)
    print(f"  of absent features, passed  {count} modules")
    for path in sorted(found):
        print(f"    {FEATURE_OF[path]}: {path}")
    table = ROOT / "tests" / "costs.json"
    if table.exists():
        kinds = json.loads(table.read_text(encoding="utf-8")).get("modules", {})
        names = {name for modules in kinds.values() for name in modules}
        imported = {path for path in FEATURE_OF if _as_import(path) in names}
        print(f"  of absent features, imported {len(imported)} modules")
        for path in sorted(imported):
            print(f"    {FEATURE_OF[path]}: {path}")


def modules_of_features(rounds: Rounds) -> set[str]:
    """Return the modules that any of some rounds passes and that belong to a feature."""
    return {path for passed in rounds for path, _ in passed if path in FEATURE_OF}


def _as_import(path: str) -> str:
    return "fairbed." + path.removesuffix(".py").replace("/", ".")


@contextmanager
def _noting() -> Iterator[Callable[[], None]]:
    """Yield a function that begins a round; the functions of each round are in `_noting.rounds`."""
    passed: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            passed.add(frame.f_code)

    def begin() -> None:
        rounds.append(_functions(passed))
        passed.clear()

    rounds.clear()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield begin
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


rounds: Rounds = []
"""Functions of each round so far."""


def _warm() -> Rounds:
    """Return the warm rounds, without the last one, which evaluates in any run."""
    return rounds[WARM_ROUND - 1 :][:REPEATS]


def _functions(codes: set[CodeType]) -> Passed:
    found: Passed = set()
    for code in codes.copy():
        path = Path(code.co_filename).resolve()
        if path.is_relative_to(ROOT) and not code.co_name.startswith("<"):
            name = path.relative_to(ROOT)
            if name.parts[0] in PACKAGES:
                found.add((str(name), code.co_firstlineno))
    return found


def live_round() -> Rounds:
    """Return the functions of rounds of RBCS-F, two of three devices."""
    return _in_lab({})


def bare_round() -> Rounds:
    """Return the functions of rounds without any feature.

    FedAvg of all three devices, uniform selection, no evaluation, alerts and reasons.
    """
    from fairbed.coordinator.policy.config import EvaluationConfig, OperatorConfig
    from tests.coordinator.lab import WHOLE_FLEET

    sections = {"selection": WHOLE_FLEET, "evaluation": EvaluationConfig(every=0)}
    if hasattr(OperatorConfig(), "alerts"):  # in an older tree they cannot be switched off
        sections["operator"] = OperatorConfig(alerts=False, reasons=False)
    return _in_lab(sections)


def _quickstart() -> Rounds:
    """RBCS-F, four of twelve devices, with the keys of examples/quickstart.toml."""
    import msgspec

    from fairbed.coordinator.policy.config import SelectionConfig, TrainingConfig

    text = (ROOT / "examples" / "quickstart.toml").read_bytes()
    experiment = msgspec.toml.decode(text)
    sections = {
        "selection": msgspec.convert(experiment["selection"], SelectionConfig),
        "training": msgspec.convert(experiment["training"] | {"epochs": 1}, TrainingConfig),
    }
    return _in_lab(sections, devices=sum(group["count"] for group in experiment["fleet"]))


def _in_lab(sections: dict[str, Any], devices: int = 3) -> Rounds:
    import anyio

    from tests.coordinator.lab import lab, make_config

    async def run(begin: Callable[[], None]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with lab(Path(folder), agents=devices) as place:
                place.on_progress = lambda progress: begin()
                await place.run(make_config(WARM_ROUND + REPEATS, devices, **sections))

    with _noting() as begin:
        anyio.run(run, begin)
        return _warm()


def _replayed() -> Rounds:
    """The quickstart on the virtual clock."""
    from fairbed.testbed.experiment.file import load_experiment
    from fairbed.testbed.replay.run import replay_experiment

    experiment = load_experiment(ROOT / "examples" / "quickstart.toml", {"rounds": 10})
    with tempfile.TemporaryDirectory() as folder, _noting() as begin:
        replay_experiment(experiment, Path(folder) / "run", "house", lambda replayed: begin())
        return _warm()


def _is_in_room(path: Path) -> bool:
    name = path.relative_to(ROOT)
    in_folder = name.parts[0] == "testbed" and len(name.parts) > 2 and name.parts[1] in ROOMS
    return in_folder or str(name) in ROOM_FILES


def _files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _module(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _imported(node: ast.AST) -> list[str]:
    names: list[str] = []
    if isinstance(node, ast.ImportFrom) and node.module:
        names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    elif isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    return [name.removeprefix("fairbed.") for name in names]


if __name__ == "__main__":
    print(f"checkout                      {ROOT.name}")
    count_files()
    count_changes()
    count_rounds()
