"""Measure the size of the product for a new reader: python tools/measure_house.py [CHECKOUT].

Static: product modules, lines, modules with one importer, class names with several meanings.
Dynamic: the modules and functions that one warm round uses, with a real coordinator, real agents
and a broker in memory, in one process. `CHECKOUT` may be an older tree (from 4e2efb5 on), so that
two trees are comparable.
"""

import ast
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
PACKAGES = ("wire", "device_agent", "coordinator", "profiles", "testbed")
SMALL_LINES = 60
WARM_ROUND = 3
"""The round that is counted; the first ones also load models and open sessions."""


def count_files() -> None:
    """Print the size of the product, its satellites and its ambiguous class names."""
    files = {_module(path): path for package in PACKAGES for path in _files(package)}
    importers: dict[str, set[str]] = defaultdict(set)
    classes: dict[str, int] = defaultdict(int)
    for module, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            for name in _imported(node):
                if name in files and name != module:
                    importers[name].add(module)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] += 1
    own = {name: path for name, path in files.items() if path.name != "__init__.py"}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in own.items()}
    single = [name for name in own if len(importers[name]) == 1]
    print(f"product modules              {len(own)}")
    print(f"product lines                {sum(lines.values())}")
    print(f"modules with one importer    {len(single)}")
    print(f"  of them under {SMALL_LINES} lines      {sum(lines[n] < SMALL_LINES for n in single)}")
    print(f"class names of several things {sum(count > 1 for count in classes.values())}")


def count_round() -> None:
    """Print the number of product modules and functions that one warm round uses."""
    sys.path.insert(0, str(ROOT))
    import anyio

    from tests.coordinator.lab import lab, make_config

    passed: set[CodeType] = set()
    is_counted = threading.Event()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and is_counted.is_set():
            passed.add(frame.f_code)

    def on_progress(progress: Any) -> None:
        if progress.round.round == WARM_ROUND - 1:
            is_counted.set()
        else:
            is_counted.clear()

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with lab(Path(folder)) as place:
                place.on_progress = on_progress
                await place.run(make_config(rounds=WARM_ROUND + 1))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        anyio.run(run)
    finally:
        sys.setprofile(None)
    functions = {
        (path, code.co_firstlineno)
        for code in passed
        if (path := Path(code.co_filename).resolve()).is_relative_to(ROOT)
        and path.relative_to(ROOT).parts[0] in PACKAGES
        and not code.co_name.startswith("<")
    }
    print(f"modules of a warm round      {len({path for path, _ in functions})}")
    print(f"functions of a warm round    {len(functions)}")


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
    print(f"checkout                     {ROOT.name}")
    count_files()
    count_round()
