"""Third-party selectors: how they are found, and the errors when they are not."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.term import Term
from fairbed.coordinator.algorithms.aggregation.contract import trial_updates
from fairbed.coordinator.algorithms.selection.base import Selector
from fairbed.coordinator.algorithms.selection.guarded import GuardedSelector
from fairbed.coordinator.policy.config import AggregationConfig, SelectionConfig, TrainingConfig
from fairbed.coordinator.policy.factories import (
    make_estimator,
    make_pseudo_gradient,
    make_rule,
    make_selector,
    make_server_step,
)
from fairbed.coordinator.policy.plugins import (
    ESTIMATOR,
    PSEUDO_GRADIENT,
    RULE,
    SELECTOR,
    SERVER_STEP,
    Kind,
)
from fairbed.wire.plugins import PluginError

EXAMPLE = "examples.longest_waiting:LongestWaiting"

MODULE = """
import numpy as np

class SelectsNone:
    def __init__(self, *, option="calm"): self.option = option
    def select(self, candidates, k, rng): return np.zeros(0, dtype=np.int64)
    def observe(self, outcomes): pass
    def queues(self, n): return np.zeros(n)
    def to_state(self): return {}
    def load_state(self, state): pass

def make(**options): return SelectsNone(**options)
NUMBER = 7
"""


def load_selector(policy: str, options: dict[str, Any]) -> Selector:
    return make_selector(SelectionConfig(policy=policy, options=options))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution that offers a selector."""
    (tmp_path / "plugins_of_test.py").write_text(MODULE, encoding="utf-8")
    info = tmp_path / "plugins_of_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: plugins-of-test\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[fairbed.selectors]\n"
        "selects-none = plugins_of_test:SelectsNone\n"
        "lost = plugins_of_test:Gone\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "policy", [EXAMPLE, "selects-none", "plugins_of_test:make", "plugins_of_test:SelectsNone"]
)
def test_a_plugin_is_found_by_path_and_by_entry_point(package: Path, policy: str) -> None:
    assert isinstance(load_selector(policy, {}), GuardedSelector)


def test_installed_plugins_are_listed(package: Path) -> None:
    assert {"selects-none", "lost"} <= set(SELECTOR.installed())


def test_options_are_its_arguments(package: Path) -> None:
    with pytest.raises(PluginError, match="patience must be >= 1, got 0; 1 is plain round robin"):
        load_selector(EXAMPLE, {"patience": 0})
    with pytest.raises(PluginError, match=r"\{'optoin': 1\}, got TypeError.*optoin.*; correct"):
        load_selector("selects-none", {"optoin": 1})


def test_a_module_below_the_working_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_of_test.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    assert isinstance(
        load_selector("own_of_test:SelectsNone", {"option": "other"}), GuardedSelector
    )


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("no.such.module:Policy", "got ModuleNotFoundError: No module named 'no'"),
        ("json:Policy", "got AttributeError: module 'json' has no attribute 'Policy'"),
        ("plugins_of_test:NUMBER", "must be a class or a function that makes one, got int"),
        ("json:dumps", "got TypeError"),
        ("builtins:dict", "must have select"),
        ("lost", "got AttributeError"),
        ("nowhere", "must be one of 'app', .*, 'selects-none' or package.module:Name"),
        ("nowhere", "got no entry point 'nowhere' of fairbed.selectors; install it"),
        (":", "must be importable as package.module:Name"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_one_line(
    package: Path, policy: str, reason: str
) -> None:
    with pytest.raises(PluginError, match=reason) as caught:
        load_selector(policy, {})
    line = str(caught.value)
    assert line.startswith(f"selector {policy}: ")
    assert "\n" not in line


def test_a_module_that_breaks_while_it_is_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_of_test.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = r"got ZeroDivisionError: division by zero \(.*broken_of_test\.py, line 1\); install it"
    with pytest.raises(PluginError, match=found):
        load_selector("broken_of_test:Policy", {})


@pytest.mark.parametrize(
    "module",
    [
        "fairbed.coordinator.policy.plugins",
        "fairbed.coordinator.algorithms.selection",
        "fairbed.testbed.experiment.file",
    ],
)
def test_the_order_of_imports_does_not_matter(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}"], capture_output=True, text=True, timeout=60.0
    )
    assert done.returncode == 0, done.stderr


PLUGGED: dict[Kind, Callable[[str], object]] = {
    ESTIMATOR: lambda name: make_estimator(SelectionConfig(estimator=name)),
    RULE: lambda name: make_rule(AggregationConfig(rule=name), 2),
    PSEUDO_GRADIENT: lambda name: make_pseudo_gradient(
        AggregationConfig(pseudo_gradient=name), TrainingConfig()
    ),
    SERVER_STEP: lambda name: make_server_step(AggregationConfig(server=name)),
}


@pytest.mark.parametrize("kind", PLUGGED, ids=lambda kind: kind.noun)
def test_every_kind_of_part_can_be_a_plug_in(kind: Kind) -> None:
    with pytest.raises(PluginError, match=rf"^{kind.noun} json:JSONDecoder: must have "):
        PLUGGED[kind]("json:JSONDecoder")
    kind.check_name("json:JSONDecoder", {"strict": True})
    kind.check_name(kind.built_in[0], {})
    with pytest.raises(ValueError, match=rf"^{kind.options}: only a plug-in has options, got some"):
        kind.check_name(kind.built_in[0], {"strict": True})
    with pytest.raises(ValueError, match=rf"^{kind.key}: must be one of '{kind.built_in[0]}'"):
        kind.check_name("nowhere", {})


def test_term_has_the_weights_of_the_specification() -> None:
    updates = trial_updates(0, k=3, losses=np.array([1.0, 2.0, 3.0]), shares=np.array([5.0, 3, 2]))
    expected = [0.179000, 0.291944, 0.529056]
    np.testing.assert_allclose(Term(1.0).decide(updates), expected, atol=1e-6)
