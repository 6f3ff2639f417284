"""Which tests run when. This file and the marker `full` are the only places that decide it.

The fast tier (`just test`) has what a change commonly breaks: every behaviour once. The rest (`just
test-all` runs both) has what costs minutes and proves the same again elsewhere or in depth. A test
belongs to the rest when

1. its file is below an entry of `FULL`, and `NEEDED` does not name it,
2. or it has the marker `full`: a function, or one parameter of it; `tests/brokers.py` gives it to
   every broker and client but one.

Property tests belong to both: the fast tier tries `FAST_EXAMPLES` of a hundred examples.
`pytest --collect-only --tier fast` lists a tier.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

FULL: dict[str, str] = {
    "tests/benchmarks": "commands that measure, on a small scale",
    "tests/coordinator/task/test_export.py": "exports beside torch; test_ship.py is fast",
    "tests/coordinator/test_faults_on_brokers.py": "test_protocol_faults.py on real brokers",
    **{
        f"tests/coordinator/tui/test_{screen}.py": "keys and looks of one screen"
        for screen in (
            *("device", "end", "estimator", "event_pages", "fairness", "fleet", "help", "history"),
            *("keys", "round", "rounds", "runs", "steering"),
        )
    },
    "tests/coordinator/tui/test_cost.py": "what the control room does not draw again",
    "tests/coordinator/tui/test_memory.py": "what the control room releases",
    "tests/device_agent/engines/test_torch.py": "the torch engine; its replay is fast",
    "tests/docs/test_notebooks.py": "notebooks",
    "tests/docs/test_pages.py": "commands of the pages in docs/",
    "tests/experiments": "studies that are not product",
    "tests/testbed/api/test_compare.py": "grids from Python; the command is fast",
    "tests/testbed/cli/test_doctor_selector.py": "the contract as a command",
    "tests/testbed/cli/test_new.py": "each kind of plug-in that is written",
    "tests/testbed/cli/test_plugin_parts.py": "each kind of plug-in that is checked",
    "tests/testbed/core_stability": "core stability of a run, as a command",
    "tests/testbed/flower/test_app_failures.py": "Flower apps that break a rule or fail",
    **{
        f"tests/testbed/flower/test_{name}.py": "Flower apps in an interpreter with flwr"
        for name in ("app_failures", "app_runs", "example_apps", "public_apps", "runs")
    },
    "tests/testbed/flower/test_environment.py": "interpreters with flwr, and without",
    "tests/testbed/flower/test_records_of_flower.py": "records of flwr, in its interpreter",
    "tests/testbed/replay/cohort/test_worker_pool.py": "a replay on several processes",
    "tests/test_wheel.py": "the wheel, built and installed",
    "tests/theory": "theorems, by simulation",
    "tests/wire/transport/test_kills.py": "brokers killed at random instants",
}
"""Files and folders of the rest, and what they are."""

NEEDED: dict[str, str] = {
    "tests/coordinator/tui/test_device.py": (
        "test_a_long_fact_is_wrapped_under_itself_and_brackets_are_no_markup"
    ),
    "tests/coordinator/tui/test_history.py": "test_a_live_run_goes_on_behind_its_past",
    "tests/testbed/api/test_compare.py": "test_an_arm_may_name_a_registered_part",
    "tests/testbed/replay/cohort/test_worker_pool.py": (
        "test_a_rule_that_the_program_registered_trains_in_its_own_process"
    ),
}
"""Tests of files in `FULL` that are fast: alone they catch a fault of `tools/faults.toml`."""

ALL_EXAMPLES, FAST_EXAMPLES = 100, 15
"""Of a property, unless its test says otherwise."""

ROOT = Path(__file__).parent.parent

_NEEDED = {ROOT / name: test for name, test in NEEDED.items()}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=["fast", "rest", "all"],
        default="all",
        help="run the fast tests, the rest, or all (default); see tests/tiers.py",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples hypothesis tries, before it sees a test."""
    shared = settings(derandomize=True, deadline=None, print_blob=True)
    settings.register_profile("fairbed", shared, max_examples=ALL_EXAMPLES)
    settings.register_profile("fast", shared, max_examples=FAST_EXAMPLES)
    settings.register_profile("explore", max_examples=10_000, deadline=None, print_blob=True)
    if config.getoption("--hypothesis-profile") is None:
        settings.load_profile("fast" if config.getoption("--tier") == "fast" else "fairbed")


def examples(count: int) -> int:
    """Return how many examples a test tries that needs `count` of them where others try 100."""
    scale = settings().max_examples / ALL_EXAMPLES
    return max(1, round(count * min(scale, 1.0)))


def in_depth(*values: Any) -> Any:
    """Return a parameter of a test that belongs to the rest."""
    return pytest.param(*values, marks=pytest.mark.full)


def some_in_fast(values: Iterable[Any], *fast: Any) -> list[Any]:
    """Return parameters of a test: those in `fast` belong to both tiers, the others to the rest."""
    return [value if value in fast else in_depth(value) for value in values]


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("--tier") != "fast":
        return None
    return "tier: fast; `just test-all` runs the rest, too (tests/tiers.py)"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what is left out."""
    is_out = _is_in_full(collection_path) and collection_path not in _NEEDED
    return True if config.getoption("--tier") == "fast" and is_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen tier."""
    tier = config.getoption("--tier")
    if tier == "all":
        return
    belongs = _is_fast if tier == "fast" else _is_of_the_rest
    kept, left = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (kept if belongs(item) else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@cache
def _is_in_full(path: Path) -> bool:
    return any(path.is_relative_to(ROOT / name) for name in FULL)


def _is_fast(item: pytest.Item) -> bool:
    if item.path in _NEEDED:
        return item.name == _NEEDED[item.path]
    return item.get_closest_marker("full") is None and not _is_in_full(item.path)


def _is_of_the_rest(item: pytest.Item) -> bool:
    return not _is_fast(item) or getattr(item.obj, "is_hypothesis_test", False)  # type: ignore[attr-defined]  # functions have it
