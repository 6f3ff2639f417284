"""The files that `fairbed new` writes: a plug-in, its test and an experiment that uses it.

The modules beside this one are the plug-ins; their class `Template` gets another name.
"""

import importlib
import importlib.util
import inspect
import keyword
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

Part: TypeAlias = Literal["weights", "pseudo-gradient", "server-step"]
"""A step of an aggregation, the value of `fairbed new aggregator --part`."""
ScaffoldKind: TypeAlias = Literal["selector", "estimator", "local-rule"] | Part
PARTS: tuple[Part, ...] = get_args(Part)
SCAFFOLD_KINDS: tuple[ScaffoldKind, ...] = ("selector", *PARTS, "estimator", "local-rule")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


def name_problem(name: str) -> str:
    """Return why a module cannot have this name; empty if it can."""
    if not _NAME.fullmatch(name):
        return "must be 1 to 40 of a-z, 0-9 and _, the first one a letter"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return "must not be a keyword of Python"
    if name.startswith("test_"):
        return "must not begin with test_, because its test does"
    if importlib.util.find_spec(name) is not None:
        return "must not be the name of an installed module"
    return ""


def class_name(module: str) -> str:
    """Return the name of the class of a module: MyRule for my_rule."""
    return "".join(word.capitalize() for word in module.split("_"))


def scaffold(kind: ScaffoldKind, name: str) -> dict[str, str]:
    """Return the texts of the new files by file name; `name` must have no `name_problem`."""
    template = importlib.import_module(f"{__name__}.{kind.replace('-', '_')}")
    words = {"Template": class_name(name), "template": name}
    words["[section]"] = _SECTIONS[kind]

    def named(text: str) -> str:
        return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], text)

    return {
        f"{name}.py": named(inspect.getsource(template)),
        f"test_{name}.py": named(_TESTS[kind]),
        f"{name}.toml": named(named(_EXPERIMENT)),
    }


_EXPERIMENT = """\
# Six emulated devices with template.py.
#   fairbed replay template.toml    on a virtual clock
#   fairbed run template.toml       live
name = "template"
seed = 0
rounds = 5

[data]
dataset = "digits"
partition = { kind = "by-class", classes_per_device = 4 }

[model]
name = "softmax"

[training]
epochs = 2
batch_size = 20
learning_rate = 0.05

[section]
[emulation]
dilation = "auto"                  # slows the time of the fleet until this machine can run it

[[fleet]]
profile = "raspberry-pi-4b"
count = 6
"""

_SECTIONS: Mapping[ScaffoldKind, str] = {
    "selector": """\
[selection]
policy = "template:Template"
options = { boost = 2.0 }
per_round = 3
""",
    "weights": """\
[selection]
policy = "uniform"
per_round = 3

[aggregation]
rule = "template:Template"
rule_options = { strength = 1.0 }
weights = "equal"                  # p_k: also n, n_over_pi
""",
    "pseudo-gradient": """\
[selection]
policy = "uniform"
per_round = 3

[aggregation]
rule = "fedavg"                    # any rule of weights
pseudo_gradient = "template:Template"
pseudo_gradient_options = { longest = 1.0 }
""",
    "server-step": """\
[selection]
policy = "uniform"
per_round = 3

[aggregation]
rule = "fedavg"                    # any rule of weights
server = "template:Template"
server_options = { decay = 0.5 }
""",
    "estimator": """\
[selection]
policy = "rbcs-f"
per_round = 3
estimator = "template:Template"
estimator_options = { rate = 0.3 }
""",
    "local-rule": """\
# Keys of [training], too:
rule = "template:Template"
rule_options = { strength = 0.5 }

[selection]
policy = "uniform"
per_round = 3

[aggregation]
weights = "equal"                  # of updates and returned vectors
""",
}

_CONTRACT = """

@pytest.mark.parametrize("name", PROPERTIES)
def test_keeps_the_contract(name: str) -> None:
    finding = check_property(PROPERTIES, name, Template, time.perf_counter)
    assert finding.is_ok, finding.found
"""

_TESTS: Mapping[ScaffoldKind, str] = {
    "selector": f'''\
"""Tests of template.py; run `pytest` in this folder."""

import time

import numpy as np
import pytest
from template import Template

from fairbed.coordinator.algorithms.contract import check_property
from fairbed.coordinator.algorithms.selection.contract import PROPERTIES, run_rounds, trial_fleet
{_CONTRACT}

def test_devices_that_were_selected_less_often_come_first() -> None:
    fleet = trial_fleet(6, seed=1)
    history = run_rounds(Template(boost=1e9), fleet, rounds=4, seed=0, k=3)
    counts = np.bincount(np.concatenate(history), minlength=6)
    assert counts.tolist() == [2] * 6


def test_a_boost_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="boost must be >= 1, got 0.5"):
        Template(boost=0.5)
''',
    "weights": f'''\
"""Tests of template.py; run `pytest` in this folder."""

import time

import numpy as np
import pytest
from template import Template

from fairbed.coordinator.algorithms.aggregation.contract import RULE_PROPERTIES as PROPERTIES
from fairbed.coordinator.algorithms.aggregation.contract import trial_updates
from fairbed.coordinator.algorithms.contract import check_property
{_CONTRACT}

def test_weights_grow_with_the_loss() -> None:
    updates = trial_updates(seed=1, k=2, shares=np.ones(2), losses=np.array([0.0, 2.0]))
    np.testing.assert_allclose(Template(strength=1.0).decide(updates), [0.25, 0.75])


def test_a_negative_strength_is_refused() -> None:
    with pytest.raises(ValueError, match="strength must be >= 0, got -1.0"):
        Template(strength=-1.0)
''',
    "pseudo-gradient": f'''\
"""Tests of template.py; run `pytest` in this folder."""

import time

import numpy as np
import pytest
from template import Template

from fairbed.coordinator.algorithms.aggregation.contract import (
    PSEUDO_GRADIENT_PROPERTIES as PROPERTIES,
)
from fairbed.coordinator.algorithms.aggregation.contract import trial_updates
from fairbed.coordinator.algorithms.contract import check_property
{_CONTRACT}

def test_long_changes_are_shortened_and_short_ones_are_not() -> None:
    updates, a = trial_updates(seed=1, k=2), np.array([0.25, 0.75])
    first, second = updates.changes
    np.testing.assert_allclose(Template(longest=1e9).combine(updates, a), a @ [first, second])
    d = Template(longest=1e-3).combine(updates, np.array([1.0, 0.0]))
    n = updates.changes.n_params
    assert np.linalg.norm(d[:n]) == pytest.approx(1e-3)
    np.testing.assert_allclose(d[n:], first[n:])


def test_a_length_of_0_is_refused() -> None:
    with pytest.raises(ValueError, match="longest must be above 0, got 0.0"):
        Template(longest=0.0)
''',
    "server-step": f'''\
"""Tests of template.py; run `pytest` in this folder."""

import time

import numpy as np
import pytest
from template import Template

from fairbed.coordinator.algorithms.aggregation.contract import (
    SERVER_STEP_PROPERTIES as PROPERTIES,
)
from fairbed.coordinator.algorithms.contract import check_property
{_CONTRACT}

def test_the_step_is_a_moving_average() -> None:
    step, w = Template(decay=0.5), np.zeros(2, dtype=np.float32)
    for d, expected in ((4.0, 2.0), (0.0, 1.0), (8.0, 4.5)):
        np.testing.assert_allclose(step.step(w, np.full(2, d)), [expected, expected])


def test_a_decay_of_1_is_refused() -> None:
    with pytest.raises(ValueError, match="decay must be at least 0 and below 1, got 1.0"):
        Template(decay=1.0)
''',
    "estimator": f'''\
"""Tests of template.py; run `pytest` in this folder."""

import time

import numpy as np
import pytest
from template import Template

from fairbed.coordinator.algorithms.contract import check_property
from fairbed.coordinator.algorithms.estimation import Measured
from fairbed.coordinator.algorithms.estimation.contract import PROPERTIES
{_CONTRACT}

def test_the_prediction_is_a_moving_average() -> None:
    estimator, row, context = Template(rate=0.5), np.array([1]), np.ones((1, 4))
    for tau_s in (4.0, 8.0):
        estimator.observe(row, context, Measured.whole(np.array([tau_s])))
    assert estimator.predict(np.ones((2, 4))).tau_hat_s.tolist() == [0.0, 6.0]


def test_a_rate_of_0_is_refused() -> None:
    with pytest.raises(ValueError, match="rate must be above 0 and at most 1, got 0"):
        Template(rate=0.0)
''',
    "local-rule": '''\
"""Tests of template.py; run `pytest` in this folder."""

import time

import numpy as np
import pytest
from template import Template

from fairbed.coordinator.algorithms.contract import check_property
from fairbed.testbed.local_rules import PROPERTIES, Halves
from fairbed.wire.local_training import Trained


@pytest.mark.parametrize("name", PROPERTIES)
def test_keeps_the_contract(name: str) -> None:
    finding = check_property(PROPERTIES, name, lambda: Halves.of(Template), time.perf_counter)
    assert finding.is_ok, finding.found


def test_a_device_keeps_its_mean_gradient() -> None:
    w_t, w_k = np.zeros(2, dtype=np.float32), np.array([-1.0, 2.0], dtype=np.float32)
    own = np.zeros(2, dtype=np.float32)
    trained = Trained(w_k, w_t, np.array(4), {"own": own, "mean": own}, learning_rate=0.5)
    assert Template().end(trained)["own"].tolist() == [0.5, -1.0]


def test_a_negative_strength_is_refused() -> None:
    with pytest.raises(ValueError, match="strength must be >= 0, got -1.0"):
        Template(strength=-1.0)
''',
}


def doctor_command(kind: ScaffoldKind, name: str) -> str:
    """Return the command that tests a new plug-in against its contract."""
    option = {"local-rule": "local-training"}.get(kind, "aggregator" if kind in PARTS else kind)
    return f"fairbed doctor --{option} {name}:{class_name(name)}"
