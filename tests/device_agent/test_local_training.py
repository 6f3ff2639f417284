"""Local rules on a device: PropFair, which rules are allowed, and the guard of every rule."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from fairbed.device_agent.installed import known_rules
from fairbed.device_agent.local_training import (
    BUILT_IN,
    GuardedRule,
    PropFair,
    Proximal,
    allowed_rule,
    make_rule,
)
from fairbed.wire.local_training import Step, Trained
from fairbed.wire.messages import LOCAL_RULES, MAX_VECTORS
from fairbed.wire.plugins import PluginError

SCAFFOLD = "examples.scaffold:Scaffold"
FEDDYN = "examples.feddyn:FedDyn"
N = 4

Array: TypeAlias = NDArray[np.float64]


def floats(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0.0, 1.0, shape).astype(np.float32)


def step(loss: Any = 1.0, *leading: int) -> Step:
    return Step(
        params=floats(*leading, N),
        gradient=floats(*leading, N, seed=1),
        loss=np.asarray(loss, dtype=np.float64),
        anchor=floats(N, seed=2),
        buffers=floats(*leading, 2, seed=3),
        vectors={"down": floats(N, seed=4), "own": floats(*leading, N, seed=5)},
        learning_rate=0.1,
        gradient_at=lambda w: (np.asarray(loss), w),
    )


def trained(*leading: int) -> Trained:
    s = step(1.0, *leading)
    return Trained(s.params, s.anchor, np.full(leading, 3), s.vectors, 0.1)


class Fake:
    """A rule whose methods do what a test sets."""

    sent: Any = ("down",)
    kept: Any = ("own",)
    returned: Any = ("up",)

    def __init__(self, **members: Any) -> None:
        for name, member in members.items():
            setattr(self, name, member)

    def gradient(self, step: Step) -> None:
        pass

    def end(self, trained: Trained) -> Any:
        return {"up": np.ones_like(trained.params)}


def guarded(**members: Any) -> GuardedRule:
    rule: Any = Fake(**members)
    return GuardedRule("my.mod:Rule", rule)


def fault(run: Callable[[], object]) -> str:
    """Return the line of the violation, without name and advice."""
    with pytest.raises(PluginError) as caught:
        run()
    start, end = "local rule my.mod:Rule: ", "; run fairbed doctor --local-training my.mod:Rule to"
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(start)
    assert end in line
    return line[len(start) : line.index(end)]


@pytest.mark.parametrize("loss", [0.0, 0.7, 2.0, 2.79])
def test_the_gradient_of_propfair_is_that_of_the_log_of_the_utility(loss: float) -> None:
    """-log(1 - l/M) of the loss l = |w - b|^2 / 2 + c, by central differences."""
    base, h = 3.0, 1e-6
    w, b = floats(N, seed=7).astype(np.float64), floats(N, seed=6).astype(np.float64)
    c = loss - 0.5 * ((w - b) ** 2).sum()

    def objective(at: Array) -> float:
        return -float(np.log(1.0 - (0.5 * ((at - b) ** 2).sum() + c) / base))

    expected = [(objective(w + h * e) - objective(w - h * e)) / (2.0 * h) for e in np.eye(N)]
    s = step(loss)
    s.gradient[:] = w - b
    PropFair(base).gradient(s)
    np.testing.assert_allclose(s.gradient, expected, rtol=1e-5)


@pytest.mark.parametrize("loss", [2.81, 3.0, 9.0, 1e300])
def test_propfair_divides_by_the_bound_where_a_loss_is_near_or_above_it(loss: float) -> None:
    s = step(loss)
    before = s.gradient.copy()
    PropFair(3.0).gradient(s)
    np.testing.assert_allclose(s.gradient, before / 3.0, rtol=1e-6)


def test_propfair_scales_each_device_of_a_stack_by_its_own_loss() -> None:
    s = step([0.0, 2.0, 2.9], 3)
    before = s.gradient.copy()
    PropFair(3.0).gradient(s)
    np.testing.assert_allclose(s.gradient / before, [[1 / 3] * N, [1.0] * N, [1 / 3] * N], 1e-6)


@pytest.mark.parametrize("base", [0.2, -1.0, float("nan"), 1e7])
def test_a_bound_that_no_loss_can_have_is_refused(base: float) -> None:
    with pytest.raises(ValueError, match=r"base must be above 0\.2 and at most 1e6, got"):
        PropFair(base)


def test_the_proximal_term_pulls_towards_the_model_that_was_sent() -> None:
    s = step()
    before = s.gradient.copy()
    Proximal(0.5).gradient(s)
    np.testing.assert_allclose(s.gradient, before + 0.5 * (s.params - s.anchor), rtol=1e-6)


def test_a_device_knows_built_in_rules_and_the_paths_that_its_owner_allows() -> None:
    assert known_rules(()) == ("propfair",) == LOCAL_RULES == tuple(BUILT_IN)
    assert known_rules([SCAFFOLD]) == (SCAFFOLD, "propfair")
    assert allowed_rule("propfair", {"base": 2.0}, ()).kept == ()
    assert allowed_rule(FEDDYN, {"alpha": 0.2}, [FEDDYN]).kept == ("g_k",)


def test_a_path_that_the_owner_does_not_allow_is_not_imported() -> None:
    with pytest.raises(PluginError) as caught:
        allowed_rule("no_such_module:Rule", {}, [SCAFFOLD])
    assert str(caught.value) == (
        "local rule no_such_module:Rule: must be allowed by this device, got a path that is not; "
        "start the agent with --local-training no_such_module:Rule"
    )


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("fedprox", {}, "must be one of propfair or package.module:Name, got no entry point"),
        ("no_such_module:Rule", {}, "must be importable as package.module:Name"),
        (FEDDYN, {"beta": 1}, "must be made from the options {'beta': 1}, got TypeError"),
        (FEDDYN, {"alpha": -1.0}, "got ValueError: alpha must be above 0"),
        ("examples.term:Term", {}, "gradient(), end() must exist, got none"),
    ],
)
def test_a_rule_that_cannot_be_made_is_one_line(
    name: str, options: Mapping[str, Any], why: str
) -> None:
    with pytest.raises(PluginError) as caught:
        make_rule(name, options)
    assert str(caught.value).startswith(f"local rule {name}: ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("names", ["own", ("a", "a"), (1,), None, [f"v{i}" for i in range(17)]])
def test_vectors_without_proper_names_are_refused(names: Any) -> None:
    with pytest.raises(PluginError, match=f"at most {MAX_VECTORS} distinct names, got"):
        guarded(kept=names)


def test_two_kinds_of_vectors_cannot_share_a_name() -> None:
    assert "must have distinct names" in fault(lambda: guarded(kept=("down",)))


def raises(*args: object) -> None:
    raise KeyError("of the rule")


def to_float64(s: Any) -> None:
    s.gradient = s.gradient.astype(np.float64)


def to_other_shape(s: Any) -> None:
    s.gradient = s.gradient[:2]


def to_list(s: Any) -> None:
    s.gradient = s.gradient.tolist()


def writes(name: str) -> Callable[[Any], None]:
    def write(s: Any) -> None:
        getattr(s, name)[...] = 0.0

    return write


def writes_vector(s: Any) -> None:
    s.vectors["own"] *= 2.0


@pytest.mark.parametrize(
    ("gradient", "why"),
    [
        (raises, "must not raise, got KeyError: 'of the rule'"),
        (to_float64, "must leave float32 of shape (4,), got float64 of shape (4,)"),
        (to_other_shape, "must leave float32 of shape (4,), got float32 of shape (2,)"),
        (to_list, "must leave float32 of shape (4,), got list"),
        (writes("params"), "must not raise, got ValueError: assignment destination is read-only"),
        (writes("anchor"), "must not raise, got ValueError: assignment destination is read-only"),
        (writes("buffers"), "must not raise, got ValueError: assignment destination is read-only"),
        (writes("loss"), "must not raise, got ValueError: assignment destination is read-only"),
        (writes_vector, "must not raise, got ValueError: output array is read-only"),
    ],
)
def test_a_gradient_that_breaks_the_contract_is_one_line(
    gradient: Callable[[Any], None], why: str
) -> None:
    s = step()
    kept = copy.deepcopy((s.params, s.anchor, s.buffers, s.vectors))
    found = fault(lambda: guarded(gradient=gradient).gradient(s))
    assert found.partition(" (tests/")[0] == f"gradient() {why}"
    for before, after in zip(kept[:3], (s.params, s.anchor, s.buffers), strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(kept[3]["own"], s.vectors["own"])


ONES = np.ones(N, dtype=np.float32)


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (None, "end() must return a dict of vectors, got NoneType"),
        ({}, "end() must return up, may return own, and no other, got none"),
        ({"own": ONES}, "end() must return up, may return own, and no other, got 'own'"),
        (
            {"up": ONES, "down": ONES},
            "end() must return up, may return own, and no other, got 'down'",
        ),
        (
            {"up": ONES, 1: ONES},
            "end() must return up, may return own, and no other, got '1', 'up'",
        ),
        ({"up": ONES.tolist()}, "end(): up must return float32 of shape (4,), got list"),
        ({"up": ONES[:3]}, "end(): up must return float32 of shape (4,), got float32 of shape (3"),
        ({"up": ONES.astype(np.float64)}, "got float64 of shape (4,)"),
        ({"up": ONES * np.float32(np.nan)}, "end(): up must be finite, got a value that is not"),
        ({"up": ONES, "own": ONES * np.float32(np.inf)}, "end(): own must be finite"),
    ],
)
def test_vectors_that_break_the_contract_are_one_line(returned: Any, why: str) -> None:
    rule = guarded(end=lambda trained: returned)
    assert why in fault(lambda: rule.end(trained()))


def test_an_end_that_raises_or_writes_is_one_line() -> None:
    assert "end() must not raise" in fault(lambda: guarded(end=raises).end(trained()))
    for name in ("params", "anchor"):
        what = fault(lambda name=name: guarded(end=writes(name)).end(trained()))  # type: ignore[misc]
        assert "read-only" in what


def test_a_kept_vector_that_is_not_returned_stays() -> None:
    t = trained()
    kept, returned = guarded().end(t)
    np.testing.assert_array_equal(kept["own"], t.vectors["own"])
    assert list(returned) == ["up"]


def test_vectors_of_a_device_that_diverged_need_not_be_finite() -> None:
    t = trained(2)
    t.params[0] = np.inf
    t.params[1] = 1.0
    up = np.ones((2, N), dtype=np.float32)
    up[0, 0] = np.nan
    guarded(end=lambda _: {"up": up}).end(t)
    up[1, 0] = np.nan
    assert "must be finite" in fault(lambda: guarded(end=lambda _: {"up": up}).end(t))
