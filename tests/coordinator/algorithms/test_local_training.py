"""The coordinator's half of a local rule: sent vectors, merges and one line per violation."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from examples.scaffold import Scaffold
from fairbed.coordinator.algorithms.aggregation.base import Merge, Report
from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.algorithms.local_training import LocalMerge, ServerHalf
from fairbed.coordinator.policy.config import AggregationConfig, TrainingConfig
from fairbed.coordinator.policy.factories import make_aggregator
from fairbed.wire.local_training import Merged
from fairbed.wire.plugins import PluginError

N, BUFFERS = 3, 2
SENT = np.arange(N + BUFFERS, dtype=np.float32)
ONES = np.ones(N, dtype=np.float32)


class Fake:
    """A rule whose methods do what a test sets."""

    sent: Any = ("down", "too")
    kept: Any = ()
    returned: Any = ("up", "more")

    def __init__(self, **members: Any) -> None:
        self.seen: list[Merged] = []
        for name, member in members.items():
            setattr(self, name, member)

    def gradient(self, step: Any) -> None:
        pass

    def end(self, trained: Any) -> Any:
        return {}

    def merge(self, merged: Merged) -> Any:
        self.seen.append(merged)
        return {}

    def to_state(self) -> Any:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


def merged(weights: tuple[float, ...] = (1.0, 1.0)) -> Merge:
    """Return a merge whose model is 10, 11, ..., with the vectors up = 2 and more = 3."""
    model = 10.0 + SENT
    vector = np.concatenate([model, 2.0 * ONES, 3.0 * ONES], dtype=np.float32)
    counts = np.array(weights)
    return Merge(vector, counts, np.full(len(weights), 5), np.ones(len(weights)))


def finish(half: ServerHalf, merge: Merge, n_devices: int = 4) -> Vector:
    return half.finish(merge, SENT, N, n_devices, 0.1).vector


def fault(run: Callable[[], object]) -> str:
    """Return the line of the violation, without name and advice."""
    with pytest.raises(PluginError) as caught:
        run()
    line, start = str(caught.value), "local rule my.mod:Rule: "
    end = "; run fairbed doctor --local-training my.mod:Rule to check it"
    assert "\n" not in line
    assert line.startswith(start)
    assert line.endswith(end)
    return line[len(start) : -len(end)]


def half_of(**members: Any) -> ServerHalf:
    return ServerHalf("my.mod:Rule", Fake(**members))


def test_sent_vectors_begin_at_zero_and_change_by_name() -> None:
    half = half_of(merge=lambda m: {"too": 2.0 * m.returned["up"]})
    assert half.vectors(N).tolist() == [0.0] * 6
    finish(half, merged())
    assert half.vectors(N).tolist() == [0.0] * 3 + [4.0] * 3


def test_a_merge_gets_its_round_and_leaves_the_model_without_vectors() -> None:
    rule = Fake()
    got = finish(ServerHalf("rule", rule), merged((1.0, 0.0, 2.0)))
    assert got.tolist() == (10.0 + SENT).tolist()
    (seen,) = rule.seen
    assert (seen.n_merged, seen.n_devices, seen.learning_rate) == (2, 4, 0.1)
    assert seen.before.tolist() == SENT[:N].tolist()
    assert {name: v.tolist() for name, v in seen.returned.items()} == {
        "up": [2.0] * 3,
        "more": [3.0] * 3,
    }


def test_a_rule_may_change_parameters_but_no_buffers() -> None:
    def merge(m: Merged) -> dict[str, Vector]:
        m.params += 1.0
        return {}

    done = merged()
    expected = [11.0, 12.0, 13.0, 13.0, 14.0]
    assert finish(half_of(merge=merge), done).tolist() == expected
    assert done.vector[0] == 10.0


def test_a_round_without_an_update_does_not_run_the_rule() -> None:
    rule = Fake()
    assert finish(ServerHalf("rule", rule), merged((0.0, 0.0))).shape == SENT.shape
    assert rule.seen == []


def test_devices_that_left_count_no_less_than_the_merged_ones() -> None:
    rule = Fake()
    finish(ServerHalf("rule", rule), merged(), n_devices=0)
    assert rule.seen[0].n_devices == 2


def test_a_state_restores_rule_and_vectors() -> None:
    half, other = half_of(merge=lambda m: {"down": ONES}), half_of()
    finish(half, merged())
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(half.to_state()))
    other.load_state(state)
    assert other.vectors(N).tolist() == [1.0] * 3 + [0.0] * 3
    other.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(half_of().to_state())))
    assert other.vectors(N).tolist() == [0.0] * 6


def raises(merged: Merged) -> None:
    raise KeyError("of the rule")


def writes(name: str) -> Callable[[Merged], dict[str, Vector]]:
    def merge(merged: Merged) -> dict[str, Vector]:
        target = merged.sent["down"] if name == "down" else getattr(merged, name)
        target += 1.0
        return {}

    return merge


def replaces(value: Any) -> Callable[[Any], dict[str, Vector]]:
    def merge(merged: Any) -> dict[str, Vector]:
        merged.params = value
        return {}

    return merge


NAN = ONES * np.float32(np.nan)


@pytest.mark.parametrize(
    ("merge", "why"),
    [
        (raises, "merge() must not raise, got KeyError: 'of the rule'"),
        (lambda m: None, "merge() must return a dict of vectors to send (down, too), got NoneType"),
        (lambda m: {"up": ONES}, "merge() must return a dict of vectors to send (down, too), got"),
        (lambda m: {"down": [1.0]}, "merge(): down must be float32 of shape (3,), got list"),
        (lambda m: {"down": ONES[:2]}, "merge(): down must be float32 of shape (3,), got float32"),
        (lambda m: {"too": ONES.astype(float)}, "got float64 of shape (3,)"),
        (lambda m: {"too": NAN}, "merge(): too must be finite, got a value that is not"),
        (replaces(NAN), "merge(): params must be finite, got a value that is not"),
        (replaces(ONES[:2]), "merge(): params must be float32 of shape (3,), got float32"),
        (replaces(None), "merge(): params must be float32 of shape (3,), got NoneType"),
        (writes("before"), "merge() must not raise, got ValueError: output array is read-only"),
        (writes("down"), "merge() must not raise, got ValueError: output array is read-only"),
    ],
)
def test_a_merge_that_breaks_the_contract_is_one_line(merge: Any, why: str) -> None:
    half = half_of(merge=merge)
    sent = SENT.copy()
    assert why in fault(lambda: finish(half, merged()))
    assert half.vectors(N).tolist() == [0.0] * 6  # a round that fails changes nothing
    assert SENT.tolist() == sent.tolist()


@pytest.mark.parametrize("verb", ["gradient", "end", "merge", "to_state", "load_state"])
def test_a_rule_without_a_method_is_refused(verb: str) -> None:
    with pytest.raises(PluginError, match=f"but lacks {verb}; docs/own-local-training.md has"):
        half_of(**{verb: None})


def test_names_of_vectors_are_checked() -> None:
    with pytest.raises(PluginError, match="sent must be a tuple of at most 16 distinct names"):
        half_of(sent=("a", "a"))


def test_vectors_are_merged_with_the_weights_of_the_updates_in_any_order() -> None:
    """A round of SCAFFOLD: c moves by 2/5 of the weighted mean of the changes of c_k."""
    n_k, changes = (1, 3), (np.array([4.0, 0.0, 8.0]), np.array([0.0, 4.0, 8.0]))
    reports = [
        Report(k, n, np.concatenate([SENT, change], dtype=np.float32), None)
        for k, (n, change) in enumerate(zip(n_k, changes, strict=True))
    ]
    for order, weights in (((0, 1), "n"), ((1, 0), "n"), ((0, 1), "equal")):
        half = ServerHalf("scaffold", Scaffold())
        aggregator = make_aggregator(AggregationConfig(weights=weights), TrainingConfig(), 2)  # type: ignore[arg-type]
        begun = aggregator.begin(half.padded(SENT, N), N, 0.1, list, 5, 1)  # type: ignore[arg-type]
        merge = LocalMerge(begun, lambda done, half=half: half.finish(done, SENT, N, 5, 0.1))  # type: ignore[misc]
        for at in order:
            merge.add(reports[at])
        assert merge.finish().vector.tolist() == SENT.tolist()
        p = np.array([0.25, 0.75]) if weights == "n" else np.array([0.5, 0.5])
        np.testing.assert_allclose(half.vectors(N), 0.4 * p @ np.array(changes), rtol=1e-6)
