"""The shape of the house, proved by running it: what loads what, and what every file carries."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("wire", "device_agent", "coordinator", "profiles", "testbed")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

HEAVY = {"matplotlib", "onnx", "onnxruntime", "ray", "scipy", "sklearn", "textual", "torch"}
"""What costs tens of milliseconds or megabytes to import."""

ANALYSIS = {"IPython", "pandas", "polars", "prometheus_client", "pyarrow", "rich", "tensorboardX"}
"""What tables, notebooks and metrics load when they are used."""

DEPENDENCIES = {"anyio", "argcomplete", "email", "msgspec", "numpy", "psutil"}
"""What `fairbed --help` does without, too; `importlib.metadata` loads `email`."""

COMMANDS = {"coordinator", "doctor", "rm", "run", "runs", "show", "stop", "watch"}
"""The commands of `fairbed` that its users rely on; others may join them."""

TIMEOUT_S = 60.0


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S
    )


def _loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after `code`."""
    done = _python(f"{code}\nimport sys\nprint(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


def _command(module: str, *args: str) -> tuple[str, set[str]]:
    """Return what a console script prints, and the top-level modules that it loads."""
    done = _python(
        f"import atexit, sys; from {module} import main; sys.argv = {['command', *args]!r}\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "sys.exit(main())"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, {name.partition(".")[0] for name in done.stderr.split()}


def test_an_agent_loads_no_training_runtime_before_its_first_task() -> None:
    assert not _loaded_by("import fairbed.device_agent.agent") & HEAVY


def test_an_agent_loads_no_numpy_and_no_archive_reader_before_its_first_task() -> None:
    modules = "process, fairbed.device_agent.sensors, fairbed.device_agent.power"
    loaded = _loaded_by(f"import anyio._backends._asyncio, fairbed.device_agent.{modules}")
    assert not loaded & {"email", "numpy", "zipfile"}


def test_the_wire_loads_no_client_before_a_link_is_made() -> None:
    assert not _loaded_by("import fairbed.wire.chunks, fairbed.wire.codec, fairbed.wire.topics") & (
        HEAVY | {"aiomqtt"}
    )


def test_the_algorithms_load_no_link_no_screen_no_torch() -> None:
    rooms = ("selection", "estimation", "aggregation")
    loaded = _loaded_by(
        f"import {', '.join(f'fairbed.coordinator.algorithms.{room}' for room in rooms)}"
    )
    assert not loaded & {"aiomqtt", "anyio", "onnxruntime", "textual", "torch"}


@pytest.mark.parametrize(
    "module",
    [
        "fairbed.testbed.experiment.file",
        "fairbed.coordinator.policy.plugins",
        "fairbed.coordinator.algorithms.selection",
    ],
)
def test_what_refers_to_each_other_can_be_loaded_in_any_order(module: str) -> None:
    assert module.partition(".")[0] in _loaded_by(f"import {module}")


@pytest.mark.parametrize("module", ["fairbed.testbed.cli.main", "fairbed.device_agent.cli"])
def test_help_loads_nothing_heavy(module: str) -> None:
    text, loaded = _command(module, "--help")
    assert "usage" in text.lower()
    assert not loaded & HEAVY


def test_the_help_of_fairbed_loads_no_dependency() -> None:
    _, loaded = _command("fairbed.testbed.cli.main", "--help")
    assert not loaded & (HEAVY | DEPENDENCIES)


def test_help_of_every_command_says_how_to_use_it_and_loads_nothing_heavy() -> None:
    text, _ = _command("fairbed.testbed.cli.main", "--help")
    commands = set(re.findall(r"^ {4}([a-z-]+)(?: |$)", text, flags=re.MULTILINE))
    assert commands >= COMMANDS
    for command in sorted(commands):
        text, loaded = _command("fairbed.testbed.cli.main", command, "--help")
        assert f"usage: fairbed {command}" in text
        assert not loaded & HEAVY, command


IMPORT_S = 0.3
"""Longest `import fairbed`."""


def test_import_fairbed_is_fast_and_loads_no_dependency() -> None:
    code = (
        "import time; begin = time.perf_counter(); import fairbed; "
        "print(time.perf_counter() - begin)"
    )
    assert min(float(_python(code).stdout) for _ in range(3)) <= IMPORT_S
    assert not _loaded_by("import fairbed") & (HEAVY | DEPENDENCIES | ANALYSIS)


def test_all_names_of_fairbed_can_be_imported_at_once() -> None:
    code = (
        "import fairbed; names = {}; exec('from fairbed import *', names); "
        "print(sorted(names.keys() - {'__builtins__'}) == sorted(fairbed._MODULES))"
    )
    assert _python(code).stdout.strip() == "True"


def test_the_functions_of_fairbed_load_what_they_need_only() -> None:
    code = "import fairbed; [getattr(fairbed, name) for name in fairbed._MODULES]"
    statistics = {"scipy"}  # of comparisons
    assert not _loaded_by(code) & ((HEAVY | ANALYSIS) - statistics)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed_and_says_what_it_is(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
    for folder in {path.parent for path in MODULES if path.parts[len(ROOT.parts)] == package}:
        where, init = folder.relative_to(ROOT), folder / "__init__.py"
        assert init.exists(), f"{where}: __init__.py is missing"
        assert ast.get_docstring(ast.parse(init.read_text())), f"{where}: says not what it is"


def test_what_a_module_exports_is_sorted_and_exists() -> None:
    for path in MODULES:
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
                by_kind = sorted(names, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
                assert names == by_kind, f"{path.relative_to(ROOT)}: __all__ must be sorted"
                assert set(names) <= _bound_in(tree), f"{path.relative_to(ROOT)}: __all__"


def _bound_in(tree: ast.Module) -> set[str]:
    bound: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                bound |= {alias.asname or alias.name for alias in node.names}
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound.add(node.name)
            case ast.Name(ctx=ast.Store()):
                bound.add(node.id)
    return bound


CODE_OF_USERS = {
    ROOT / "tests/cases/clients",
    ROOT / "tests/cases/own_clients",
    ROOT / "tests/testbed/flower/odd_app",
}
"""Folders with clients and apps, as users write them: no packages of the tests."""


def test_tests_mirror_the_packages() -> None:
    for folder in {path.parent for path in TESTS}:
        inside = folder.relative_to(ROOT / "tests")
        if folder in CODE_OF_USERS or "shims" in inside.parts:
            continue
        assert (folder / "__init__.py").exists(), f"tests/{inside}/__init__.py is missing"
        if inside.parts and inside.parts[0] in PACKAGES:
            assert (ROOT / inside).is_dir(), f"tests/{inside} mirrors nothing"
